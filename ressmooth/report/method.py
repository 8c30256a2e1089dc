"""The method in two pictures: the diffusivity's sigmoid, and the annealing of its scale."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ressmooth.report.style import Draw, colour
from ressmooth.smoothing import Laplace, Logistic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
