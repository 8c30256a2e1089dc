"""A run's curve as a CSV file and as a figure. Does not load torch, for launchers."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
    """Return a figure of accuracy, loss and scale by epoch, one below the other."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 7.5), layout="constrained")
    accuracy, loss, scale = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.4))
    epochs = [e.epoch for e in curve]
    evaluated = [e for e in curve if e.val_acc is not None]
    marker = "o" if len(curve) == 1 else None  # a line through one point is invisible
    at = [e.epoch for e in evaluated]
    accuracy.plot(epochs, [e.train_acc for e in curve], color=BLUE, marker=marker, label="training")
    accuracy.plot(
        at, [e.val_acc for e in evaluated], color=VERMILLION, marker=marker, label="validation"
    )
    loss.plot(epochs, [e.train_loss for e in curve], color=BLUE, marker=marker)
    loss.plot(at, [e.val_loss for e in evaluated], color=VERMILLION, marker=marker)
    loss.set_yscale("log")
    scale.plot(epochs, [e.scale for e in curve], color=GREEN, marker=marker, label="scale s")
    scale.plot(
        epochs,
        [e.diffusivity for e in curve],
        color=GREEN,
        linestyle="--",
        marker=marker,
        label="mean diffusivity",
    )
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
