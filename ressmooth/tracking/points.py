"""What MLflow is told of runs and studies: tags, and points of curves."""

from collections.abc import Sequence
from datetime import datetime

from ressmooth.arms import Arm
from ressmooth.phrases import settings
from ressmooth.store.recording import METRICS
from ressmooth.store.rows import EpochRow, RunRow, TrialRow

RESULTS = ("max_acc", "mean_acc", "test_acc")

Point = tuple[str, float, int, int]  # name, value, milliseconds since 1970, step


def of_epochs(epochs: Sequence[EpochRow]) -> list[Point]:
    return [
        (name, value, milliseconds(epoch.recorded_at), epoch.epoch)
        for epoch in epochs
        for name in METRICS
        if (value := getattr(epoch, name)) is not None
    ]


def of_results(run: RunRow) -> list[Point]:
    return [
        (name, value, milliseconds(run.finished_at), run.last_epoch)
        for name in RESULTS
        if (value := getattr(run, name)) is not None
    ]


def of_arms(trials: Sequence[TrialRow], arms: Sequence[Arm]) -> list[Point]:
    """Each arm's best value so far; the step is the number of its complete trials."""
    finished = {trial.id: trial.finished_at for trial in trials}
    return [
        (f"best/{label(arm, arms)}", arm.value, milliseconds(finished[arm.trial]), arm.tried)
        for arm in arms
    ]


def label(arm: Arm, arms: Sequence[Arm]) -> str:
    """Its name, and its condition where that varies, in characters that MLflow allows."""
    varying = {
        key: value
        for key, value in arm.condition.items()
        if any(other.condition.get(key) != value for other in arms)
    }
    return " ".join([arm.name, *(f"{key} {value}" for key, value in varying.items())])


def name(trial: TrialRow, run: RunRow) -> str:
    return " ".join(filter(None, (trial.arm, settings(trial.params), f"seed {run.seed}")))


def identity(trial: TrialRow, run: RunRow) -> dict[str, str]:
    """Tags that say which run it is."""
    return {
        "arm": trial.arm,
        "trial": str(trial.id),
        "seed": str(run.seed),
        "selection": str(run.config["selection"]),
    }


def facts(run: RunRow) -> dict[str, str]:
    """Tags that every attempt may change."""
    commit = run.git_commit or ""
    tags = {
        "host": run.host,
        "device": run.device,
        "threads": run.threads,
        "attempt": run.attempt,
        "mlflow.source.git.commit": commit.removesuffix("+") or None,
        "git_dirty": "true" if commit.endswith("+") else None,
        "weights_sha256": run.weights_sha256,
        "error": run.error or ("" if run.attempt > 1 else None),  # an earlier one may be there
        **{f"version.{package}": version for package, version in (run.versions or {}).items()},
    }
    return {key: str(value) for key, value in tags.items() if value is not None}


def selected(arms: Sequence[Arm]) -> dict[str, str]:
    """Tags that say what each arm did best with."""
    return {
        f"best.{label(arm, arms)}": f"{arm.value:.2f} % {settings(arm.params)}".rstrip()
        for arm in arms
    }


def milliseconds(moment: datetime | None) -> int:
    """Since 1970; 0 for a moment that has not been."""
    return round(moment.timestamp() * 1000) if moment else 0
