"""What each arm has cost in time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ressmooth.formatting import duration
from ressmooth.report import verdicts
from ressmooth.report.compare import Arm, conditions
from ressmooth.store import EpochRow, TrialRow

HEAD = ("arm", "problem", "runs", "epochs", "time", "s per epoch", "ratio to SGD")


@dataclass(frozen=True)
class Cost:
    """Of an arm under one condition."""

    arm: str
    problem: str
    runs: int
    epochs: int
    seconds: float  # of training, whatever came of it
    seconds_per_epoch: float | None  # median
    ratio: float | None  # of that to SGD's

    @property
    def row(self) -> list[str]:
        return [
            self.arm,
            self.problem,
            str(self.runs),
            f"{self.epochs:,}",
            duration(self.seconds),
            "–" if self.seconds_per_epoch is None else f"{self.seconds_per_epoch:.3g}",
            "–" if self.ratio is None else f"{self.ratio:.2f}",
        ]


Curves = Mapping[int, Sequence[EpochRow]]


def costs(trials: Sequence[TrialRow], arms: Sequence[Arm], curves: Curves) -> list[Cost]:
    return [
        _cost(name, condition, trials, arms, curves)
        for condition in conditions(trials)
        for name in dict.fromkeys(t.arm for t in trials if t.condition == condition)
    ]


def _cost(
    name: str,
    condition: dict[str, Any],
    trials: Sequence[TrialRow],
    arms: Sequence[Arm],
    curves: Curves,
) -> Cost:
    mine = [t for t in trials if t.arm == name and t.condition == condition]
    runs = [run for trial in mine for run in trial.runs]
    beside = [arm for arm in arms if arm.condition == condition]
    own = _per_epoch([arm for arm in beside if arm.name == name], curves)
    sgd = _per_epoch([arm for arm in beside if arm.method == "sgd"], curves)
    return Cost(
        name,
        verdicts.problem(condition),
        len(runs),
        sum(run.last_epoch for run in runs),
        sum(run.seconds or 0.0 for run in runs),
        own,
        own / sgd if own and sgd else None,
    )


def _per_epoch(arms: Sequence[Arm], curves: Curves) -> float | None:
    """Of the selected configuration; the median, since a machine may do other things too."""
    rows = [row for arm in arms for run in arm.runs for row in curves[run]]
    seconds = [row.seconds for row in rows if row.seconds]
    return median(seconds) if seconds else None
