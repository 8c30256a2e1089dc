"""Build what MLflow shows of a run or a study: metrics, tags, files and the search page."""

import json
import warnings
from collections.abc import Sequence
from datetime import datetime
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from ressmooth.config import METRICS, used_settings
from ressmooth.formatting import settings
from ressmooth.report import tables
from ressmooth.report.compare import ArmResult, Comparison, by_selecting_statistic
from ressmooth.report.export import complete_trials, optuna_study, sample, varied_parameters
from ressmooth.report.measure import MEASURES, Measure
from ressmooth.report.race import race_sheet
from ressmooth.report.sheet import as_markdown
from ressmooth.report.verdicts import sample_text
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import EpochRow, Placing, RunRow, StudyRow, TrialRow
from ressmooth.training import metrics

# name, value, milliseconds since 1970, step: the fields of `mlflow.entities.Metric`
MetricPoint = tuple[str, float, int, int]
RESULTS = ("max_acc", "mean_acc", "test_acc")
UNITS = {  # MLflow's names of SQL columns with a unit; the other names are the same
    **{name: f"{name}_percent" for name in ("train_acc", "val_acc", *RESULTS)},
    "seconds": "epoch_seconds",
    # as MLflow calls its own system metrics; 0 is the run's GPU
    "gpu_memory_mib": "system/gpu_0_memory_usage_megabytes",
    "gpu_utilization_percent": "system/gpu_0_utilization_percentage",
    "gpu_power_watts": "system/gpu_0_power_usage_watts",
}
FACTORS = {"gpu_memory_mib": 2**20 / 1e6}  # where MLflow's unit differs from that of the column
VALIDATION_SET = {
    "paper": "the test set, as in the paper",
    "holdout": "a tenth of the training set",
}


def epoch_metrics(epochs: Sequence[EpochRow]) -> list[MetricPoint]:
    points = (_points(epoch, METRICS, epoch.recorded_at, epoch.epoch) for epoch in epochs)
    return list(chain.from_iterable(points))


def result_metrics(run: RunRow) -> list[MetricPoint]:
    """Return the accuracies at the end of a run, and its metric if that is another."""
    points = _points(run, RESULTS, run.finished_at, run.last_epoch)
    metric = run.config.get("metric", "accuracy")
    for statistic, value in (run.metrics or {}).get(metric, {}).items():
        name = figure_name(MEASURES[metric], statistic)
        points.append((name, value, milliseconds(run.finished_at), run.last_epoch))
    return points


def figure_name(measure: Measure, statistic: str) -> str:
    """Return MLflow's name of a figure of a run: max_acc_percent, best_nll"""
    if measure.name == "accuracy":
        return UNITS[f"{statistic}_acc"]
    return f"{measure.word(statistic)}_{measure.name}" + ("_percent" if measure.unit else "")


def _points(row: Any, names: Sequence[str], time: datetime | None, step: int) -> list[MetricPoint]:
    return [
        (UNITS.get(name, name), value * FACTORS.get(name, 1), milliseconds(time), step)
        for name in names
        if (value := getattr(row, name)) is not None
    ]


def comparison_metrics(
    trials: Sequence[TrialRow], comparisons: Sequence[Comparison]
) -> list[MetricPoint]:
    """Return the figures of the comparison. The step is the number of an arm's trials."""
    finished = {trial.id: milliseconds(trial.finished_at) for trial in trials}
    arms = [line.arm for table in comparisons for line in table.lines]
    return [
        (
            f"{figure_name(table.measure, table.statistic)}/{_label(line.arm, arms)}",
            line.sample.mean,
            finished[line.arm.trial],
            line.arm.tried,
        )
        for table in comparisons
        for line in table.lines
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


def owner_tags(study: StudyRow) -> dict[str, str]:
    """Return who submitted the study, which MLflow shows as the user of its runs."""
    return {"mlflow.user": study.owner} if study.owner else {}


def identity_tags(trial: TrialRow, run: RunRow) -> dict[str, str]:
    return {
        "arm": trial.arm,
        "trial": str(trial.id),
        "seed": str(run.seed),
        "selection": str(run.config["selection"]),
        "validation_set": VALIDATION_SET[run.config["selection"]],
    }


def state_tags(run: RunRow) -> dict[str, str]:
    """Return the tags that may change during a run, or with another attempt."""
    commit = run.git_commit or ""
    tags = {
        "state": run.state,
        "host": run.host,
        "device": run.device,
        "threads": run.threads,
        "attempt": run.attempt,
        "mlflow.source.git.commit": commit.removesuffix("+") or None,
        "git_dirty": "true" if commit.endswith("+") else None,
        "weights_sha256": run.weights_sha256,
        "forked_from": run.forked_from,
        "forked_at_epoch": run.forked_at,
        # an empty value replaces the error of an earlier attempt
        "error": run.error or ("" if run.attempt > 1 else None),
        **{f"version.{package}": version for package, version in (run.versions or {}).items()},
    }
    return {key: str(value) for key, value in tags.items() if value is not None}


def selection_tags(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Return the selected configuration of each arm, with its figure in the comparison."""
    lines = [line for table in by_selecting_statistic(comparisons) for line in table.lines]
    arms = [line.arm for line in lines]
    return {
        f"best.{_label(line.arm, arms)}": (
            f"{sample_text(line.sample, line.arm.measure)} {settings(line.arm.params)}"
        ).rstrip()
        for line in lines
    }


def write_run(directory: Path, run: RunRow, title: str, curve: Sequence[EpochRow]) -> None:
    """Write config.json, and curves.csv and curves.png if an epoch was trained."""
    (directory / "config.json").write_text(json.dumps(run.config, indent=1) + "\n")
    if curve:
        metrics.write_csv(directory / "curves.csv", curve)
        metrics.draw(curve, title).savefig(directory / "curves.png", dpi=100)


def shown_settings(run: RunRow) -> dict[str, Any]:
    """Return the settings that a run uses, those of plug-ins included."""
    used = {key: run.config[key] for key in used_settings(run.config) if key in run.config}
    return {**used, **run.config.get("plugin_settings", {})}


def plugin_tags(study: StudyRow) -> dict[str, str]:
    """Return the SHA-256 of each plug-in."""
    return {f"plugin.{p.file}": p.sha256 for p in read_stored(study.spec).plugins.files}


def write_study(
    directory: Path,
    study: StudyRow,
    trials: Sequence[TrialRow],
    comparisons: Sequence[Comparison],
    placings: Sequence[Placing],
) -> None:
    """Write study.toml, comparison.md and .csv, plugins/, and search/ARM.html for searched arms."""
    (directory / "study.toml").write_text(study.file_text)
    markdown = tables.markdown(comparisons, against_paper=any(t.has_paper for t in comparisons))
    if race := race_sheet(trials, placings):
        markdown += f"\n\n**{race.title}**\n\n{as_markdown(race)}"
    (directory / "comparison.md").write_text(f"{markdown}\n")
    (directory / "comparison.csv").write_text(f"{tables.as_csv(comparisons)}\n")

    spec = read_stored(study.spec)
    if spec.plugins.files:
        (directory / "plugins").mkdir()
    for plugin in spec.plugins.files:
        (directory / "plugins" / plugin.file).write_text(plugin.source)
    (directory / "search").mkdir()
    for arm in spec.arms:
        if page := search_page(spec, arm, trials):
            (directory / "search" / f"{arm}.html").write_text(page)


def search_page(spec: StudySpec, arm: str, trials: Sequence[TrialRow]) -> str | None:
    """Return Optuna's plots of an arm as a self-contained page, or None if no setting varies."""
    complete = complete_trials(trials, arm)
    complete = sample(complete, MEASURES[spec.metric].metric.is_higher_better)
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
    study = optuna_study(spec, complete, space)
    parts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that importances of few trials are rough
        for plot in plots:
            figure = plot(study, target_name=MEASURES[spec.metric].axis)
            parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts))
    title = escape(f"{spec.name}: {arm}")
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>"
    )
