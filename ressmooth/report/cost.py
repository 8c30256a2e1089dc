"""Training time of each arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ressmooth.formatting import duration
from ressmooth.report.compare import ArmResult, conditions
from ressmooth.report.measure import decimal
from ressmooth.report.reference import reference_or_itself
from ressmooth.report.verdicts import condition_text
from ressmooth.store import EpochRow, TrialRow

HEAD = ("arm", "condition", "runs", "epochs", "time", "s per epoch")

Curves = Mapping[int, Sequence[EpochRow]]  # by run


@dataclass(frozen=True)
class Cost:
    """The training time of an arm under one condition."""

    arm: str
    condition: str
    runs: int
    epochs: int  # that were trained, not those of another run's prefix
    seconds: float  # of all runs, whatever their state
    seconds_per_epoch: float | None  # median over the selected configuration
    ratio: float | None  # of seconds_per_epoch to the reference's

    @property
    def row(self) -> list[str]:
        return [
            self.arm,
            self.condition,
            str(self.runs),
            f"{self.epochs:,}",
            duration(self.seconds),
            "–" if self.seconds_per_epoch is None else f"{self.seconds_per_epoch:.3g}",
            decimal(self.ratio),
        ]


def costs(trials: Sequence[TrialRow], arms: Sequence[ArmResult], curves: Curves) -> list[Cost]:
    return [
        _cost([t for t in trials if (t.arm, t.condition) == (name, condition)], arms, curves)
        for condition in conditions(trials)
        for name in dict.fromkeys(t.arm for t in trials if t.condition == condition)
    ]


def _cost(trials: Sequence[TrialRow], arms: Sequence[ArmResult], curves: Curves) -> Cost:
    """Return the cost of the arm and condition that the trials share."""
    name, condition = trials[0].arm, trials[0].condition
    runs = [run for trial in trials for run in trial.runs]
    compared = [arm for arm in arms if arm.condition == condition]
    selected = [arm for arm in compared if arm.name == name]
    references = [reference_or_itself(arm, compared) for arm in selected]
    own = _seconds_per_epoch(selected, curves)
    base = _seconds_per_epoch(list(filter(None, references)), curves)
    return Cost(
        arm=name,
        condition=condition_text(condition),
        runs=len(runs),
        epochs=sum(run.trained_epochs for run in runs),
        seconds=sum(run.seconds or 0.0 for run in runs),
        seconds_per_epoch=own,
        ratio=own / base if own and base else None,
    )


def _seconds_per_epoch(arms: Sequence[ArmResult], curves: Curves) -> float | None:
    """Return the median, which other load on the machine affects least."""
    rows = [row for arm in arms for run in arm.runs for row in curves[run]]
    seconds = [row.seconds for row in rows if row.seconds]
    return median(seconds) if seconds else None
