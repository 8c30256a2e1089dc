"""One run as plain data: its settings (RunConfig) and one row of its curve (Epoch).

Free of torch, so that settings are checked before it is loaded. Omitted options default to the
paper's protocol for the data set and the optimizer.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from ressmooth.errors import ConfigError, did_you_mean
from ressmooth.plugins import NO_PLUGINS, Plugins, Value

BUILT_IN = ("digits", "synthetic")  # data sets that need no files
DatasetName = Literal["digits", "fashion_mnist", "cifar10", "cifar100", "svhn", "synthetic"]
ModelName = Literal["small", "resnet20", "resnet56", "densenet_bc_100_12"]
Method = Literal["mse", "smoothing", "label_smoothing", "cross_entropy", "adaptive_decay"]
Distribution = Literal["laplace", "logistic", "constant"]
OptimizerName = Literal["sgd", "adam", "adamw", "adagrad"]
Augmentation = Literal["none", "flip", "crop", "crop-flip"]
MetricName = Literal["accuracy", "nll", "ece", "macro_f1"]
CROP_PADDING = 4  # Section 6 of the paper
Positive = Annotated[float, Field(ge=1e-6, le=1e6)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]

# Section 6 of the paper; digits and synthetic are not in it.
PROTOCOL: dict[str, dict[str, Any]] = {
    "fashion_mnist": {"epochs": 48, "weight_decay": 1e-3, "augmentation": "none"},
    "cifar10": {"epochs": 160, "weight_decay": 1e-4, "augmentation": "crop-flip"},
    "cifar100": {"epochs": 160, "weight_decay": 1e-4, "augmentation": "crop-flip"},
    "svhn": {"epochs": 100, "weight_decay": 1e-4, "augmentation": "none"},
    "digits": {"epochs": 20, "weight_decay": 1e-4, "augmentation": "none"},
    "synthetic": {"epochs": 5, "weight_decay": 1e-4, "augmentation": "none"},
}
OWN_PROTOCOL = {"epochs": 50, "weight_decay": 5e-4, "augmentation": "none"}  # of other data sets
LEARNING_RATE = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3, "adagrad": 1e-2}
OWN_LEARNING_RATE = 1e-3  # of optimizers that are plug-ins

# May change on resuming, though with the first two the bits may then differ
MACHINE = {"device", "threads", "loader_workers"}

# The names that are allowed besides those of plug-ins; a prefix goes with a path or a name.
NAMES: dict[str, tuple[str, ...]] = {
    "dataset": get_args(DatasetName),
    "model": get_args(ModelName),
    "method": get_args(Method),
    "optimizer": get_args(OptimizerName),
}
PREFIXES: dict[str, tuple[str, ...]] = {
    "dataset": ("images:", "npz:"),
    "model": ("torchvision:", "timm:"),
    "method": (),
    "optimizer": (),
}

# The settings that only some runs use, by the value of another setting (of a name with a prefix,
# by the prefix). Runs use all others.
LOSS = ("output", "reduction")
ANNEALING = ("mu", "b", "horizon", "cutoff")
SPECIFIC: dict[str, dict[str, tuple[str, ...]]] = {
    "method": {
        "smoothing": ("distribution", "alpha", "layers", "through_diffusivity", *LOSS),
        "mse": LOSS,
        "label_smoothing": ("epsilon", *LOSS),
        "cross_entropy": ("label_smoothing",),
        "adaptive_decay": ("nu", *LOSS),
    },
    "distribution": {"laplace": ANNEALING, "logistic": ANNEALING, "constant": ("scale",)},
    "optimizer": {"sgd": ("momentum", "nesterov")},
    "dataset": {"images": ("image_size",), "a plug-in": ("loader_workers",)},
    "model": {"torchvision": ("weights",), "timm": ("weights",)},
}


class Table(BaseModel):
    """Settings that are checked strictly: no unknown keys, no conversions, no nan or inf."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RunConfig(Table):
    """The settings of one run."""

    # data
    dataset: str = Field("digits", description="data set")
    image_size: int = Field(
        0, ge=0, le=4_096, description="height and width of images:PATH; 0: as in the files"
    )
    fraction: float = Field(1.0, gt=0, le=1, description="share of the training set that is used")
    metric: MetricName = Field(
        "accuracy", description="what selects epochs and configurations; the same for all arms"
    )
    selection: Literal["paper", "holdout"] = Field(
        "paper", description="validation data: the test set, as in the paper, or a held-out tenth"
    )
    augmentation: Augmentation = Field("none", description="augmentation of the training images")
    crop_padding: int = Field(
        CROP_PADDING, ge=1, le=1_024, description="zero pixels around an image before it is cropped"
    )
    padding: int = Field(
        0, ge=0, le=1_024, description="zero pixels on each side of every image, also for testing"
    )
    # method
    model: str = Field("small", description="network")
    weights: str = Field("none", description="pretrained weights of torchvision or timm: DEFAULT")
    method: str = Field("smoothing", description="loss")
    distribution: Distribution = Field("laplace", description="annealing of the scale")
    mu: float = Field(0.75, ge=0, le=1, description="peak of the scale, fraction of training")
    b: Positive = Field(0.5, description="width of the annealing, in units of its time axis")
    horizon: Positive = Field(10.0, description="length of the annealing's time axis")
    cutoff: float = Field(
        0.0, ge=0, lt=1, description="a scale below it counts as 0, and runs share their beginning"
    )
    scale: float = Field(1.0, ge=0, le=1, description="scale of the constant distribution")
    alpha: float = Field(1.0, ge=0, le=1e6, description="steepness of the diffusivity; 0: global")
    layers: int = Field(1, ge=1, le=100, description="smoothing layers")
    through_diffusivity: bool = Field(False, description="let the gradient through the diffusivity")
    output: Literal["softmax", "identity"] = Field("softmax", description="outputs in the loss")
    reduction: Literal["sum", "mean"] = Field("sum", description="reduction over classes")
    epsilon: float = Field(0.1, ge=0, lt=1, description="strength of label smoothing")
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="strength of label smoothing with cross_entropy, as in torch"
    )
    nu: Positive = Field(1.0, description="residual at which adaptive decay reaches 63 %")
    # optimisation
    optimizer: str = Field("sgd", description="optimizer")
    lr: Positive = Field(0.1, description="initial learning rate")
    schedule: Literal["step", "cosine", "constant"] = Field(
        "step", description="learning rate schedule; step, the paper's, is lr / 100 from 75 % on"
    )
    warmup_epochs: int = Field(
        0, ge=0, le=1_000_000, description="first epochs, over which the learning rate rises"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    nesterov: bool = Field(False, description="Nesterov's momentum")
    weight_decay: float = Field(1e-4, ge=0, le=10, description="L2 penalty on all parameters")
    batch_size: Count = Field(128, description="images per step")
    drop_last: bool = Field(True, description="drop the last, incomplete batch of an epoch")
    epochs: Count = Field(20, description="passes over the training set")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of subset, weights and batches")
    # machine
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device to train on")
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(
        "fp32",
        description="precision of the network, the loss uses fp32; tf32 needs a GPU; "
        "bf16 is faster on GPUs from 8.0 on and CPUs with avx512_bf16",
    )
    deterministic: bool = Field(True, description="the same bits again on the same kind of GPU")
    channels_last: bool = Field(True, description="memory layout of images")
    compile: bool = Field(False, description="torch.compile the network")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0: torch's default")
    loader_workers: int = Field(
        0, ge=0, le=64, description="processes that read the data which a plug-in streams"
    )
    eval_every: Count = Field(1, description="epochs between evaluations before the last 10 %")

    # settings that plug-ins add, of those that this run uses
    plugin_settings: dict[str, Value] = Field({}, repr=False, exclude_if=lambda given: not given)

    @model_validator(mode="before")
    @classmethod
    def _fill_protocol(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        # str, because a value that is not one may be unhashable; it is refused later
        protocol = PROTOCOL.get(str(values.get("dataset", "digits")), OWN_PROTOCOL)
        lr = LEARNING_RATE.get(str(values.get("optimizer", "sgd")), OWN_LEARNING_RATE)
        plugins: Plugins = info.context or NO_PLUGINS
        own = plugins.parameters
        values = {**values, "plugin_settings": plugins.settings(values)} if own else values
        return {**protocol, "lr": lr, **{k: v for k, v in values.items() if k not in own}}

    @field_validator(*NAMES)
    @classmethod
    def _check_name(cls, name: str, info: ValidationInfo) -> str:
        kind = str(info.field_name)
        own = (info.context or NO_PLUGINS).names(kind)
        if name in (*NAMES[kind], *own) or (name.startswith(PREFIXES[kind]) and name[-1] != ":"):
            return name
        known = [*NAMES[kind], *own, *(f"{prefix}..." for prefix in PREFIXES[kind])]
        allowed = ", ".join(f"'{each}'" for each in known[:-1]) + f" or '{known[-1]}'"
        hint = did_you_mean(name[:64], known) or "; a study's --plugin FILE adds your own"
        raise ValueError(f"input should be {allowed}{hint}")

    @property
    def window(self) -> int:
        """Return the number of last epochs in the mean accuracy: a tenth, rounded up."""
        return -(-self.epochs // 10)

    def evaluates(self, epoch: int) -> bool:
        return epoch % self.eval_every == 0 or epoch > self.epochs - self.window


@dataclass(frozen=True)
class Epoch:
    """One row of a run's curve; accuracies in %."""

    epoch: int  # counted from 1
    train_loss: float
    train_acc: float
    val_loss: float | None  # None where the evaluation schedule skips the epoch
    val_acc: float | None
    lr: float
    scale: float  # s, averaged over the epoch's iterations; 0 without smoothing
    diffusivity: float  # kappa, averaged over iterations, samples and classes
    seconds: float
    val_nll: float | None = None  # nats; earlier versions did not record these
    val_ece: float | None = None  # in %
    val_macro_f1: float | None = None  # in %
    # of the whole GPU, also where runs share it; None on a CPU
    gpu_memory_mib: float | None = None  # the largest
    gpu_utilization_percent: float | None = None  # mean; of the time, not of the capacity
    gpu_power_watts: float | None = None  # mean


# The measurements of an epoch: columns of the SQL table `epoch` and metrics in MLflow.
METRICS = tuple(field.name for field in fields(Epoch) if field.name != "epoch")
# Those that differ between two trainings of the same run
COSTS = ("seconds", "gpu_memory_mib", "gpu_utilization_percent", "gpu_power_watts")


class Metric(NamedTuple):
    """What selects: a column of an epoch, and its direction."""

    column: str
    is_higher_better: bool
    unit: str  # "%", or none

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of the values, or None if there are none."""
        return (max if self.is_higher_better else min)(values, default=None)


METRIC: dict[str, Metric] = {
    "accuracy": Metric("val_acc", True, "%"),
    "nll": Metric("val_nll", False, ""),
    "ece": Metric("val_ece", False, "%"),
    "macro_f1": Metric("val_macro_f1", True, "%"),
}


def values_of(curve: Iterable[Epoch], metric: str) -> list[float]:
    """Return a metric of the epochs that were evaluated."""
    values = (getattr(epoch, METRIC[metric].column) for epoch in curve)
    return [value for value in values if value is not None]


def is_own(dataset: str) -> bool:
    """Tell whether a data set is read from the user's files."""
    return dataset.startswith(PREFIXES["dataset"])


def choices(annotation: Any) -> tuple[str, ...]:
    """Return the names that a Literal allows, or an empty tuple for other types."""
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def specific_settings(plugins: Plugins) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the settings that only some runs use, those of plug-ins included."""
    own = {kind: plugins.parameters_of(kind) for kind in SPECIFIC}
    own["dataset"] = {name: (*keys, "loader_workers") for name, keys in own["dataset"].items()}
    return {key: {**by, **own[key]} for key, by in SPECIFIC.items()}


def used_settings(values: Mapping[str, Any], plugins: Plugins = NO_PLUGINS) -> list[str]:
    """Return the settings that a run with these values uses; missing ones have their defaults."""
    table = specific_settings(plugins)
    specific = {name for by in table.values() for names in by.values() for name in names}
    known = [*RunConfig.model_fields, *plugins.parameters]
    used = set(known) - specific - {"plugin_settings"}
    for key, by in table.items():
        if key in used:
            value = str(values.get(key, RunConfig.model_fields[key].default))
            used.update(by.get(value.partition(":")[0], ()))
    return [name for name in known if name in used]


def parse(values: Mapping[str, Any], plugins: Plugins = NO_PLUGINS) -> RunConfig:
    """Return a RunConfig, or raise a ConfigError with one line per error."""
    try:
        config = RunConfig.model_validate(dict(values), context=plugins)
    except ValidationError as error:
        raise ConfigError(*(_describe(detail) for detail in error.errors())) from None
    if config.nesterov and not config.momentum:  # not a validator: settings are also checked alone
        raise ConfigError("nesterov = True: needs momentum above 0")
    if config.precision == "tf32" and config.device == "cpu":
        raise ConfigError("precision = 'tf32': only GPUs have it; use 'fp32', or another device")
    if config.crop_padding != CROP_PADDING and not config.augmentation.startswith("crop"):
        needs = "needs augmentation = 'crop' or 'crop-flip'"
        raise ConfigError(f"crop_padding = {config.crop_padding}: {needs}")
    return config


def _describe(detail: ErrorDetails) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"unknown setting {key!r}{did_you_mean(key, RunConfig.model_fields)}"
    return f"{key} = {detail['input']!r}: {reason(detail)}"


def reason(detail: ErrorDetails) -> str:
    """Return what pydantic says is wrong, without the key and the value."""
    if detail["type"] == "missing":
        return "missing"
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    message = detail["msg"][0].lower() + detail["msg"][1:]
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        allowed = re.findall("'(.*?)'", detail["ctx"]["expected"])
        message += did_you_mean(detail["input"][:64], allowed)
    return message


def config_differences(stored: dict[str, Any], config: RunConfig) -> list[str]:
    """Return how a stored configuration differs from `config`, apart from the machine.

    Settings that an earlier version did not have are taken to be the defaults.
    """
    now = config.model_dump()
    stored = {**RunConfig().model_dump(), **stored}
    return [
        f"{key} is {stored.get(key)!r}, not {now.get(key)!r}"
        for key in sorted((stored.keys() | now.keys()) - MACHINE)
        if stored.get(key) != now.get(key)
    ]
