"""What each arm has cost in time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ressmooth.arms import Arm
from ressmooth.phrases import duration
from ressmooth.store import EpochRow, TrialRow


@dataclass(frozen=True)
class Cost:
    arm: str
    runs: int
    epochs: int
    seconds: float  # of training, whatever came of it
    seconds_per_epoch: float | None  # median
    ratio: float | None  # of that to SGD's

    @property
    def row(self) -> list[str]:
        return [
            self.arm,
            str(self.runs),
            f"{self.epochs:,}",
            duration(self.seconds),
            "–" if self.seconds_per_epoch is None else f"{self.seconds_per_epoch:.3g}",
            "–" if self.ratio is None else f"{self.ratio:.2f}",
        ]


HEAD = ("arm", "runs", "epochs", "time", "s per epoch", "ratio to SGD")


def costs(
    trials: Sequence[TrialRow], arms: Sequence[Arm], curves: Mapping[int, Sequence[EpochRow]]
) -> list[Cost]:
    """Per arm, under all its conditions; the ratio only where all have the same problem."""
    names = list(dict.fromkeys(trial.arm for trial in trials))
    own = {name: _per_epoch([arm for arm in arms if arm.name == name], curves) for name in names}
    sgd = next((arm.name for arm in arms if arm.method == "sgd"), None)
    like = len({str(trial.condition) for trial in trials}) == 1
    reference = own[sgd] if sgd and like else None
    return [_cost(name, trials, own[name], reference) for name in names]


def _cost(
    name: str, trials: Sequence[TrialRow], own: float | None, reference: float | None
) -> Cost:
    runs = [run for trial in trials if trial.arm == name for run in trial.runs]
    return Cost(
        name,
        len(runs),
        sum(run.last_epoch for run in runs),
        sum(run.seconds or 0.0 for run in runs),
        own,
        own / reference if own and reference else None,
    )


def _per_epoch(arms: Iterable[Arm], curves: Mapping[int, Sequence[EpochRow]]) -> float | None:
    """Of the selected configuration; the median, since a machine may do other things too."""
    rows = [row for arm in arms for run in arm.runs for row in curves[run]]
    seconds = [row.seconds for row in rows if row.seconds]
    return median(seconds) if seconds else None
