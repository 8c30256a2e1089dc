"""Pictures of the method: the diffusivity's sigmoid and the annealing of the scale."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ressmooth.report.style import Draw, colour

# Values that the pictures show
ALPHAS = (0.25, 0.5, 1.0, 2.0, 4.0)
SCALES = (0.25, 0.5, 0.75, 1.0)
WIDTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # the paper's b
MU, HORIZON = 0.75, 10.0  # the paper's peak and length of the time axis

Scale = Callable[[NDArray[np.float64]], NDArray[np.float64]]


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

    def draw(axes: Axes, name: str, scale: Scale, widths: Sequence[float]) -> None:
        progress = np.linspace(0, 1, 501)
        for number, b in enumerate(widths):
            distance = np.abs(progress - MU) * HORIZON / b
            axes.plot(progress, scale(distance), color=colour(number), label=f"b = {b:.3g}")
        axes.set(xlabel="fraction of training", ylabel="scale s", ylim=(-0.03, 1.03))
        axes.set_title(f"{name}, peak at μ = {MU:g}")
        axes.legend(loc="upper left")

    # the formulas of smoothing.py, whose import would load torch
    return [
        lambda axes: draw(axes, "Laplace", lambda z: np.exp(-z), laplace),
        lambda axes: draw(axes, "Logistic", lambda z: 1 / np.cosh(z / 2) ** 2, logistic),
    ]


PICTURES = {"annealing": annealings, "sigmoid": sigmoids}
