"""Adaptive regularization via residual smoothing (arXiv 1907.09750): the whole method.

Equation numbers are the paper's. Symbols, for one sample with M outputs:

    d      residual |h(x) - y|, where h is the softmax of the logits             (9)
    d~     d shifted and scaled to mean 0 and standard deviation 1               (18)
    s      scale: the value of the annealing, which peaks at 1                   (13), (14)
    kappa  diffusivity s / (1 + exp(-alpha d~)), between 0 and s                 (19)
    r      smoothed residual (1 - kappa_j) d_j + kappa_j/(M-1) sum_{k != j} d_k  (22)

The loss is the mean over samples of sum_j r_j^2 (7). The paper's three schemes are settings:

    global  alpha = 0, so that kappa = s/2
    local   alpha > 0 with a Constant annealing
    full    alpha > 0 with a Laplace or Logistic annealing
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressmooth.errors import unknown

Output = Literal["softmax", "identity"]
ClassReduction = Literal["sum", "mean"]  # over a sample's outputs
Reduction = Literal["none", "mean", "sum"]  # over samples, as in torch
Progress = TypeVar("Progress", float, Tensor)  # fraction of training done; a tensor is 0-d

# Bounds the standard deviation from below: residuals equal up to rounding give d~ = 0.
EPS = {torch.float32: 1e-5, torch.float64: 1e-8}


class Annealing(Protocol):
    """Gives the scale s at a progress t/T in [0, 1]."""

    def __call__(self, progress: Progress) -> Progress: ...


@dataclass(frozen=True)
class _Peaked:
    mu: float  # position of the peak, as a fraction of training
    b: float  # width, in units of x
    horizon: float = 10.0  # length of the time axis: x = horizon * progress
    cutoff: float = 0.0  # a scale below it counts as 0; not in the paper

    def __post_init__(self) -> None:
        if not 0 <= self.mu <= 1:
            raise ValueError(f"mu must be in [0, 1], but got {self.mu}.")
        for name, value in (("b", self.b), ("horizon", self.horizon)):
            if not 1e-6 <= value <= 1e6:
                raise ValueError(f"{name} must be between 1e-6 and 1e6, but got {value}.")
        if not 0 <= self.cutoff < 1:
            raise ValueError(f"cutoff must be at least 0 and below 1, but got {self.cutoff}.")

    def _decay(self, progress: Progress) -> Progress:
        """Return exp(-|x - mu*horizon| / b)."""
        exponent = -abs(progress - self.mu) * self.horizon / self.b
        return exponent.exp() if isinstance(exponent, Tensor) else math.exp(exponent)

    def _cut(self, scale: Progress) -> Progress:
        """Return the scale, or 0 if it is below the cutoff."""
        return scale * (scale >= self.cutoff)


class Laplace(_Peaked):
    """s = exp(-|x - mu*horizon| / b): (14) divided by its maximum."""

    def __call__(self, progress: Progress) -> Progress:
        return self._cut(self._decay(progress))


class Logistic(_Peaked):
    """s = sech^2((x - mu*horizon) / 2b): (13) divided by its maximum."""

    def __call__(self, progress: Progress) -> Progress:
        decay = self._decay(progress)
        # sech^2(z/2) for decay = exp(-|z|); never overflows
        return self._cut(4 * decay / (1 + decay) ** 2)


@dataclass(frozen=True)
class Constant:
    """s is the same throughout training: the local scheme."""

    scale: float

    def __post_init__(self) -> None:
        if not 0 <= self.scale <= 1:
            raise ValueError(f"scale must be in [0, 1], but got {self.scale}.")

    def __call__(self, progress: Progress) -> Progress:
        return progress * 0 + self.scale


def residual(logits: Tensor, target: Tensor, output: Output = "softmax", dim: int = -1) -> Tensor:
    """Return d = |h(x) - y| (9) in fp32 or fp64.

    `target` holds class indices, or one value per output.
    """
    if not logits.dtype.is_floating_point:
        raise ValueError(f"Logits must be floating point, but got {logits.dtype}.")
    if logits.dtype.itemsize < 4:
        logits = logits.float()  # half precision would lose small residuals
    prediction = logits.softmax(dim) if output == "softmax" else logits
    if target.dtype.is_floating_point:
        if target.shape != logits.shape:
            raise ValueError(
                f"Probability targets must have the shape of the logits {tuple(logits.shape)}, "
                f"but got {tuple(target.shape)}."
            )
        return (prediction - target.to(prediction.dtype)).abs()
    expected = logits.movedim(dim, -1).shape[:-1]
    if target.dtype in (torch.bool, torch.complex64, torch.complex128) or target.shape != expected:
        raise ValueError(
            f"Class indices for logits {tuple(logits.shape)} must be integers {tuple(expected)}, "
            f"but got {target.dtype} {tuple(target.shape)}; one-hot targets must be floating point."
        )
    index = target.long().unsqueeze(dim)
    return (prediction - torch.zeros_like(prediction).scatter_(dim, index, 1.0)).abs()


def diffusivity(
    residual: Tensor, scale: float | Tensor, alpha: float, dim: tuple[int, ...] = (-1,)
) -> Tensor:
    """Return kappa = s / (1 + exp(-alpha d~)) (19), with d normalised over `dim` (18)."""
    centred = residual - residual.mean(dim, keepdim=True)
    variance = centred.square().mean(dim, keepdim=True)
    # Not 1 / (std + eps): the gradient of rsqrt(variance + eps^2) is finite at variance 0.
    normalised = centred * (alpha * torch.rsqrt(variance + EPS[residual.dtype] ** 2))
    return torch.sigmoid(normalised) * scale


def smooth(residual: Tensor, diffusivity: Tensor, layers: int = 1) -> Tensor:
    """Apply the smoothing layer (22) to the last axis `layers` times. Return r, in O(M).

    Since sum_{k != j} d_k = M mean(d) - d_j, (22) equals d_j - kappa_j M/(M-1) (d_j - mean(d)):
    each element moves towards the mean.
    """
    m = residual.shape[-1]
    if m < 2:
        raise ValueError(f"Smoothing needs at least 2 classes, but got {m}.")
    for _ in range(layers):
        centred = residual - residual.mean(-1, keepdim=True)
        residual = torch.addcmul(residual, diffusivity, centred, value=-m / (m - 1))
    return residual


def diffuse(residual_map: Tensor, diffusivity: Tensor, steps: int = 1, dt: float = 0.25) -> Tensor:
    """Take explicit steps of du/dtau = kappa Laplacian(u) (8) on [N, C, H, W]. Return u.

    Uses a five-point stencil with Neumann (zero-flux) boundaries. Stable while
    diffusivity * dt <= 1/4.
    """
    u = residual_map
    for _ in range(steps):
        padded = F.pad(u, (1, 1, 1, 1), mode="replicate")  # no flux across the border
        neighbours = (
            padded[..., :-2, 1:-1]
            + padded[..., 2:, 1:-1]
            + padded[..., 1:-1, :-2]
            + padded[..., 1:-1, 2:]
        )
        u = u + dt * diffusivity * (neighbours - 4 * u)
    return u


def squared_norm(
    residual: Tensor, class_reduction: ClassReduction = "sum", dim: tuple[int, ...] = (-1,)
) -> Tensor:
    """Return the sum (or mean) of squares over each sample's outputs: g_i of (7)."""
    squares = residual.square()
    return squares.sum(dim) if class_reduction == "sum" else squares.mean(dim)


def _reduce(losses: Tensor, reduction: Reduction, is_counted: Tensor | None) -> Tensor:
    """Reduce the samples' losses as torch does: the mean is over the samples that count."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if is_counted is None else losses.sum() / is_counted.sum()


def _check_progress(progress: float | Tensor) -> None:
    """Refuse an epoch number, for which the smoothing would be off. Tensors are not read back."""
    if isinstance(progress, Tensor):
        if progress.ndim:
            raise ValueError(f"progress must be a 0-d tensor, but got {tuple(progress.shape)}.")
    elif not 0 <= progress <= 1:
        raise ValueError(
            f"progress must be the fraction of training done, in [0, 1], but got {progress}."
        )


class _ResidualLoss(nn.Module):
    """The squared norm (7) of residuals that a subclass smooths."""

    axis: int  # the axis of the classes
    outputs: tuple[int, ...]  # the axes over which a sample's residual is normalised and summed

    def __init__(
        self,
        annealing: Annealing,
        alpha: float = 1.0,
        layers: int = 1,
        through_diffusivity: bool = False,
        *,
        output: Output = "softmax",
        class_reduction: ClassReduction = "sum",
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha must be at least 0 and finite, but got {alpha}.")
        if layers < 1:
            raise ValueError(f"layers must be at least 1, but got {layers}.")
        if output not in ("softmax", "identity"):
            raise unknown("output", output, ("softmax", "identity"))
        if class_reduction not in ("sum", "mean"):
            raise unknown("class_reduction", class_reduction, ("sum", "mean"))
        if reduction not in ("none", "mean", "sum"):
            raise unknown("reduction", reduction, ("none", "mean", "sum"))
        if ignore_index is not None and len(self.outputs) > 1:
            raise ValueError(
                f"ignore_index must be None, but got {ignore_index}: the paper does not say how "
                "residuals diffuse around ignored pixels. Use SmoothingLoss with the classes last."
            )
        self.annealing, self.alpha, self.layers = annealing, alpha, layers
        self.through_diffusivity = through_diffusivity
        self.output, self.class_reduction, self.reduction = output, class_reduction, reduction
        self.ignore_index = ignore_index
        self.diffusivity: Tensor | None = None  # kappa of the last call, None where s = 0

    def forward(self, logits: Tensor, target: Tensor, progress: Progress) -> Tensor:
        _check_progress(progress)
        is_counted = self._is_counted(target)
        if is_counted is not None:
            target = target.where(is_counted, 0)
        d = residual(logits, target, self.output, self.axis)
        if is_counted is not None:
            d = d.where(is_counted.unsqueeze(self.axis), 0.0)  # no loss and no gradient
        scale = self.annealing(progress)
        self.diffusivity = None
        if isinstance(scale, Tensor) or scale:  # 0: the plain squared error, in every bit
            d = self._smooth(d, scale)
        losses = squared_norm(d, self.class_reduction, self.outputs)
        return _reduce(losses, self.reduction, is_counted)

    def _smooth(self, d: Tensor, scale: float | Tensor) -> Tensor:
        # The paper's "deterministic smoothing kernel": the backward pass takes kappa as constant.
        source = d if self.through_diffusivity else d.detach()
        kappa = diffusivity(source, scale, self.alpha, self.outputs)
        self.diffusivity = kappa.detach()
        return self.smoothed(d, kappa)

    def _is_counted(self, target: Tensor) -> Tensor | None:
        """Return a mask of the targets that are not ignored, or None if none can be."""
        if self.ignore_index is None or target.dtype.is_floating_point:
            return None
        return target != self.ignore_index

    def smoothed(self, d: Tensor, kappa: Tensor) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return (
            f"{self.annealing}, alpha={self.alpha}, layers={self.layers}, "
            f"through_diffusivity={self.through_diffusivity}, output={self.output}, "
            f"class_reduction={self.class_reduction}, reduction={self.reduction}, "
            f"ignore_index={self.ignore_index}"
        )


class SmoothingLoss(_ResidualLoss):
    """Loss of a classifier: `loss(logits, target, progress)` with logits [..., M].

    `target` holds class indices [...] or probabilities [..., M]. `progress` is the fraction of
    training done. Computes in fp32, also under autocast, or in fp64 for fp64 logits. O(M).

    `reduction` and `ignore_index` mean what they do in torch: with "none" the loss has the shape
    [...], and class indices equal to `ignore_index` add neither loss nor gradient. Masking takes
    time, so that unlike in torch nothing is ignored by default.
    """

    axis = -1
    outputs = (-1,)

    def smoothed(self, d: Tensor, kappa: Tensor) -> Tensor:
        return smooth(d, kappa, self.layers)


class SpatialSmoothingLoss(_ResidualLoss):
    """Loss of dense outputs [N, C, H, W]: the residual map of each channel diffuses in space.

    `target` holds class indices [N, H, W] or values [N, C, H, W]. `layers` is the number of time
    steps. Residuals are normalised, and squares summed, over all C*H*W outputs of a sample.
    """

    axis = 1
    outputs = (-3, -2, -1)

    def forward(self, logits: Tensor, target: Tensor, progress: Progress) -> Tensor:
        if logits.ndim != 4:
            raise ValueError(f"Logits must be [N, C, H, W], but got {tuple(logits.shape)}.")
        return super().forward(logits, target, progress)

    def smoothed(self, d: Tensor, kappa: Tensor) -> Tensor:
        return diffuse(d, kappa, self.layers)
