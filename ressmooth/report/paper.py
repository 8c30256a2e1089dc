"""What the paper says: its names for methods, its figures and its protocol.

The figures of its three tables are rows of the SQL table `baseline`, written by migration 0002.
Methods have the names there that `method_of` returns.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ressmooth.config import parse

if TYPE_CHECKING:
    from ressmooth.report.compare import ArmResult, Line
    from ressmooth.store import Problem, PublishedFigure

SEEDS = 5  # runs behind each published figure
# Our statistic -> the paper's. Its max was selected on the test set and its mean was not, so our
# test accuracy is compared with its mean.
STATISTICS = {"max": "max", "mean": "mean", "test": "mean"}
# Settings of its protocol. The second group applies to arms that smooth.
PROTOCOL = (
    *("epochs", "augmentation", "crop_padding", "padding", "batch_size", "drop_last"),
    *("lr", "schedule", "momentum", "selection"),
)
SMOOTHING_PROTOCOL = ("mu", "alpha", "layers", "cutoff")


def method_of(config: Mapping[str, Any]) -> str | None:
    """Return what the paper calls a run with these settings, or None.

    Names: sgd, adam, adagrad, label smoothing, laplace, logistic, and "global ..." for the last
    two without the local diffusivity.
    """
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


def problem(condition: Mapping[str, Any]) -> "Problem":
    """Return what published figures are found by."""
    return condition["dataset"], condition["model"], condition["fraction"]


def published_for(
    arm: "ArmResult", statistic: str, published: Iterable["PublishedFigure"]
) -> "PublishedFigure | None":
    """Return the paper's figure for the arm's method. Its figures are accuracies.

    That is the figure at the arm's weight decay if that is fixed and was published, and otherwise
    the best one, since the arm's own configuration is its best.
    """
    rows = [
        row
        for row in published
        if arm.measure.name == "accuracy"
        and row.problem == problem(arm.condition)
        and (row.method, row.statistic) == (arm.method, STATISTICS[statistic])
    ]
    if "weight_decay" not in arm.searched:
        fixed = [row for row in rows if row.weight_decay == arm.config["weight_decay"]]
        rows = fixed or rows
    return max(rows, key=lambda row: row.value, default=None)


def deviations(line: "Line") -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ from the paper's protocol: name -> (ours, the paper's)."""
    arm = line.arm
    protocol = parse({key: arm.config[key] for key in ("dataset", "optimizer")}).model_dump()
    keys = list(PROTOCOL)
    if arm.config["method"] == "smoothing":
        keys += SMOOTHING_PROTOCOL
    if line.published is not None:
        keys.append("weight_decay")
        protocol["weight_decay"] = line.published.weight_decay
    if arm.method and arm.method.startswith("global"):
        protocol["alpha"] = 0.0
    return {
        key: (arm.config[key], protocol[key])
        for key in keys
        # an earlier version may not have had a setting
        if arm.config.get(key, protocol[key]) != protocol[key] and key not in arm.searched
    }
