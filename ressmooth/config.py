"""One run as plain data: its settings (RunConfig) and one row of its curve (Epoch).

Free of torch, so that settings are checked before it is loaded. Omitted options default to the
paper's protocol for the data set and the optimizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from ressmooth.errors import ConfigError, did_you_mean

BUILT_IN = ("digits", "synthetic")  # data sets that need no files
DatasetName = Literal["digits", "fashion_mnist", "cifar10", "cifar100", "svhn", "synthetic"]
ModelName = Literal["small", "resnet20", "resnet56", "densenet_bc_100_12"]
Method = Literal["mse", "smoothing", "label_smoothing", "cross_entropy", "adaptive_decay"]
Distribution = Literal["laplace", "logistic", "constant"]
OptimizerName = Literal["sgd", "adam", "adagrad"]
Augmentation = Literal["none", "flip", "crop-flip"]
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
LEARNING_RATE = {"sgd": 0.1, "adam": 1e-3, "adagrad": 1e-2}


class Table(BaseModel):
    """Settings that are checked strictly: no unknown keys, no conversions, no nan or inf."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RunConfig(Table):
    """The settings of one run."""

    # data
    dataset: DatasetName = Field("digits", description="data set")
    fraction: float = Field(1.0, gt=0, le=1, description="share of the training set that is used")
    selection: Literal["paper", "holdout"] = Field(
        "paper", description="validation data: the test set, as in the paper, or a held-out tenth"
    )
    augmentation: Augmentation = Field("none", description="augmentation of the training images")
    # method
    model: ModelName = Field("small", description="network")
    method: Method = Field("smoothing", description="loss")
    distribution: Distribution = Field("laplace", description="annealing of the scale")
    mu: float = Field(0.75, ge=0, le=1, description="peak of the scale, fraction of training")
    b: Positive = Field(0.5, description="width of the annealing, in units of its time axis")
    horizon: Positive = Field(10.0, description="length of the annealing's time axis")
    scale: float = Field(1.0, ge=0, le=1, description="scale of the constant distribution")
    alpha: float = Field(1.0, ge=0, le=1e6, description="steepness of the diffusivity; 0: global")
    layers: int = Field(1, ge=1, le=100, description="smoothing layers")
    through_diffusivity: bool = Field(False, description="let the gradient through the diffusivity")
    output: Literal["softmax", "identity"] = Field("softmax", description="outputs in the loss")
    reduction: Literal["sum", "mean"] = Field("sum", description="reduction over classes")
    epsilon: float = Field(0.1, ge=0, lt=1, description="strength of label smoothing")
    nu: Positive = Field(1.0, description="residual at which adaptive decay reaches 63 %")
    # optimisation
    optimizer: OptimizerName = Field("sgd", description="optimizer")
    lr: Positive = Field(0.1, description="initial learning rate")
    schedule: Literal["step", "cosine", "constant"] = Field(
        "step", description="learning rate schedule; step, the paper's, is lr / 100 from 75 % on"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(1e-4, ge=0, le=10, description="L2 penalty on all parameters")
    batch_size: Count = Field(128, description="images per step")
    epochs: Count = Field(20, description="passes over the training set")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of subset, weights and batches")
    # machine
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="device to train on")
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="precision of the network; the loss uses fp32"
    )
    channels_last: bool = Field(True, description="memory layout of images")
    compile: bool = Field(False, description="torch.compile the network")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0: torch's default")
    eval_every: Count = Field(1, description="epochs between evaluations before the last 10 %")

    @model_validator(mode="before")
    @classmethod
    def _fill_protocol(cls, values: dict[str, Any]) -> dict[str, Any]:
        # str, because a value that is not one may be unhashable; it is refused later
        protocol = PROTOCOL.get(str(values.get("dataset", "digits")), {})
        lr = LEARNING_RATE.get(str(values.get("optimizer", "sgd")), 0.1)
        return {**protocol, "lr": lr, **values}

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


# The measurements of an epoch: columns of the SQL table `epoch` and metrics in MLflow.
METRICS = tuple(field.name for field in fields(Epoch) if field.name != "epoch")


def choices(annotation: Any) -> tuple[str, ...]:
    """Return the names that a Literal allows, or an empty tuple for other types."""
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def parse(values: Mapping[str, Any]) -> RunConfig:
    """Return a RunConfig, or raise a ConfigError with one line per error."""
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(*(_describe(detail) for detail in error.errors())) from None


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
    return detail["msg"][0].lower() + detail["msg"][1:]
