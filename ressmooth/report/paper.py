"""The paper's names for methods.

Its three tables are rows of the SQL table `baseline`, written by migration 0002. A method there
has the name that `method_of` returns.
"""

from collections.abc import Mapping
from typing import Any

SEEDS = 5  # runs behind each published figure


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
