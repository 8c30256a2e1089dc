"""Parallel coordinates of a search, as one panel of a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from optuna.distributions import BaseDistribution, CategoricalDistribution

from ressmooth.report.compare import measure_of
from ressmooth.report.export import Space
from ressmooth.report.style import INK, Draw, colour
from ressmooth.store import TrialRow


@dataclass(frozen=True)
class Panel:
    name: str
    caption: str
    draw: Draw


def slug(text: str) -> str:
    return "-".join("".join(c if c.isalnum() or c in "._" else " " for c in text).split())


def parallel_coordinates(title: str, trials: Sequence[TrialRow], space: Space, note: str) -> Panel:
    measure = measure_of(trials[0])
    scores = [measure.score(trial.value or 0.0) for trial in trials]
    columns = [_Column(name, [t.params[name] for t in trials], d) for name, d in space.items()]
    columns.append(_Column(measure.label, [t.value or 0.0 for t in trials], None, measure.places))

    def draw(axes: Axes) -> None:
        best, worst = max(scores), min(scores)
        for number in np.argsort(scores):  # the best on top
            heights = [column.heights[number] for column in columns]
            if scores[number] == best:
                axes.plot(heights, color=colour(1), linewidth=2.0)
            else:
                alpha = 0.2 + 0.6 * (scores[number] - worst) / (best - worst)
                axes.plot(heights, color=colour(0), linewidth=1.2, alpha=alpha)
        for x, column in enumerate(columns):
            axes.axvline(x, color=INK, linewidth=0.8)
            for height, text in column.marks:
                offset = (3, 14 * (height - 0.5))  # beyond the lines, which end at 0 and 1
                axes.annotate(text, (x, height), offset, textcoords="offset points", va="center")
        names = [column.name for column in columns]
        slanted: Any = {"rotation": 25, "ha": "right"} if len(names) > 4 else {}
        axes.set_xticks(range(len(names)), names, **slanted)
        axes.set(title=title, yticks=[], xlim=(-0.1, len(columns) - 0.55))
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)

    caption = (
        f"{title}: {'' if note else 'all '}{len(trials)} complete trials. Stronger lines are "
        f"better; the best is orange.{note}"
    )
    return Panel(f"parallel-{slug(title)}", caption, draw)


class _Column:
    """An axis of parallel coordinates: values as heights in [0, 1], and labelled marks."""

    def __init__(
        self,
        name: str,
        values: Sequence[Any],
        distribution: BaseDistribution | None,
        places: int = 0,
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
        form = f"{{:.{places}f}}" if distribution is None else "{:.3g}"
        if low == high:
            self.heights = [0.5] * len(values)
            self.marks = [(0.5, form.format(values[0]))]
            return
        self.heights = list((heights - low) / (high - low))
        self.marks = [(0.0, form.format(min(values))), (1.0, form.format(max(values)))]
