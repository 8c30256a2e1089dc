"""The networks of the paper with He initialisation, and a small one for the quick start.

    name                parameters (10 classes, 3 channels)
    small                24,346
    resnet20            269,722   He et al. 2015, option-A shortcuts (no parameters)
    resnet56            853,018
    densenet_bc_100_12  769,162   Huang et al. 2016, growth 12, compression 0.5

Tests check these counts. `torchvision:NAME` and `timm:NAME` are networks of those libraries.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressmooth.errors import ConfigError, did_you_mean, unknown

IMAGENET_CLASSES = 1000  # of torchvision's weights


@contextmanager
def count_at_end(model: nn.Module, steps: int) -> Iterator[None]:
    """Let layers that see every batch once count all `steps` at the end: a kernel, not one each."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    counts = [layer.num_batches_tracked for layer in layers]
    for layer in layers:
        layer.num_batches_tracked = None
    try:
        yield
    finally:
        for layer, number in zip(layers, counts, strict=True):
            layer.num_batches_tracked = number
    for number in counts:
        assert number is not None
        number.add_(steps)


def build(name: str, *, num_classes: int, in_channels: int, weights: str = "none") -> nn.Module:
    """Return a network. torch's seed determines its random weights."""
    library, _, network = name.partition(":")
    if library in LIBRARIES:
        return LIBRARIES[library](network, num_classes, in_channels, weights)
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name](num_classes, in_channels).apply(_he_initialise)


def _he_initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _conv(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=False)


class _Classifier(nn.Module):
    """Averages each channel over the image, then applies one linear layer."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def _small(num_classes: int, in_channels: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after, stride in ((in_channels, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers += [_conv(before, after, 3, stride), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, _Classifier(64, num_classes))


class _BasicBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.stride = channels // in_channels  # a block that doubles the channels halves the image
        self.conv1 = _conv(in_channels, channels, 3, self.stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.new_channels = channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.new_channels:  # option A: subsample, fill new channels with zeros
            half = self.new_channels // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(y + x, inplace=True)


def _resnet(depth: int, num_classes: int, in_channels: int) -> nn.Module:
    layers: list[nn.Module] = [_conv(in_channels, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    channels = 16
    for stage_channels in (16, 32, 64):
        for _ in range((depth - 2) // 6):
            layers.append(_BasicBlock(channels, stage_channels))
            channels = stage_channels
    return nn.Sequential(*layers, _Classifier(channels, num_classes))


class _DenseLayer(nn.Module):
    """BN-ReLU-conv1x1-BN-ReLU-conv3x3. Its output is appended to its input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = _conv(in_channels, 4 * growth, 1)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = _conv(4 * growth, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.bn1(x), inplace=True))
        y = self.conv2(F.relu(self.bn2(y), inplace=True))
        return torch.cat((x, y), 1)


def _densenet_bc(depth: int, growth: int, num_classes: int, in_channels: int) -> nn.Module:
    channels = 2 * growth
    layers: list[nn.Module] = [_conv(in_channels, channels, 3)]
    for block in range(3):
        for _ in range((depth - 4) // 6):
            layers.append(_DenseLayer(channels, growth))
            channels += growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if block < 2:  # transition: halve the channels and the image
            layers += [_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, _Classifier(channels, num_classes))


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "small": _small,
    "resnet20": lambda classes, channels: _resnet(20, classes, channels),
    "resnet56": lambda classes, channels: _resnet(56, classes, channels),
    "densenet_bc_100_12": lambda classes, channels: _densenet_bc(100, 12, classes, channels),
}


def _torchvision(name: str, num_classes: int, in_channels: int, weights: str) -> nn.Module:
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise _no_such_network("torchvision", name, known)
    if weights == "none":
        model: nn.Module = models.get_model(name, num_classes=num_classes)
    else:
        model = models.get_model(name, weights=_torchvision_weights(name, weights))
        _replace_head(model, num_classes)
    _fit_channels(model, in_channels)
    return model


def _no_such_network(library: str, name: str, known: list[str]) -> ConfigError:
    hint = did_you_mean(name, known)
    return ConfigError(f"model = '{library}:{name}': {library} has no such network{hint}")


def _torchvision_weights(name: str, weights: str) -> object:
    from torchvision import models

    known = models.get_model_weights(name).__members__
    if weights not in known:
        names = ", ".join(["none", *known])
        raise ConfigError(f"weights = {weights!r}: {name} has {names}")
    return known[weights]


def _replace_head(model: nn.Module, num_classes: int) -> None:
    """Replace the last layer that has an output per class of ImageNet by a new one."""
    name, head = [
        (name, layer)
        for name, layer in model.named_modules()
        if IMAGENET_CLASSES
        in (getattr(layer, "out_features", 0), getattr(layer, "out_channels", 0))
    ][-1]
    new: nn.Module
    if isinstance(head, nn.Conv2d):
        new = nn.Conv2d(head.in_channels, num_classes, kernel_size=1)
    else:
        assert isinstance(head, nn.Linear)
        new = nn.Linear(head.in_features, num_classes)
    model.set_submodule(name, new)


def _fit_channels(model: nn.Module, in_channels: int) -> None:
    """Replace the first convolution if images have another number of channels than it.

    It keeps its response to images whose channels are equal.
    """
    name, first = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
    if first.in_channels == in_channels:
        return
    shape: dict[str, Any] = {
        key: getattr(first, key) for key in ("kernel_size", "stride", "padding")
    }
    new = nn.Conv2d(in_channels, first.out_channels, **shape, bias=first.bias is not None)
    with torch.no_grad():
        new.weight.copy_(first.weight.sum(1, keepdim=True) / in_channels)
        if first.bias is not None and new.bias is not None:
            new.bias.copy_(first.bias)
    model.set_submodule(name, new)


def _timm(name: str, num_classes: int, in_channels: int, weights: str) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise ConfigError(f"model = 'timm:{name}': timm is missing; pip install timm") from error
    if not timm.is_model(name):
        raise _no_such_network("timm", name, timm.list_models())
    if weights not in ("none", "DEFAULT"):
        raise ConfigError(f"weights = {weights!r}: with timm use 'none' or 'DEFAULT'")
    pretrained = weights == "DEFAULT"
    model: nn.Module = timm.create_model(
        name, pretrained=pretrained, num_classes=num_classes, in_chans=in_channels
    )
    return model


LIBRARIES: dict[str, Callable[[str, int, int, str], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
}
