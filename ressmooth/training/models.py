"""The networks of the paper with He initialisation, and a small one for the quick start.

    name                parameters (10 classes, 3 channels)
    small                24,346
    resnet20            269,722   He et al. 2015, option-A shortcuts (no parameters)
    resnet56            853,018
    densenet_bc_100_12  769,162   Huang et al. 2016, growth 12, compression 0.5

Tests check these counts.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressmooth.errors import unknown


def build(name: str, *, num_classes: int, in_channels: int) -> nn.Module:
    """Return a network with random weights, which torch's seed determines."""
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
