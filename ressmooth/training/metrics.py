"""A run's curve as a CSV file and as a figure. Does not load torch, for launchers."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ressmooth.config import METRICS, Epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"  # Okabe-Ito, for colour-blind readers


def write_csv(path: Path, curve: Sequence[Epoch]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("epoch", *METRICS))
        writer.writerows([getattr(row, name) for name in ("epoch", *METRICS)] for row in curve)


def draw(curve: Sequence[Epoch], title: str) -> "Figure":
    """Return a figure of accuracy, loss and scale by epoch, one below the other.

    MLflow gets one of every run, so it is cheap: margins are fixed, labels are plain text.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    figure = Figure(figsize=(7, 7.5))
    figure.subplots_adjust(left=0.11, right=0.97, top=0.95, bottom=0.07, hspace=0.1)
    accuracy, loss, scale = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.4))
    marker = "o" if len(curve) == 1 else None  # a line through one point is invisible

    def plot(axes: Any, metric: str, **style: str) -> None:
        values = {e.epoch: getattr(e, metric) for e in curve if getattr(e, metric) is not None}
        axes.plot(values.keys(), values.values(), marker=marker, **style)

    plot(accuracy, "train_acc", color=BLUE, label="training")
    plot(accuracy, "val_acc", color=VERMILLION, label="validation")
    plot(loss, "train_loss", color=BLUE)
    plot(loss, "val_loss", color=VERMILLION)
    loss.set_yscale("log")
    loss.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
    loss.yaxis.set_major_formatter("{x:g}")
    plot(scale, "scale", color=GREEN, label="scale s")
    plot(scale, "diffusivity", color=GREEN, linestyle="--", label="mean diffusivity")
    accuracy.set(title=title, ylabel="accuracy (%)")
    loss.set(ylabel="loss")
    scale.set(xlabel="epoch", ylabel="smoothing", ylim=(-0.05, 1.05))
    scale.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (accuracy, scale):
        axes.legend(frameon=False)
    for axes in (accuracy, loss, scale):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
