"""Losses and optimizers by name."""

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressmooth.config import RunConfig
from ressmooth.errors import unknown
from ressmooth.smoothing import (
    Annealing,
    Constant,
    Laplace,
    Logistic,
    Output,
    Reduction,
    SmoothingLoss,
    residual,
    squared_norm,
)


class SquaredError(nn.Module):
    """|softmax - onehot|^2, the paper's loss without smoothing. Smooths labels if epsilon > 0."""

    def __init__(self, output: Output, reduction: Reduction, epsilon: float = 0.0) -> None:
        super().__init__()
        self.output, self.reduction, self.epsilon = output, reduction, epsilon

    def forward(self, logits: Tensor, target: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        if self.epsilon:
            classes = logits.shape[-1]
            target = torch.full_like(logits, self.epsilon / classes, dtype=torch.float32).scatter_(
                -1, target[..., None], 1 - self.epsilon + self.epsilon / classes
            )
        return squared_norm(residual(logits, target, self.output), self.reduction).mean()


class CrossEntropy(nn.Module):
    def forward(self, logits: Tensor, target: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        return F.cross_entropy(logits.float(), target)


class AdaptiveDecay(nn.Module):
    """Sec. 4.1: weight decay times the batch mean of 1 - exp(-f_i / nu), f_i the squared error.

    The decay is the penalty lambda/2 |w|^2, so the optimizer must not decay weights as well.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        weight_decay: float,
        nu: float,
        output: Output,
        reduction: Reduction,
    ) -> None:
        super().__init__()
        self.weights = list(parameters)  # a plain list, because the loss owns no parameters
        self.weight_decay, self.nu = weight_decay, nu
        self.output, self.reduction = output, reduction

    def forward(self, logits: Tensor, target: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        errors = squared_norm(residual(logits, target, self.output), self.reduction)  # f_i, [B]
        decay = self.weight_decay * -torch.expm1(-errors.detach() / self.nu).mean()
        norm = torch.stack([w.square().sum() for w in self.weights]).sum()
        return errors.mean() + decay / 2 * norm


def annealing(config: RunConfig) -> Annealing:
    if config.distribution == "constant":
        return Constant(config.scale)
    kind = Laplace if config.distribution == "laplace" else Logistic
    return kind(config.mu, config.b, config.horizon)


METHODS: dict[str, Callable[[RunConfig, nn.Module], nn.Module]] = {
    "mse": lambda c, _: SquaredError(c.output, c.reduction),
    "label_smoothing": lambda c, _: SquaredError(c.output, c.reduction, c.epsilon),
    "cross_entropy": lambda c, _: CrossEntropy(),
    "adaptive_decay": lambda c, m: AdaptiveDecay(
        m.parameters(), c.weight_decay, c.nu, c.output, c.reduction
    ),
    "smoothing": lambda c, _: SmoothingLoss(
        annealing(c),
        c.alpha,
        c.layers,
        c.through_diffusivity,
        output=c.output,
        reduction=c.reduction,
    ),
}


def build_loss(config: RunConfig, model: nn.Module) -> nn.Module:
    """Return the training loss of a method, `loss(logits, target, progress)`."""
    if config.method not in METHODS:
        raise unknown("method", config.method, METHODS)
    return METHODS[config.method](config, model)


def build_validation_loss(config: RunConfig) -> nn.Module:
    """Return the loss of a method without smoothing and penalties."""
    if config.method == "cross_entropy":
        return CrossEntropy()
    return SquaredError(config.output, config.reduction)


OPTIMIZERS: dict[str, Callable[[RunConfig, nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda c, m: torch.optim.SGD(
        m.parameters(), c.lr, momentum=c.momentum, weight_decay=_weight_decay(c)
    ),
    "adam": lambda c, m: torch.optim.Adam(m.parameters(), c.lr, weight_decay=_weight_decay(c)),
    "adagrad": lambda c, m: torch.optim.Adagrad(
        m.parameters(), c.lr, weight_decay=_weight_decay(c)
    ),
}


def _weight_decay(config: RunConfig) -> float:
    return 0.0 if config.method == "adaptive_decay" else config.weight_decay


def build_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    if config.optimizer not in OPTIMIZERS:
        raise unknown("optimizer", config.optimizer, OPTIMIZERS)
    return OPTIMIZERS[config.optimizer](config, model)


def learning_rate(config: RunConfig, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 1."""
    done = (epoch - 1) / config.epochs
    if config.schedule == "step":
        return config.lr if done < 0.75 else config.lr / 100
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    return config.lr
