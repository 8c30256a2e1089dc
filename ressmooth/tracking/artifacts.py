"""What MLflow shows of a run or a study: metrics, tags and files."""

import json
import warnings
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from optuna.visualization import (
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
    plot_slice,
)

from ressmooth.config import METRICS
from ressmooth.formatting import settings
from ressmooth.report import tables
from ressmooth.report.compare import Arm, Comparison
from ressmooth.report.export import complete_trials, optuna_study, varied
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store.rows import EpochRow, RunRow, TrialRow
from ressmooth.training import metrics

if TYPE_CHECKING:
    from ressmooth.store import EpochRow, RunRow, StudyRow, TrialRow

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


def write_run(directory: Path, run: "RunRow", title: str, curve: Sequence["EpochRow"]) -> None:
    """config.json, and curves.csv and curves.png if an epoch was trained."""
    (directory / "config.json").write_text(json.dumps(run.config, indent=1) + "\n")
    if not curve:
        return
    metrics.write_csv(directory / "curves.csv", curve)
    metrics.draw(curve, title).savefig(directory / "curves.png", dpi=100)


def write_study(
    directory: Path,
    study: "StudyRow",
    trials: Sequence["TrialRow"],
    comparisons: Sequence[Comparison],
) -> None:
    """study.toml, comparison.md and .csv, and search/ARM.html where something was searched."""
    (directory / "study.toml").write_text(study.file_text)
    spec = read_stored(study.spec)
    against = any(table.has_paper for table in comparisons)
    markdown = tables.markdown(comparisons, against_paper=against)
    (directory / "comparison.md").write_text(f"{markdown}\n")
    (directory / "comparison.csv").write_text(f"{tables.as_csv(comparisons)}\n")

    (directory / "search").mkdir()
    for arm in spec.arms:
        page = search_page(spec, arm, trials)
        if page is not None:
            (directory / "search" / f"{arm}.html").write_text(page)


def search_page(spec: StudySpec, arm: str, trials: Sequence["TrialRow"]) -> str | None:
    """One HTML file that needs nothing else; None if the arm's trials have nothing to show."""
    complete = complete_trials(trials, arm)
    axes = varied(spec, arm, complete)
    if not axes:
        return None
    study = optuna_study(complete, axes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few trials: importances are rough, as anyone can see
        figures = [
            plot(study, target_name="accuracy (%)")
            for plot in (
                plot_optimization_history,
                plot_param_importances,
                plot_parallel_coordinate,
                plot_slice,
            )
        ]
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=number == 0)
        for number, figure in enumerate(figures)
    ]
    title = escape(f"{spec.name}: {arm}")
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>"
    )
