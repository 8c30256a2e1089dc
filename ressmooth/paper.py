"""The paper's three tables as baseline rows: what every study can be compared with.

Accuracy in %, mean of five runs. A method has the name that `method_of` gives to a run's settings:
sgd, adam, adagrad, label smoothing, and laplace and logistic, which are "global ..." without the
local diffusivity.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

VERSION = 1  # of these rows in a Store; a correction is a new version and a migration
SEEDS = 5  # runs behind each figure

Problem = tuple[str, str, float]  # data set, network, fraction

TABLE_1 = """
             sgd:1e-2 sgd:1e-3 sgd:1e-4 sgd:1e-5 global_laplace global_logistic laplace logistic
    1  max   88.46    93.36    93.25    93.21    93.73          93.77           93.89   93.91
    1  mean  88.04    93.30    93.19    93.16    93.65          93.64           93.79   93.67
"""
TABLE_2 = """
             sgd:1e-2 sgd:1e-3 sgd:1e-4 sgd:1e-5 laplace logistic
    0.5    max     88.84    92.52    91.76    91.92    92.99   92.93
    0.5    mean    88.55    92.45    91.73    91.87    92.87   92.80
    0.25   max     88.46    91.32    90.55    90.58    91.75   91.73
    0.25   mean    88.27    91.25    90.52    90.53    91.65   91.58
    0.125  max     88.14    89.79    89.00    88.62    90.12   90.18
    0.125  mean    88.02    89.72    88.94    88.55    90.01   90.09
"""
TABLE_3 = """
                                     sgd   adam  adagrad label_smoothing laplace logistic
    resnet56           cifar10  max  92.66 90.50 87.67   92.36           92.93   92.89
    resnet56           cifar10  mean 92.54 89.86 86.47   92.21           92.78   92.74
    resnet56           cifar100 max  70.94 68.42 66.55   71.09           71.06   71.46
    resnet56           cifar100 mean 70.71 68.21 66.41   70.86           70.89   71.11
    resnet56           svhn     max  95.88 95.82 94.70   95.99           96.09   96.11
    resnet56           svhn     mean 95.83 95.37 94.36   95.95           96.05   96.06
    densenet_bc_100_12 cifar10  max  94.43 91.91 87.16   94.43           94.64   94.76
    densenet_bc_100_12 cifar10  mean 94.32 91.39 86.81   94.32           94.53   94.66
    densenet_bc_100_12 cifar100 max  75.41 67.37 58.66   75.30           75.67   75.75
    densenet_bc_100_12 cifar100 mean 75.22 66.75 58.44   75.12           75.46   75.31
    densenet_bc_100_12 svhn     max  96.82 96.11 95.10   96.86           96.89   96.97
    densenet_bc_100_12 svhn     mean 96.78 95.67 94.78   96.83           96.85   96.93
"""


@dataclass(frozen=True)
class Baseline:
    """One published figure."""

    table_name: str
    dataset: str
    model: str
    fraction: float
    method: str
    weight_decay: float
    statistic: str  # max: of the best epoch; mean: of the last tenth of the epochs
    value: float  # accuracy in %

    @property
    def problem(self) -> Problem:
        return self.dataset, self.model, self.fraction


def baselines() -> Iterator[Baseline]:
    """All 124, in the order of the tables."""
    for table, text in (("1", TABLE_1), ("2", TABLE_2)):
        columns, rows = _parse(text)
        for fraction, statistic, *values in rows:
            key = (table, "fashion_mnist", "resnet20", float(fraction))
            yield from _row(key, 1e-3, statistic, columns, values)
    columns, rows = _parse(TABLE_3)
    for model, dataset, statistic, *values in rows:
        yield from _row(("3", dataset, model, 1.0), 1e-4, statistic, columns, values)


def _parse(text: str) -> tuple[list[str], list[list[str]]]:
    columns, *rows = (line.split() for line in text.strip().splitlines())
    return columns, rows


def _row(
    key: tuple[str, str, str, float],
    decay: float,
    statistic: str,
    columns: list[str],
    values: list[str],
) -> Iterator[Baseline]:
    for column, value in zip(columns, values, strict=True):
        name, _, its_decay = column.partition(":")
        method = name.replace("_", " ")
        yield Baseline(*key, method, float(its_decay or decay), statistic, float(value))


def method_of(config: Mapping[str, Any]) -> str | None:
    """What the paper calls a run with these settings, if it has a name for it."""
    optimizer, method = config["optimizer"], config["method"]
    if method == "mse":
        return str(optimizer)
    if optimizer != "sgd":
        return None
    if method == "label_smoothing":
        return "label smoothing"
    if method == "smoothing" and config["distribution"] != "constant":
        return ("" if config["alpha"] else "global ") + str(config["distribution"])
    return None
