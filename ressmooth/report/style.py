"""How our pictures look: one ink, colours that colour-blind eyes tell apart, light and dark."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette without its black and yellow, which one background would hide.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "os^Dv*"
DASHES = ("-", "--", "-.", ":")
INK = "#010203"  # black on paper; on a page the colour of its text
SIZE = (5.0, 3.4)  # inches: readable on a phone
RC: Any = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "font.size": 10,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}

Draw = Callable[["Axes"], None]


def picture(*panels: Draw) -> Figure:
    """Panels beside each other."""
    with matplotlib.rc_context(RC):
        width, height = SIZE
        figure = Figure(figsize=(width * len(panels), height), layout="constrained")
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, draw in zip(row, panels, strict=True):
            draw(axes)
    return figure


def legend(axes: "Axes") -> None:
    """Below the panel, where it hides nothing."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    names = len(axes.get_legend_handles_labels()[1])
    figure.legend(loc="outside lower center", ncols=min(3, names))


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    return MARKERS[number % len(MARKERS)]


def dash(number: int) -> str:
    return DASHES[number // len(COLOURS) % len(DASHES)]


def save(figure: Figure, path: Path) -> None:
    """On white, whatever the viewer's background."""
    figure.savefig(path, dpi=150, facecolor="white")


def inline_svg(figure: Figure, name: str) -> str:
    """For a page: no background, and the ink follows the page's text."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):  # ids that no other picture has
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")
