"""Figures of a study, one panel each, drawn from rows of the Store; and pictures of the method."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev
from typing import Any

import numpy as np
import optuna
from matplotlib.axes import Axes
from optuna.distributions import BaseDistribution, CategoricalDistribution

from ressmooth.report.compare import ArmResult, Comparison, conditions, samples
from ressmooth.report.cost import Cost, Curves
from ressmooth.report.export import Space, complete_trials, optuna_study, varied_parameters
from ressmooth.report.style import INK, Draw, colour, dash, legend, marker
from ressmooth.report.verdicts import condition_text
from ressmooth.spec.schema import StudySpec
from ressmooth.store import TrialRow

ZOOM = 20.0  # points of accuracy that a learning curve shows
CURVES = {  # column of an epoch -> label
    "val_acc": "validation accuracy (%)",
    "train_loss": "training loss",
    "val_loss": "validation loss",
}
UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))
# Values that the pictures of the method show
ALPHAS = (0.25, 0.5, 1.0, 2.0, 4.0)
SCALES = (0.25, 0.5, 0.75, 1.0)
WIDTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # the paper's b
MU = 0.75

Numbers = Mapping[str, int]  # arm -> number of its colour, the same in all panels


@dataclass(frozen=True)
class Panel:
    name: str
    caption: str
    draw: Draw


def accuracy_by_width(
    comparison: Comparison, trials: Sequence[TrialRow], numbers: Numbers
) -> Panel | None:
    """Draw accuracy against b, with SGD as a line. Return None if no arm has several widths."""
    by_arm = {}
    for arm in dict.fromkeys(trial.arm for trial in trials):
        tried = [t for t in complete_trials(trials, arm) if t.condition == comparison.condition]
        if len({trial.params.get("b") for trial in tried}) > 1:
            by_arm[arm] = tried
    if not by_arm:
        return None
    condition, statistic = condition_text(comparison.condition), comparison.statistic
    widths = [trial.params["b"] for tried in by_arm.values() for trial in tried]
    step = (max(widths) - min(widths)) / 80

    def draw(axes: Axes) -> None:
        for position, (arm, tried) in enumerate(by_arm.items()):
            _draw_widths(axes, numbers[arm], arm, tried, statistic, offset=position * step)
        for line in comparison.lines:
            if line.arm.method == "sgd":
                _draw_reference(axes, line.arm, trials, statistic)
        axes.set(xlabel="width b", ylabel=f"{statistic} accuracy (%)", title=condition)
        legend(axes)

    caption = (
        f"{statistic.capitalize()} accuracy against b, {condition}, one point per configuration. "
        "All are means over the seeds of the search, even if fresh seeds are reported. Bars and "
        "band show one standard deviation; a single seed has none."
    )
    return Panel(f"width-{statistic}-{_slug(condition)}", caption, draw)


def _draw_widths(
    axes: Axes, number: int, arm: str, trials: Sequence[TrialRow], statistic: str, offset: float
) -> None:
    """Draw one point per configuration. Offsets keep the bars of different arms apart."""
    in_order = sorted(trials, key=lambda trial: float(trial.params["b"]))
    points = [(trial.params["b"], samples(trial, "max")[statistic]) for trial in in_order]
    is_grid = len({b for b, _ in points}) == len(points)
    axes.errorbar(
        [b + offset for b, _ in points],
        [sample.mean for _, sample in points],
        [sample.sd or 0.0 for _, sample in points],
        color=colour(number),
        marker=marker(number),
        linestyle=dash(number) if is_grid and len(points) < 20 else "none",
        capsize=3,
        label=arm,
    )


def _draw_reference(axes: Axes, arm: ArmResult, trials: Sequence[TrialRow], statistic: str) -> None:
    """Draw SGD's selected trial, with the seeds of the search like the points."""
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

    def panel(column: str, label: str) -> Panel:
        def draw(axes: Axes) -> None:
            for arm in arms:
                _draw_band(axes, numbers[arm.name], arm, curves, column)
            if column == "val_acc":  # arms differ in the last points
                low, high = axes.get_ylim()
                axes.set_ylim(bottom=max(low, high - ZOOM))
            else:
                axes.set_yscale("log")
            axes.set(xlabel="epoch", ylabel=label, title=condition)
            legend(axes)

        seeds = ", ".join(f"{arm.name} n = {len(arm.runs)}" for arm in arms)
        what = f"{label.capitalize()} by epoch, {condition}"
        caption = f"{what}: mean and standard deviation over seeds ({seeds})."
        return Panel(f"curve-{column}-{_slug(condition)}", caption, draw)

    return [panel(column, label) for column, label in CURVES.items()]


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


def search_panels(spec: StudySpec, trials: Sequence[TrialRow]) -> list[Panel]:
    """Draw, per condition and arm, parameter importances and parallel coordinates."""
    panels, trained = [], conditions(trials)
    for condition, arm in product(trained, spec.arms):
        complete = [t for t in complete_trials(trials, arm) if t.condition == condition]
        space = varied_parameters(spec, arm, complete)
        title = arm if len(trained) == 1 else f"{arm}, {condition_text(condition)}"
        if len(space) > 1 and len(complete) > 3 and len({t.value for t in complete}) > 1:
            panels.append(_importances(title, complete, space))
        if space:
            panels.append(_parallel_coordinates(title, complete, space))
    return panels


def _importances(title: str, trials: Sequence[TrialRow], space: Space) -> Panel:
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    study = optuna_study(trials, space)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)

    def draw(axes: Axes) -> None:
        _draw_bars(axes, found, "%.2f", height=0.8)
        axes.set(xlabel="share of the variance (fANOVA)", xlim=(0, 1.12), title=title)

    caption = f"{title}: importance of each parameter for the accuracy, over {len(trials)} trials."
    return Panel(f"importances-{_slug(title)}", caption, draw)


def _parallel_coordinates(title: str, trials: Sequence[TrialRow], space: Space) -> Panel:
    accuracies = [trial.value or 0.0 for trial in trials]
    columns = [_Column(name, [t.params[name] for t in trials], d) for name, d in space.items()]
    columns.append(_Column("accuracy", accuracies, None))

    def draw(axes: Axes) -> None:
        best = max(accuracies)
        for number in np.argsort(accuracies):  # the best on top
            heights = [column.heights[number] for column in columns]
            if accuracies[number] == best:
                axes.plot(heights, color=colour(1), linewidth=2.0)
            else:
                alpha = 0.2 + 0.6 * heights[-1]
                axes.plot(heights, color=colour(0), linewidth=1.2, alpha=alpha)
        for x, column in enumerate(columns):
            axes.axvline(x, color=INK, linewidth=0.8)
            for height, text in column.marks:
                axes.annotate(text, (x, height), (4, 0), textcoords="offset points", va="center")
        axes.set_xticks(range(len(columns)), [column.name for column in columns])
        axes.set(title=title, yticks=[], xlim=(-0.1, len(columns) - 0.55))
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)

    caption = f"{title}: all {len(trials)} trials. Stronger lines are better; the best is orange."
    return Panel(f"parallel-{_slug(title)}", caption, draw)


class _Column:
    """An axis of parallel coordinates: values as heights in [0, 1], and labelled marks."""

    def __init__(
        self, name: str, values: Sequence[Any], distribution: BaseDistribution | None
    ) -> None:
        self.name = name
        if isinstance(distribution, CategoricalDistribution):
            labels = [str(choice) for choice in distribution.choices]
            last = max(1, len(labels) - 1)
            self.heights = [labels.index(str(value)) / last for value in values]
            self.marks = [(number / last, label) for number, label in enumerate(labels)]
            return
        is_log = getattr(distribution, "log", False)
        heights = np.log(values) if is_log else np.array(values, float)
        low, high = heights.min(), heights.max()
        form = "{:.2f}" if distribution is None else "{:.3g}"
        if low == high:
            self.heights = [0.5] * len(values)
            self.marks = [(0.5, form.format(values[0]))]
            return
        self.heights = list((heights - low) / (high - low))
        self.marks = [(0.0, form.format(min(values))), (1.0, form.format(max(values)))]


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
    return Panel(f"cost-epoch-{_slug(condition)}", caption, draw)


def _draw_bars(
    axes: Axes, values: dict[str, float], form: str = "%.3g", height: float = 0.6
) -> None:
    names = list(reversed(values))
    bars = axes.barh(names, [values[name] for name in names], color=colour(0), height=height)
    axes.bar_label(bars, fmt=form, padding=3, color=INK)
    axes.margins(x=0.18)
    axes.grid(axis="y", visible=False)


def _slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in text).split())


def sigmoids() -> list[Draw]:
    """Draw kappa = s / (1 + exp(-alpha d~)) for several alpha and for several s."""

    def draw(axes: Axes, title: str, curves: Sequence[tuple[float, float, str]]) -> None:
        residual = np.linspace(-4, 4, 201)
        for number, (scale, alpha, label) in enumerate(curves):
            kappa = scale / (1 + np.exp(-alpha * residual))
            axes.plot(residual, kappa, color=colour(number), label=label)
        axes.set(xlabel="normalised residual d̃", ylabel="diffusivity κ", ylim=(-0.03, 1.03))
        axes.set_title(title)
        axes.legend(loc="upper left")

    by_alpha = [(1.0, alpha, f"α = {alpha:g}") for alpha in ALPHAS]
    by_scale = [(scale, 1.0, f"s = {scale:g}") for scale in SCALES]
    return [
        lambda axes: draw(axes, "local: steepness α, at s = 1", by_alpha),
        lambda axes: draw(axes, "global: scale s, at α = 1", by_scale),
    ]


def annealings(laplace: Sequence[float] = WIDTHS, logistic: Sequence[float] = WIDTHS) -> list[Draw]:
    """Draw both curves of the scale over training, each for several widths b."""
    import torch  # which no other figure needs

    from ressmooth.smoothing import Laplace, Logistic

    def draw(axes: Axes, kind: type[Laplace] | type[Logistic], widths: Sequence[float]) -> None:
        progress = torch.linspace(0, 1, 501, dtype=torch.float64)
        for number, b in enumerate(widths):
            axes.plot(progress, kind(MU, b)(progress), color=colour(number), label=f"b = {b:g}")
        axes.set(xlabel="fraction of training", ylabel="scale s", ylim=(-0.03, 1.03))
        axes.set_title(f"{kind.__name__}, peak at μ = {MU:g}")
        axes.legend(loc="upper left")

    return [lambda axes: draw(axes, Laplace, laplace), lambda axes: draw(axes, Logistic, logistic)]


PICTURES = {"annealing": annealings, "sigmoid": sigmoids}
