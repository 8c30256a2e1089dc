"""Figures of a study, one panel each, drawn from rows of the Store."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, product
from statistics import fmean, stdev
from typing import Any

import numpy as np
import optuna
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ressmooth.formatting import settings
from ressmooth.report.compare import ArmResult, Comparison, conditions, measure_of, samples
from ressmooth.report.cost import Cost, Curves
from ressmooth.report.export import (
    Space,
    complete_trials,
    optuna_study,
    sample,
    sample_note,
    varied_parameters,
)
from ressmooth.report.measure import Measure, capitalised
from ressmooth.report.parallel import Panel, parallel_coordinates, slug
from ressmooth.report.style import INK, colour, dash, legend, marker, scale_logarithmically
from ressmooth.report.verdicts import condition_text
from ressmooth.spec.schema import StudySpec
from ressmooth.store import State, TrialRow

ZOOM = 20.0  # points of a metric in % that a learning curve shows
LOSSES = {"train_loss": "training loss", "val_loss": "validation loss"}  # column -> label
UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))
MAX_POINTS = 1000  # of an arm in the history of a search
MIN_TRIALS = 10  # complete trials from which importances are estimated

Numbers = Mapping[str, int]  # arm -> number of its colour, the same in all panels


def metric_by_width(
    comparison: Comparison, trials: Sequence[TrialRow], numbers: Numbers
) -> Panel | None:
    """Draw the metric against b, with the reference as a line.

    Return None if no arm has several widths.
    """
    by_arm, note = {}, ""
    for arm in dict.fromkeys(trial.arm for trial in trials):
        tried = [t for t in complete_trials(trials, arm) if t.condition == comparison.condition]
        if len({trial.params.get("b") for trial in tried}) > 1:
            by_arm[arm] = sample(tried, comparison.measure.metric.is_higher_better)
            note = note or sample_note(len(by_arm[arm]), len(tried))
    if not by_arm:
        return None
    condition, statistic = condition_text(comparison.condition), comparison.statistic
    widths = [trial.params["b"] for tried in by_arm.values() for trial in tried]
    step = (max(widths) - min(widths)) / 80
    references = {
        line.reference.name: line.reference for line in comparison.lines if line.reference
    }
    measure = comparison.measure
    what = f"{measure.word(statistic)} {measure.label}"

    def draw(axes: Axes) -> None:
        for position, (arm, tried) in enumerate(by_arm.items()):
            _draw_widths(axes, numbers[arm], arm, tried, statistic, offset=position * step)
        for reference in references.values():
            _draw_reference(axes, reference, trials, statistic)
        ylabel = f"{measure.word(statistic)} {measure.axis}"
        axes.set(xlabel="width b", ylabel=ylabel, title=condition)
        legend(axes)

    caption = (
        f"{capitalised(what)} against b, {condition}, one point per configuration. "
        "All are means over the seeds of the search, even if fresh seeds are reported. Bars and "
        f"band show one standard deviation; a single seed has none.{note}"
    )
    return Panel(f"width-{statistic}-{slug(condition)}", caption, draw)


def _draw_widths(
    axes: Axes, number: int, arm: str, trials: Sequence[TrialRow], statistic: str, offset: float
) -> None:
    """Draw one point per configuration. Offsets keep the bars of different arms apart."""
    in_order = sorted(trials, key=lambda trial: float(trial.params["b"]))
    points = [(trial.params["b"], samples(trial, "max")[statistic]) for trial in in_order]
    # a line connects neighbours only if nothing else varies between them
    is_curve = len({settings({**t.params, "b": None}) for t in trials}) == 1 and len(points) < 20
    axes.errorbar(
        [b + offset for b, _ in points],
        [sample.mean for _, sample in points],
        [sample.sd or 0.0 for _, sample in points],
        color=colour(number),
        marker=marker(number),
        linestyle=dash(number) if is_curve else "none",
        capsize=3,
        label=arm,
    )


def _draw_reference(axes: Axes, arm: ArmResult, trials: Sequence[TrialRow], statistic: str) -> None:
    """Draw the reference's selected trial, with the seeds of the search like the points."""
    selected = next(
        trial
        for trial in complete_trials(trials, arm.name)
        if (trial.condition, trial.params) == (arm.condition, arm.params)
    )
    sample = samples(selected, "max")[statistic]
    axes.axhline(sample.mean, color=INK, linestyle="--", linewidth=1.2, label=arm.name)
    if sample.sd:
        low, high = sample.mean - sample.sd, sample.mean + sample.sd
        axes.axhspan(low, high, color=INK, alpha=0.1, linewidth=0)


def learning_curves(
    arms: Sequence[ArmResult], curves: Curves, condition: str, numbers: Numbers
) -> list[Panel]:
    """Draw the selected configurations: means over seeds, with bands of one standard deviation."""
    measure = arms[0].measure

    def panel(column: str, label: str) -> Panel:
        def draw(axes: Axes) -> None:
            for arm in arms:
                _draw_band(axes, numbers[arm.name], arm, curves, column)
            if label.endswith("(%)"):
                _zoom(axes, measure)
            else:
                scale_logarithmically(axes)
            axes.set(xlabel="epoch", ylabel=label, title=condition)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            legend(axes)

        seeds = ", ".join(f"{arm.name} n = {len(arm.runs)}" for arm in arms)
        what = f"{capitalised(label)} by epoch, {condition}"
        caption = f"{what}: mean and standard deviation over seeds ({seeds})."
        return Panel(f"curve-{column}-{slug(condition)}", caption, draw)

    columns = {measure.metric.column: f"validation {measure.axis}", **LOSSES}
    return [panel(column, label) for column, label in columns.items()]


def _zoom(axes: Axes, measure: Measure) -> None:
    """Show the best points, where arms differ."""
    low, high = axes.get_ylim()
    if measure.metric.is_higher_better:
        axes.set_ylim(bottom=max(low, high - ZOOM))
    else:
        axes.set_ylim(top=min(high, low + ZOOM))


def _draw_band(axes: Axes, number: int, arm: ArmResult, curves: Curves, column: str) -> None:
    by_epoch: dict[int, list[float]] = defaultdict(list)
    for run in arm.runs:
        for row in curves[run]:
            if (value := getattr(row, column)) is not None:
                by_epoch[row.epoch].append(value)
    epochs = sorted(by_epoch)
    means = np.array([fmean(by_epoch[epoch]) for epoch in epochs])
    spread = np.array([stdev(v) if len(v := by_epoch[epoch]) > 1 else 0.0 for epoch in epochs])
    shade = colour(number)
    line = axes.plot(epochs, means, color=shade, linestyle=dash(number), label=arm.name)[0]
    if len(epochs) == 1:  # a line through one point is invisible
        line.set_marker(marker(number))
    if spread.any():
        low, high = means - spread, means + spread
        axes.fill_between(epochs, low, high, color=shade, alpha=0.2, linewidth=0)


def search_panels(spec: StudySpec, trials: Sequence[TrialRow], numbers: Numbers) -> list[Panel]:
    """Draw the history of sampled searches, parameter importances and parallel coordinates."""
    panels, trained = [], conditions(trials)
    sampled = [trial for trial in trials if spec.arms[trial.arm].space and trial.confirms is None]
    for condition in conditions(sampled):
        searched = [trial for trial in sampled if trial.condition == condition]
        panels.append(_history(condition_text(condition), searched, numbers))
    for condition, arm in product(trained, spec.arms):
        complete = [t for t in complete_trials(trials, arm) if t.condition == condition]
        space = varied_parameters(spec, arm, complete)
        title = arm if len(trained) == 1 else f"{arm}, {condition_text(condition)}"
        is_estimable = len(complete) >= MIN_TRIALS and len({t.value for t in complete}) > 1
        shown = sample(complete, measure_of(complete[0]).metric.is_higher_better) if space else []
        note = sample_note(len(shown), len(complete))
        if len(space) > 1 and is_estimable:
            panels.append(_importances(title, spec, shown, space, note))
        if space:
            panels.append(parallel_coordinates(title, shown, space, note))
    return panels


def _history(condition: str, trials: Sequence[TrialRow], numbers: Numbers) -> Panel:
    """Draw all trials of each arm in their order, and the best value so far."""
    measure = measure_of(trials[0])
    by_arm = {
        arm: list(enumerate((t for t in trials if t.arm == arm), start=1))
        for arm in dict.fromkeys(trial.arm for trial in trials)
    }

    def draw(axes: Axes) -> None:
        for arm, numbered in by_arm.items():
            style: Any = {"color": colour(numbers[arm]), "linestyle": "none"}
            shown = numbered[:: 1 + len(numbered) // MAX_POINTS]
            complete = [(x, t.value) for x, t in shown if t.state == State.COMPLETE]
            ended = [(x, t.runs[0]) for x, t in shown if t.state == State.PRUNED]
            pruned = [(x, run.result(measure.name, "max")) for x, run in ended]
            axes.plot(*_xy(pruned), marker="x", alpha=0.6, **style)
            axes.plot(*_xy(complete), marker=marker(numbers[arm]), label=arm, **style)
            x, values = _xy([(x, t.value) for x, t in numbered if t.state == State.COMPLETE])
            best = list(accumulate(values, lambda *both: max(both, key=measure.score)))
            axes.step(x, best, where="post", color=style["color"])
        axes.set(xlabel="trial", ylabel=measure.axis, title=condition)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes)

    caption = (
        f"Trials in the order of the search, {condition}. The line is the best mean over seeds so "
        "far. Crosses are pruned trials, with their first seed's best "
        f"{measure.label} until then."
    )
    every = max(1 + len(numbered) // MAX_POINTS for numbered in by_arm.values())
    if every > 1:
        caption += f" Points are of one trial in {every}; the line is of all."
    return Panel(f"history-{slug(condition)}", caption, draw)


def _xy(points: Sequence[tuple[int, float | None]]) -> tuple[list[int], list[float]]:
    known = [(x, y) for x, y in points if y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _importances(
    title: str, spec: StudySpec, trials: Sequence[TrialRow], space: Space, note: str
) -> Panel:
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    study = optuna_study(spec, trials, space)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)

    def draw(axes: Axes) -> None:
        _draw_bars(axes, found, "%.2f", height=0.8)
        axes.set(xlabel="share of the variance (fANOVA)", xlim=(0, 1.12), title=title)

    caption = (
        f"{title}: importance of each parameter for the {measure_of(trials[0]).label}, "
        f"estimated from {len(trials)} "
        f"complete trials. Such an estimate is rough: take it as a hint.{note}"
    )
    return Panel(f"importances-{slug(title)}", caption, draw)


def cost_panels(costs: Sequence[Cost]) -> list[Panel]:
    """Draw the training time per arm, and the seconds per epoch under each condition."""
    seconds: dict[str, float] = defaultdict(float)
    for cost in costs:
        seconds[cost.arm] += cost.seconds
    if not any(seconds.values()):
        return []
    unit, size = next(((u, s) for u, s in UNITS if max(seconds.values()) >= s), UNITS[-1])

    def draw_total(axes: Axes) -> None:
        _draw_bars(axes, {arm: total / size for arm, total in seconds.items()})
        axes.set(xlabel=f"{unit} of training", title="time spent")

    trained = dict.fromkeys(cost.condition for cost in costs if cost.seconds_per_epoch)
    return [
        Panel("cost-time", "Training time per arm, summed over all its runs.", draw_total),
        *(_epoch_costs(c, [cost for cost in costs if cost.condition == c]) for c in trained),
    ]


def _epoch_costs(condition: str, costs: Sequence[Cost]) -> Panel:
    def draw(axes: Axes) -> None:
        _draw_bars(axes, {c.arm: c.seconds_per_epoch for c in costs if c.seconds_per_epoch})
        axes.set(xlabel="seconds per epoch (median)", title=condition)

    caption = f"Median seconds per epoch of each arm's selected configuration, {condition}."
    return Panel(f"cost-epoch-{slug(condition)}", caption, draw)


def _draw_bars(
    axes: Axes, values: dict[str, float], form: str = "%.3g", height: float = 0.6
) -> None:
    names = list(reversed(values))
    bars = axes.barh(names, [values[name] for name in names], color=colour(0), height=height)
    axes.bar_label(bars, fmt=form, padding=3, color=INK)
    axes.margins(x=0.18)
    axes.grid(axis="y", visible=False)
