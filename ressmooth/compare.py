"""Which arm did best: per arm the configuration that the study's own rule selects."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ressmooth.store import Winner


@dataclass(frozen=True)
class Arm:
    """An arm's selected configuration and its accuracies over seeds, in %."""

    name: str
    params: dict[str, Any]
    trials: int  # complete ones, from which this was selected
    value: float  # what it was selected by
    max_acc: tuple[float, ...]
    mean_acc: tuple[float, ...]
    test_acc: tuple[float, ...]


def arms(winners: Sequence[Winner]) -> list[Arm]:
    """The arms of a study that have a complete trial, in the order of the study."""
    return [_arm(winner) for winner in winners]


def _arm(winner: Winner) -> Arm:
    trial = winner.trial

    def accuracies(which: str) -> tuple[float, ...]:
        return tuple(v for run in trial.runs if (v := getattr(run, which)) is not None)

    return Arm(
        trial.arm,
        trial.params,
        winner.tried,
        trial.value or 0.0,
        accuracies("max_acc"),
        accuracies("mean_acc"),
        accuracies("test_acc"),
    )


def spread(values: Sequence[float]) -> str:
    """mean ± standard deviation; one value has no spread to speak of."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{fmean(values):.2f} ± {stdev(values):.2f}"
