"""Build what MLflow shows of a run or a study: metrics, tags, files and the search page."""

import json
import warnings
from collections.abc import Sequence
from datetime import datetime
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from ressmooth.config import METRICS
from ressmooth.formatting import settings
from ressmooth.report import tables
from ressmooth.report.compare import ArmResult, Comparison
from ressmooth.report.export import complete_trials, optuna_study, varied_parameters
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import EpochRow, RunRow, StudyRow, TrialRow
from ressmooth.training import metrics

# name, value, milliseconds since 1970, step: the fields of `mlflow.entities.Metric`
MetricPoint = tuple[str, float, int, int]


def epoch_metrics(epochs: Sequence[EpochRow]) -> list[MetricPoint]:
    points = (_points(epoch, METRICS, epoch.recorded_at, epoch.epoch) for epoch in epochs)
    return list(chain.from_iterable(points))


def result_metrics(run: RunRow) -> list[MetricPoint]:
    return _points(run, ("max_acc", "mean_acc", "test_acc"), run.finished_at, run.last_epoch)


def _points(row: Any, names: Sequence[str], time: datetime | None, step: int) -> list[MetricPoint]:
    values = ((name, getattr(row, name)) for name in names)
    return [(name, value, milliseconds(time), step) for name, value in values if value is not None]


def arm_metrics(trials: Sequence[TrialRow], arms: Sequence[ArmResult]) -> list[MetricPoint]:
    """Return the best value of each arm. The step is the number of its complete trials."""
    finished = {trial.id: trial.finished_at for trial in trials}
    return [
        (f"best/{_label(arm, arms)}", arm.value, milliseconds(finished[arm.trial]), arm.tried)
        for arm in arms
    ]


def milliseconds(time: datetime | None) -> int:
    """Return the milliseconds since 1970, or 0 without a time."""
    return round(time.timestamp() * 1000) if time else 0


def _label(arm: ArmResult, arms: Sequence[ArmResult]) -> str:
    """Return an arm's name and the part of its condition that varies."""
    varying = [
        f"{key} {value}"  # MLflow does not allow "=" in a metric's name
        for key, value in arm.condition.items()
        if any(other.condition.get(key) != value for other in arms)
    ]
    return " ".join([arm.name, *varying])


def identity_tags(trial: TrialRow, run: RunRow) -> dict[str, str]:
    return {
        "arm": trial.arm,
        "trial": str(trial.id),
        "seed": str(run.seed),
        "selection": str(run.config["selection"]),
    }


def environment_tags(run: RunRow) -> dict[str, str]:
    """Return the tags that each attempt of a run may change."""
    commit = run.git_commit or ""
    tags = {
        "host": run.host,
        "device": run.device,
        "threads": run.threads,
        "attempt": run.attempt,
        "mlflow.source.git.commit": commit.removesuffix("+") or None,
        "git_dirty": "true" if commit.endswith("+") else None,
        "weights_sha256": run.weights_sha256,
        # an empty value replaces the error of an earlier attempt
        "error": run.error or ("" if run.attempt > 1 else None),
        **{f"version.{package}": version for package, version in (run.versions or {}).items()},
    }
    return {key: str(value) for key, value in tags.items() if value is not None}


def selection_tags(arms: Sequence[ArmResult]) -> dict[str, str]:
    """Return the selected configuration of each arm, with its accuracy."""
    return {
        f"best.{_label(arm, arms)}": f"{arm.value:.2f} % {settings(arm.params)}".rstrip()
        for arm in arms
    }


def write_run(directory: Path, run: RunRow, title: str, curve: Sequence[EpochRow]) -> None:
    """Write config.json, and curves.csv and curves.png if an epoch was trained."""
    (directory / "config.json").write_text(json.dumps(run.config, indent=1) + "\n")
    if curve:
        metrics.write_csv(directory / "curves.csv", curve)
        metrics.draw(curve, title).savefig(directory / "curves.png", dpi=100)


def write_study(
    directory: Path, study: StudyRow, trials: Sequence[TrialRow], comparisons: Sequence[Comparison]
) -> None:
    """Write study.toml, comparison.md, comparison.csv, and search/ARM.html for searched arms."""
    (directory / "study.toml").write_text(study.file_text)
    markdown = tables.markdown(comparisons, against_paper=any(t.has_paper for t in comparisons))
    (directory / "comparison.md").write_text(f"{markdown}\n")
    (directory / "comparison.csv").write_text(f"{tables.as_csv(comparisons)}\n")

    (directory / "search").mkdir()
    spec = read_stored(study.spec)
    for arm in spec.arms:
        if page := search_page(spec, arm, trials):
            (directory / "search" / f"{arm}.html").write_text(page)


def search_page(spec: StudySpec, arm: str, trials: Sequence[TrialRow]) -> str | None:
    """Return Optuna's plots of an arm as a self-contained page, or None if no setting varies."""
    complete = complete_trials(trials, arm)
    space = varied_parameters(spec, arm, complete)
    if not space:
        return None
    # imported here because plotly is slow to load and the launcher imports this module
    from optuna import visualization

    plots = (
        visualization.plot_optimization_history,
        visualization.plot_param_importances,
        visualization.plot_parallel_coordinate,
        visualization.plot_slice,
    )
    study = optuna_study(complete, space)
    parts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that importances of few trials are rough
        for plot in plots:
            figure = plot(study, target_name="accuracy (%)")
            parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))
    title = escape(f"{spec.name}: {arm}")
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>"
    )
