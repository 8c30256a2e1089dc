"""Losses and optimizers by name."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressmooth import smoothing
from ressmooth.config import RunConfig
from ressmooth.errors import unknown
from ressmooth.plugins import NO_PLUGINS, Plugins
from ressmooth.smoothing import ClassReduction, Output


class SquaredError(nn.Module):
    """|softmax - onehot|^2, the paper's loss without smoothing. Smooths labels if epsilon > 0."""

    def __init__(
        self, output: Output, class_reduction: ClassReduction, epsilon: float = 0.0
    ) -> None:
        super().__init__()
        self.output, self.class_reduction, self.epsilon = output, class_reduction, epsilon

    def forward(self, logits: Tensor, target: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        if self.epsilon:
            rest = self.epsilon / logits.shape[-1]
            soft = torch.full_like(logits, rest, dtype=torch.float32)
            target = soft.scatter_(-1, target[..., None], 1 - self.epsilon + rest)
        return self.errors(logits, target).mean()

    def errors(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the squared error of each sample, f_i, [B]."""
        residual = smoothing.residual(logits, target, self.output)
        return smoothing.squared_norm(residual, self.class_reduction)


class CrossEntropy(nn.Module):
    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor, progress: float | Tensor = 0.0) -> Tensor:
        return F.cross_entropy(logits.float(), target, label_smoothing=self.label_smoothing)


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
    return kind(config.mu, config.b, config.horizon, config.cutoff)


def _smoothing_loss(config: RunConfig, model: nn.Module) -> nn.Module:
    method = annealing(config), config.alpha, config.layers, config.through_diffusivity
    return smoothing.SmoothingLoss(*method, output=config.output, class_reduction=config.reduction)


METHODS: dict[str, Callable[[RunConfig, nn.Module], nn.Module]] = {
    "mse": lambda c, _: SquaredError(c.output, c.reduction),
    "label_smoothing": lambda c, _: SquaredError(c.output, c.reduction, c.epsilon),
    "cross_entropy": lambda c, _: CrossEntropy(c.label_smoothing),
    "adaptive_decay": AdaptiveDecay,
    "smoothing": _smoothing_loss,
}


def build_loss(config: RunConfig, model: nn.Module, plugins: Plugins = NO_PLUGINS) -> nn.Module:
    """Return the training loss of a method, `loss(logits, target, progress)`."""
    if plugins.get("method", config.method):
        loss: nn.Module = plugins.call("method", config.method, config.plugin_settings)
        return loss
    if config.method not in METHODS:
        raise unknown("method", config.method, METHODS)
    return METHODS[config.method](config, model)


def build_validation_loss(config: RunConfig, loss: nn.Module) -> Callable[..., Tensor]:
    """Return the loss of a method without smoothing and penalties, `loss(logits, target)`.

    A method that is a plug-in validates with its own loss at the end of training.
    """
    if config.method not in METHODS:
        return lambda logits, target: loss(logits, target, 1.0)
    if config.method == "cross_entropy":
        return CrossEntropy()
    return SquaredError(config.output, config.reduction)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
}


def build_optimizer(
    config: RunConfig,
    model: nn.Module,
    plugins: Plugins = NO_PLUGINS,
    loss: nn.Module | None = None,
) -> torch.optim.Optimizer:
    """Return the optimizer of the network's parameters, and of those that a loss has."""
    parameters = [*model.parameters(), *(loss.parameters() if loss else ())]
    decay = 0.0 if config.method == "adaptive_decay" else config.weight_decay
    if plugins.get("optimizer", config.optimizer):
        optimizer: torch.optim.Optimizer = plugins.call(
            "optimizer",
            config.optimizer,
            config.plugin_settings,
            parameters=parameters,
            lr=config.lr,
            weight_decay=decay,
            momentum=config.momentum,
        )
        return optimizer
    if config.optimizer not in OPTIMIZERS:
        raise unknown("optimizer", config.optimizer, OPTIMIZERS)
    options: dict[str, Any] = {}
    if config.optimizer == "sgd":
        options = {"momentum": config.momentum, "nesterov": config.nesterov}
    build = OPTIMIZERS[config.optimizer]
    return build(parameters, config.lr, weight_decay=decay, **options)


def learning_rate(config: RunConfig, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 1."""
    warmup = config.warmup_epochs
    if epoch <= warmup:
        return config.lr * epoch / (warmup + 1)
    if config.schedule == "cosine":  # from lr after the warm-up to nearly 0 in the last epoch
        done = (epoch - 1 - warmup) / (config.epochs - warmup)
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "step" and (epoch - 1) / config.epochs >= 0.75:
        return config.lr / 100
    return config.lr
