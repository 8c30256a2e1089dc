"""Study files for tests, and their errors."""

import re

import pytest

from ressmooth import spec
from ressmooth.errors import ConfigError

RICH = """\
name = "rich"
description = "every kind of key"
dataset = "digits"
epochs = 12
seeds = 3
confirm = 2
lr = 1
[search]
sampler = "tpe"
pruner = "asha"
trials = 20
hours = 1.5
objective = "mean"
seed = 7
[grid]
fraction = [1.0, 0.5]
[arms.sgd]
method = "mse"
lr = 0.05
weight_decay = { grid = [1e-3, 1e-4] }
[arms.smooth]
distribution = { choices = ["laplace", "logistic"] }
b = { low = 0.05, high = 2, log = true }
mu = { low = 0.0, high = 0.9, step = 0.3 }
layers = { low = 1, high = 3 }
through_diffusivity = { grid = [true, false] }
[resources]
workers = 2
gpus_per_run = 0.25
cpus_per_run = 2
retries = 0
"""
OVERRIDES = [  # of RICH
    "seeds=1",
    "arms.sgd.lr=0.2",
    "search.trials = 50",
    "description=two words",
    "arms.smooth.b={ choices = [1] }",
    "grid.fraction=[0.25]",
    "model=resnet20",
    'arms.new={ method = "mse" }',
    "search.hours=1e-2",
    "arms.smooth.mu.high=0.6",
]


def text(name='name = "s"', top="", search="", grid="", arm="", resources="", end=""):
    return (
        f"{name}\n{top}\n[search]\n{search}\n[grid]\n{grid}\n[arms.a]\n{arm}\n"
        f"[resources]\n{resources}\n{end}"
    )


def load(folder, content, overrides=()):
    path = folder / "x.toml"
    path.write_text(content)
    return spec.load(str(path), overrides)


def placed_errors_of(folder, content, overrides=()):
    """Return the errors of a study file, one line each, with the line: "x.toml:3: ..."."""
    with pytest.raises(ConfigError) as error:
        load(folder, content, overrides)
    assert [path.name for path in folder.iterdir()] == ["x.toml"]
    return str(error.value).replace(f"{folder}/", "").splitlines()


def errors_of(folder, content, overrides=()):
    """Return the errors of a study file, one line each, without the file's name and line."""
    lines = placed_errors_of(folder, content, overrides)
    return [re.sub(r"^x\.toml(:\d+)?: ", "", line) for line in lines]
