"""A study in pictures, one panel each; every value is a row of the Store."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution

from ressmooth.report import verdicts
from ressmooth.report.compare import Arm, Comparison, conditions, samples
from ressmooth.report.cost import Cost
from ressmooth.report.export import complete_trials, optuna_study, varied
from ressmooth.report.style import INK, Draw, colour, dash, legend, marker
from ressmooth.smoothing import Laplace, Logistic
from ressmooth.spec.schema import StudySpec
from ressmooth.store import EpochRow, TrialRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ZOOM = 20.0  # points of accuracy that a learning curve shows
UNITS = (("hours", 3600), ("minutes", 60), ("seconds", 1))
Space = dict[str, BaseDistribution]
CURVES = {  # column of an epoch -> what it is
    "val_acc": "validation accuracy (%)",
    "train_loss": "training loss",
    "val_loss": "validation loss",
}


@dataclass(frozen=True)
class Panel:
    name: str
    caption: str
    draw: Draw


def accuracy_by_width(
    comparison: Comparison, trials: Sequence[TrialRow], numbers: Mapping[str, int]
) -> Panel | None:
    """Accuracy against b with the SGD baseline as a line: the paper's figure, per condition."""
    by_arm = {
        arm: [
            trial
            for trial in complete_trials(trials, arm)
            if "b" in trial.params and trial.condition == comparison.condition
        ]
        for arm in dict.fromkeys(trial.arm for trial in trials)
    }
    by_arm = {arm: t for arm, t in by_arm.items() if len({x.params["b"] for x in t}) > 1}
    if not by_arm:
        return None
    where = verdicts.problem(comparison.condition)
    widths = [trial.params["b"] for tried in by_arm.values() for trial in tried]
    reach = max(widths) - min(widths)

    def draw(axes: "Axes") -> None:
        for place, (arm, tried) in enumerate(by_arm.items()):
            aside = place * reach / 80
            _widths(axes, numbers[arm], arm, tried, comparison.statistic, aside)
        for line in comparison.lines:
            if line.arm.method == "sgd":
                _level(axes, line.arm, trials, comparison.statistic)
        axes.set(xlabel="width b", ylabel=f"{comparison.statistic} accuracy (%)", title=where)
        legend(axes)

    caption = (
        f"{comparison.statistic.capitalize()} accuracy against b, {where}, a point for each "
        "configuration. All are means over the seeds of the search, also where fresh ones are "
        "reported; bars and band are one standard deviation, and a single seed has none."
    )
    return Panel(f"width-{comparison.statistic}-{_slug(where)}", caption, draw)


def _widths(
    axes: "Axes", number: int, arm: str, trials: Sequence[TrialRow], statistic: str, aside: float
) -> None:
    """One point per configuration; arms a little aside, or their bars would hide each other."""
    in_order = sorted(trials, key=lambda trial: float(trial.params["b"]))
    points = [(trial.params["b"], samples(trial, "max")[statistic]) for trial in in_order]
    is_grid = len({b for b, _ in points}) == len(points)
    axes.errorbar(
        [b + aside for b, _ in points],
        [sample.mean for _, sample in points],
        [sample.sd or 0.0 for _, sample in points],
        color=colour(number),
        marker=marker(number),
        linestyle=dash(number) if is_grid and len(points) < 20 else "none",
        capsize=3,
        label=arm,
    )


def _level(axes: "Axes", arm: Arm, trials: Sequence[TrialRow], statistic: str) -> None:
    """Of the search, as the points are, even if fresh seeds are reported."""
    chosen = next(
        trial
        for trial in complete_trials(trials, arm.name)
        if (trial.condition, trial.params) == (arm.condition, arm.params)
    )
    sample = samples(chosen, "max")[statistic]
    axes.axhline(sample.mean, color=INK, linestyle="--", linewidth=1.2, label=arm.name)
    if sample.sd:
        low, high = sample.mean - sample.sd, sample.mean + sample.sd
        axes.axhspan(low, high, color=INK, alpha=0.1, linewidth=0)


def learning_curves(
    arms: Sequence[Arm],
    curves: Mapping[int, list[EpochRow]],
    where: str,
    numbers: Mapping[str, int],
) -> list[Panel]:
    """Of the selected configurations: the mean over seeds, and a band of one standard deviation."""

    def panel(column: str, what: str) -> Panel:
        def draw(axes: "Axes") -> None:
            for arm in arms:
                runs = [curves[run] for run in arm.runs]
                _band(axes, numbers[arm.name], arm.name, runs, column)
            if column == "val_acc":
                _zoom(axes)
            else:
                axes.set_yscale("log")
            axes.set(xlabel="epoch", ylabel=what, title=where)
            legend(axes)

        seeds = ", ".join(f"{arm.name} n = {len(arm.runs)}" for arm in arms)
        caption = f"{what.capitalize()} by epoch, {where}: mean and standard deviation over seeds"
        return Panel(f"curve-{column}-{_slug(where)}", f"{caption} ({seeds}).", draw)

    return [panel(column, what) for column, what in CURVES.items()]


def _zoom(axes: "Axes") -> None:
    """Where the arms differ: not more than the last points of a long way up."""
    low, high = axes.get_ylim()
    axes.set_ylim(bottom=max(low, high - ZOOM))


def _band(
    axes: "Axes", number: int, label: str, curves: Iterable[list[EpochRow]], column: str
) -> None:
    by_epoch: dict[int, list[float]] = defaultdict(list)
    for curve in curves:
        for row in curve:
            if (value := getattr(row, column)) is not None:
                by_epoch[row.epoch].append(value)
    epochs = sorted(by_epoch)
    means = np.array([fmean(by_epoch[epoch]) for epoch in epochs])
    spread = np.array([stdev(v) if len(v := by_epoch[epoch]) > 1 else 0.0 for epoch in epochs])
    line = axes.plot(epochs, means, color=colour(number), linestyle=dash(number), label=label)[0]
    if len(epochs) == 1:  # a line through one point is invisible
        line.set_marker(marker(number))
    if spread.any():
        low, high = means - spread, means + spread
        axes.fill_between(epochs, low, high, color=colour(number), alpha=0.2, linewidth=0)


def search(spec: StudySpec, trials: Sequence[TrialRow]) -> list[Panel]:
    """Per condition and arm what mattered, and every trial as a line through its parameters."""
    panels = []
    trained = conditions(trials)
    for condition, arm in product(trained, spec.arms):
        complete = [t for t in complete_trials(trials, arm) if t.condition == condition]
        axes = varied(spec, arm, complete)
        title = arm if len(trained) == 1 else f"{arm}, {verdicts.problem(condition)}"
        differ = len({trial.value for trial in complete}) > 1
        if len(axes) > 1 and len(complete) > 3 and differ:
            panels.append(_importances(title, complete, axes))
        if axes:
            panels.append(_parallel(title, complete, axes))
    return panels


def _importances(title: str, trials: Sequence[TrialRow], axes: Space) -> Panel:
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    study = optuna_study(trials, axes)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)

    def draw(plot: "Axes") -> None:
        names = list(reversed(found))
        bars = plot.barh(names, [found[name] for name in names], color=colour(0))
        plot.bar_label(bars, fmt="%.2f", padding=3, color=INK)
        plot.set(xlabel="share of the variance (fANOVA)", xlim=(0, 1.12), title=title)
        plot.grid(axis="y", visible=False)

    caption = f"{title}: which parameters its accuracy depends on, over {len(trials)} trials."
    return Panel(f"importances-{_slug(title)}", caption, draw)


def _parallel(title: str, trials: Sequence[TrialRow], axes: Space) -> Panel:
    accuracies = [trial.value or 0.0 for trial in trials]
    columns = [_Column(name, [t.params[name] for t in trials], axis) for name, axis in axes.items()]
    columns.append(_Column("accuracy", accuracies, None))

    def draw(plot: "Axes") -> None:
        best = max(accuracies)
        for number in np.argsort(accuracies):  # the best on top
            heights = [column.heights[number] for column in columns]
            is_best = accuracies[number] == best
            style = (colour(1), 2.0, 1.0) if is_best else (colour(0), 1.2, 0.2 + 0.6 * heights[-1])
            plot.plot(heights, color=style[0], linewidth=style[1], alpha=style[2])
        for at, column in enumerate(columns):
            plot.axvline(at, color=INK, linewidth=0.8)
            for height, text in column.marks:
                plot.annotate(text, (at, height), (4, 0), textcoords="offset points", va="center")
        plot.set_xticks(range(len(columns)), [column.name for column in columns])
        plot.set(title=title, yticks=[], xlim=(-0.1, len(columns) - 0.55))
        plot.grid(visible=False)
        plot.spines[["left", "bottom"]].set_visible(False)

    caption = f"{title}: its {len(trials)} trials, the better the stronger, the best in orange."
    return Panel(f"parallel-{_slug(title)}", caption, draw)


class _Column:
    """An axis of parallel coordinates: values as heights in [0, 1]."""

    def __init__(self, name: str, values: Sequence[Any], axis: BaseDistribution | None) -> None:
        self.name = name
        if isinstance(axis, CategoricalDistribution):
            labels = [str(choice) for choice in axis.choices]
            last = max(1, len(labels) - 1)
            self.heights = [labels.index(str(value)) / last for value in values]
            self.marks = [(number / last, label) for number, label in enumerate(labels)]
            return
        is_log = getattr(axis, "log", False)
        heights = np.log(values) if is_log else np.array(values, float)
        low, high = heights.min(), heights.max()
        form = "{:.2f}" if axis is None else "{:.3g}"
        if low == high:
            self.heights = [0.5] * len(values)
            self.marks = [(0.5, form.format(values[0]))]
            return
        self.heights = list((heights - low) / (high - low))
        self.marks = [(0.0, form.format(min(values))), (1.0, form.format(max(values)))]


def costs(found: Sequence[Cost]) -> list[Panel]:
    together: dict[str, float] = defaultdict(float)
    for cost in found:
        together[cost.arm] += cost.seconds
    unit, size = next(((u, s) for u, s in UNITS if max(together.values()) >= s), UNITS[-1])

    def total(axes: "Axes") -> None:
        _bars(axes, {arm: seconds / size for arm, seconds in together.items()})
        axes.set(xlabel=f"{unit} of training", title="time spent")

    caption = "Time of training per arm, all its runs together."
    problems = dict.fromkeys(cost.problem for cost in found if cost.seconds_per_epoch)
    return [
        Panel("cost-time", caption, total),
        *(_epoch_costs(where, [c for c in found if c.problem == where]) for where in problems),
    ]


def _epoch_costs(where: str, found: Sequence[Cost]) -> Panel:
    def draw(axes: "Axes") -> None:
        _bars(axes, {c.arm: c.seconds_per_epoch for c in found if c.seconds_per_epoch})
        axes.set(xlabel="seconds per epoch (median)", title=where)

    caption = f"Median seconds per epoch of each arm's selected runs, {where}."
    return Panel(f"cost-epoch-{_slug(where)}", caption, draw)


def _bars(axes: "Axes", values: dict[str, float]) -> None:
    names = list(reversed(values))
    bars = axes.barh(names, [values[name] for name in names], color=colour(0), height=0.6)
    axes.bar_label(bars, fmt="%.3g", padding=3, color=INK)
    axes.margins(x=0.18)
    axes.grid(axis="y", visible=False)


def _slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in text).split())


ALPHAS = (0.25, 0.5, 1.0, 2.0, 4.0)
SCALES = (0.25, 0.5, 0.75, 1.0)
WIDTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # the paper's b
MU = 0.75


def sigmoids() -> list[Draw]:
    """kappa = s / (1 + exp(-alpha d~)), for several alpha and for several s."""

    def by_alpha(axes: "Axes") -> None:
        _sigmoids(axes, [(1.0, alpha, f"α = {alpha:g}") for alpha in ALPHAS])
        axes.set_title("local: steepness α, at s = 1")

    def by_scale(axes: "Axes") -> None:
        _sigmoids(axes, [(scale, 1.0, f"s = {scale:g}") for scale in SCALES])
        axes.set_title("global: scale s, at α = 1")

    return [by_alpha, by_scale]


def _sigmoids(axes: "Axes", curves: Sequence[tuple[float, float, str]]) -> None:
    normalised = np.linspace(-4, 4, 201)
    for number, (scale, alpha, label) in enumerate(curves):
        kappa = scale * torch.sigmoid(alpha * torch.from_numpy(normalised))
        axes.plot(normalised, kappa, color=colour(number), label=label)
    axes.set(xlabel="normalised residual d̃", ylabel="diffusivity κ", ylim=(-0.03, 1.03))
    axes.legend(loc="upper left")


def annealings(laplace: Sequence[float] = WIDTHS, logistic: Sequence[float] = WIDTHS) -> list[Draw]:
    """Both curves of the scale over training, each for several widths b."""

    def draw(axes: "Axes", kind: type[Laplace] | type[Logistic], widths: Sequence[float]) -> None:
        progress = torch.linspace(0, 1, 501, dtype=torch.float64)
        for number, b in enumerate(widths):
            axes.plot(progress, kind(MU, b)(progress), color=colour(number), label=f"b = {b:g}")
        axes.set(xlabel="fraction of training", ylabel="scale s", ylim=(-0.03, 1.03))
        axes.set_title(f"{kind.__name__}, peak at μ = {MU:g}")
        axes.legend(loc="upper left")

    return [lambda axes: draw(axes, Laplace, laplace), lambda axes: draw(axes, Logistic, logistic)]


PICTURES = {"annealing": annealings, "sigmoid": sigmoids}
