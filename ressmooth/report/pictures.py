"""Pictures of the method (diffusivity and annealing) and of evidence by seeds."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ressmooth.evidence import LEVEL, critical_t, log_e_value
from ressmooth.report.style import INK, Draw, colour

# Values that the pictures show
ALPHAS = (0.25, 0.5, 1.0, 2.0, 4.0)
SCALES = (0.25, 0.5, 0.75, 1.0)
WIDTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # the paper's b
MU, HORIZON = 0.75, 10.0  # the paper's peak and length of the time axis
SEEDS, SIMULATED = 20, 4_000  # looks, and studies behind the pictures of evidence
EFFECTS = (1.0, 2.0)  # true differences, in standard deviations of a seed's difference

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


def evidence() -> list[Draw]:
    """Draw evidence by seeds with and without a difference, and false verdicts by looks."""
    n = np.arange(2.0, SEEDS + 1)
    draws = np.random.default_rng(0).normal(size=(SIMULATED, SEEDS))
    without = _t_statistics(draws)
    studies = {"no difference": without}
    studies |= {f"difference of {e:g} sd": _t_statistics(draws + e) for e in EFFECTS}

    def draw_evidence(axes: Axes) -> None:
        for number, (label, found) in enumerate(studies.items()):
            # evidence grows with |t|, so its quantiles are those of |t|
            low, middle, high = (
                [np.exp(log_e_value(*look)) for look in zip(n.tolist(), each, strict=True)]
                for each in np.quantile(np.abs(found), (0.1, 0.5, 0.9), axis=0).tolist()
            )
            axes.plot(n, middle, color=colour(number), label=label)
            axes.fill_between(n, low, high, color=colour(number), alpha=0.2, linewidth=0)
        axes.axhline(1 / LEVEL, color=INK, linestyle="--", label=f"{1 / LEVEL:g} : 1 decides")
        axes.set(xlabel="seeds", ylabel="evidence : 1", yscale="log", ylim=(0.05, 1e6))
        axes.set_title("median and middle 80 % of studies")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="upper left")

    def draw_shares(axes: Axes) -> None:
        from scipy.special import stdtrit

        limits = {
            "t-test, p < 0.05": stdtrit(n - 1, 1 - LEVEL / 2),
            "evidence": np.array([critical_t(k, 1 / LEVEL) for k in n.tolist()]),
        }
        for number, (label, limit) in enumerate(limits.items()):
            ever = np.maximum.accumulate(np.abs(without) >= limit, axis=1)
            axes.plot(n, 100 * ever.mean(0), color=colour(3 + number), label=label)
        axes.axhline(100 * LEVEL, color=INK, linestyle="--")
        axes.set(xlabel="seeds, with a look after each", ylabel="false verdicts (%)", ylim=(0, 30))
        axes.set_title(f"{SIMULATED:,} studies without a difference")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="upper left")

    return [draw_evidence, draw_shares]


def _t_statistics(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the t statistic after 2, 3, ... seeds, [studies, seeds - 1]."""
    n = np.arange(1, differences.shape[1] + 1)
    mean = differences.cumsum(1) / n
    squares = (differences**2).cumsum(1) - n * mean**2
    found: NDArray[np.float64] = np.sqrt(n[1:] * n[:-1] / squares[:, 1:]) * mean[:, 1:]
    return found


PICTURES = {"annealing": annealings, "sigmoid": sigmoids, "evidence": evidence}
