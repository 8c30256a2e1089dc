"""The style of all figures: colours for colour-blind readers, on light and dark pages."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

# Okabe and Ito's palette without black and yellow, which would vanish on one of the backgrounds
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "os^Dv*"
DASHES = ("-", "--", "-.", ":")
INK = "#010203"  # black; replaced by the text colour of an HTML page
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

Draw = Callable[[Axes], None]


def picture(*panels: Draw) -> Figure:
    """Draw the panels side by side."""
    with matplotlib.rc_context(RC):
        size = (5.0 * len(panels), 3.4)  # inches; readable on a phone
        figure = Figure(figsize=size, layout="constrained")
        row = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, draw in zip(row, panels, strict=True):
            draw(axes)
    return figure


def legend(axes: Axes) -> None:
    """Put the legend below the panel, where it covers nothing."""
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
    """Save on white, for viewers with any background."""
    key = "Software" if path.suffix == ".png" else "Creator"
    figure.savefig(path, dpi=150, facecolor="white", metadata={key: "ressmooth"})


def is_picture(path: Path) -> bool:
    """Tell whether a file is a picture that `save` has written."""
    return path.is_file() and b"ressmooth" in path.read_bytes()


def svg(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element without a background."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):  # element ids that are unique in the page
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def in_page(svg: str) -> str:
    """Return an SVG in the text colour of its HTML page."""
    return svg.replace(INK, "currentColor")


def on_white(svg: str) -> str:
    """Return an SVG for viewers with any background."""
    end = svg.index(">") + 1
    return f'{svg[:end]}<rect width="100%" height="100%" fill="white"/>{svg[end:]}'


def scale_logarithmically(axes: Axes) -> None:
    """Label the y axis with plain numbers, between powers of ten only if there are few of those."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}" if high < 10 * low else NullFormatter())
