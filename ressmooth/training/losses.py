"""Losses and optimizers by name."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressmooth import smoothing
from ressmooth.config import RunConfig
from ressmooth.errors import unknown
from ressmooth.smoothing import Output, Reduction


class SquaredError(nn.Module):
    """|softmax - onehot|^2, the paper's loss without smoothing. Smooths labels if epsilon > 0."""

    def __init__(self, output: Output, reduction: Reduction, epsilon: float = 0.0) -> None:
        super().__init__()
        self.output, self.reduction, self.epsilon = output, reduction, epsilon

    def forward(self, logits: Tensor, target: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        if self.epsilon:
            rest = self.epsilon / logits.shape[-1]
            soft = torch.full_like(logits, rest, dtype=torch.float32)
            target = soft.scatter_(-1, target[..., None], 1 - self.epsilon + rest)
        return self.errors(logits, target).mean()

    def errors(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the squared error of each sample, f_i, [B]."""
        residual = smoothing.residual(logits, target, self.output)
        return smoothing.squared_norm(residual, self.reduction)


class CrossEntropy(nn.Module):
    def forward(self, logits: Tensor, target: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        return F.cross_entropy(logits.float(), target)


class AdaptiveDecay(SquaredError):
    """Sec. 4.1: weight decay times the batch mean of 1 - exp(-f_i / nu), f_i the squared error.

    The decay is the penalty lambda/2 |w|^2, so the optimizer must not decay weights as well.
    """

    def __init__(self, config: RunConfig, model: nn.Module) -> None:
        super().__init__(config.output, config.reduction)
        self.weights = list(model.parameters())  # a plain list: the loss owns no parameters
        self.weight_decay, self.nu = config.weight_decay, config.nu

    def forward(self, logits: Tensor, target: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        errors = self.errors(logits, target)
        decay = self.weight_decay * -torch.expm1(-errors.detach() / self.nu).mean()
        norm = torch.stack([w.square().sum() for w in self.weights]).sum()
        return errors.mean() + decay / 2 * norm


def annealing(config: RunConfig) -> smoothing.Annealing:
    if config.distribution == "constant":
        return smoothing.Constant(config.scale)
    kind = smoothing.Laplace if config.distribution == "laplace" else smoothing.Logistic
    return kind(config.mu, config.b, config.horizon)


def _smoothing_loss(config: RunConfig, model: nn.Module) -> nn.Module:
    method = annealing(config), config.alpha, config.layers, config.through_diffusivity
    return smoothing.SmoothingLoss(*method, output=config.output, reduction=config.reduction)


METHODS: dict[str, Callable[[RunConfig, nn.Module], nn.Module]] = {
    "mse": lambda c, _: SquaredError(c.output, c.reduction),
    "label_smoothing": lambda c, _: SquaredError(c.output, c.reduction, c.epsilon),
    "cross_entropy": lambda c, _: CrossEntropy(),
    "adaptive_decay": AdaptiveDecay,
    "smoothing": _smoothing_loss,
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


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
}


def build_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    if config.optimizer not in OPTIMIZERS:
        raise unknown("optimizer", config.optimizer, OPTIMIZERS)
    decay = 0.0 if config.method == "adaptive_decay" else config.weight_decay
    options = {"momentum": config.momentum} if config.optimizer == "sgd" else {}
    build = OPTIMIZERS[config.optimizer]
    return build(model.parameters(), config.lr, weight_decay=decay, **options)


def learning_rate(config: RunConfig, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 1."""
    done = (epoch - 1) / config.epochs
    if config.schedule == "step":
        return config.lr if done < 0.75 else config.lr / 100
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    return config.lr
