import math
import subprocess
import sys
from typing import get_args

import pytest

from ressmooth.config import (
    NAMES,
    PREFIXES,
    SPECIFIC,
    DatasetName,
    OptimizerName,
    RunConfig,
    choices,
    parse,
    used_settings,
)
from ressmooth.errors import ConfigError


def errors_of(**values):
    with pytest.raises(ConfigError) as error:
        parse(values)
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    "dataset, epochs, augmentation, weight_decay",
    [
        ("fashion_mnist", 48, "none", 1e-3),
        ("cifar10", 160, "crop-flip", 1e-4),
        ("cifar100", 160, "crop-flip", 1e-4),
        ("svhn", 100, "none", 1e-4),
    ],
)
def test_omitted_settings_follow_the_papers_protocol(dataset, epochs, augmentation, weight_decay):
    c = parse({"dataset": dataset})
    assert (c.epochs, c.augmentation, c.weight_decay) == (epochs, augmentation, weight_decay)
    assert (c.optimizer, c.lr, c.momentum, c.batch_size) == ("sgd", 0.1, 0.9, 128)
    assert (c.schedule, c.selection, c.fraction) == ("step", "paper", 1.0)


def test_omitted_settings_of_the_method_follow_the_paper():
    c = parse({})
    assert (c.mu, c.horizon, c.alpha, c.layers, c.epsilon) == (0.75, 10.0, 1.0, 1, 0.1)
    assert (c.output, c.reduction, c.through_diffusivity) == ("softmax", "sum", False)


@pytest.mark.parametrize("optimizer, lr", [("sgd", 0.1), ("adam", 1e-3), ("adagrad", 1e-2)])
def test_the_learning_rate_follows_the_optimizer(optimizer, lr):
    assert parse({"optimizer": optimizer, "dataset": "cifar10"}).lr == lr


def test_given_settings_override_the_protocol():
    c = parse({"dataset": "cifar10", "optimizer": "adam", "epochs": 3, "lr": 0.7})
    assert (c.epochs, c.lr, c.augmentation) == (3, 0.7, "crop-flip")


@pytest.mark.parametrize("dataset", get_args(DatasetName))
def test_the_protocol_alone_is_a_valid_config(dataset):
    config = parse({"dataset": dataset})
    assert parse(config.model_dump()) == config


def test_an_unknown_setting_is_refused_with_the_closest_known_one():
    assert errors_of(weigth_decay=0.1) == [
        "unknown setting 'weigth_decay' (did you mean 'weight_decay'?)"
    ]
    assert errors_of(qqq=1) == ["unknown setting 'qqq'"]


@pytest.mark.parametrize(
    "key, value",
    [
        ("mu", 1.5),
        ("b", 0.0),
        ("b", 1e-7),
        ("horizon", 1e7),
        ("scale", 2.0),
        ("alpha", -1.0),
        ("layers", 0),
        ("fraction", 0.0),
        ("epsilon", 1.0),
        ("nu", 0.0),
        ("lr", math.nan),
        ("weight_decay", math.inf),
        ("momentum", 1.0),
        ("batch_size", 0),
        ("epochs", 0),
        ("seed", -1),
        ("epochs", "3"),
        ("epochs", 3.5),
        ("through_diffusivity", 1),
        ("dataset", "mnist"),
        ("dataset", ["digits"]),
        ("method", "MSE"),
        ("optimizer", 3),
    ],
)
def test_an_invalid_value_is_refused_in_one_line_with_key_and_value(key, value):
    (line,) = errors_of(**{key: value})
    assert line.startswith(f"{key} = {value!r}: ")


def test_an_unknown_name_is_refused_with_the_allowed_ones():
    (line,) = errors_of(optimizer="rmsprop")
    assert all(name in line for name in get_args(OptimizerName))


def test_each_error_is_one_line():
    lines = errors_of(epoch=3, mu=2.0, method="magic", batch_size=0)
    starts = ("mu = 2.0", "method = 'magic'", "batch_size = 0", "unknown setting 'epoch'")
    assert len(lines) == 4
    assert all(any(line.startswith(start) for line in lines) for start in starts)


@pytest.mark.parametrize("epochs, window", [(1, 1), (10, 1), (11, 2), (48, 5), (160, 16)])
def test_the_mean_averages_a_tenth_of_the_epochs_rounded_up(epochs, window):
    assert parse({"epochs": epochs}).window == window


def test_evaluation_is_sparse_before_the_last_tenth():
    config = parse({"epochs": 50, "eval_every": 20})
    assert [e for e in range(1, 51) if config.evaluates(e)] == [20, 40, 46, 47, 48, 49, 50]


def test_every_epoch_is_evaluated_by_default():
    config = parse({"epochs": 30})
    assert all(config.evaluates(e) for e in range(1, 31))


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().epochs = 3


def test_choices_are_the_names_of_a_literal():
    assert choices(OptimizerName) == ("sgd", "adam", "adamw", "adagrad")
    assert choices(float) == ()


def test_a_config_is_checked_without_importing_torch():
    code = "import sys, ressmooth.config as c; c.parse({}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_used_settings_follow_method_distribution_and_optimizer():
    loss = {"output", "reduction"}
    always = set(used_settings({"method": "cross_entropy", "optimizer": "adam"}))
    assert set(used_settings({"method": "mse"})) - always == {*loss, "momentum", "nesterov"}
    smoothing = {*loss, "distribution", "alpha", "layers", "through_diffusivity"}
    smoothing |= {"momentum", "nesterov"}
    assert set(used_settings({})) - always == {*smoothing, "mu", "b", "horizon", "cutoff"}
    assert set(used_settings({"distribution": "constant"})) - always == {*smoothing, "scale"}
    assert {"dataset", "lr", "weight_decay", "seed", "epochs", "method", "optimizer"} <= always
    ordered = used_settings({"method": "label_smoothing", "b": 0.3})
    assert ordered == [name for name in RunConfig.model_fields if name in ordered]
    assert "epsilon" in ordered and "b" not in ordered
    assert "label_smoothing" not in used_settings({"method": "mse"})


def test_the_table_of_used_settings_names_every_choice():
    for key, by in SPECIFIC.items():
        prefixes = [prefix.rstrip(":") for prefix in PREFIXES.get(key, ())]
        names = NAMES.get(key) or choices(RunConfig.model_fields[key].annotation)
        assert set(by) <= {*names, *prefixes, "a plug-in"}
        assert key not in ("method", "distribution") or set(by) == set(names)


def test_tf32_needs_a_gpu():
    with pytest.raises(ConfigError, match="precision = 'tf32': only GPUs have it; use 'fp32'"):
        parse({"precision": "tf32", "device": "cpu"})
    assert parse({"precision": "tf32"}).device == "auto"


def test_crop_padding_needs_crops():
    with pytest.raises(ConfigError, match="crop_padding = 2: needs augmentation = 'crop' or"):
        parse({"augmentation": "flip", "crop_padding": 2})
    assert parse({"augmentation": "crop", "crop_padding": 2}).crop_padding == 2
    assert parse({"dataset": "cifar10", "crop_padding": 2}).augmentation == "crop-flip"
