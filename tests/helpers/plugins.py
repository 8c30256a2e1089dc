"""A plug-in with one of each kind, for tests."""

from pathlib import Path

from ressmooth.config import RunConfig
from ressmooth.plugins import Plugins, read

SOURCE = '''\
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import ressmooth


@ressmooth.dataset
def stripes(root: Path, count: int = 60) -> ressmooth.Dataset:
    """Images of 8 x 8 x 1 with stripes down or across."""
    generator = torch.Generator().manual_seed(0)

    def draw(number: int) -> ressmooth.Images:
        labels = torch.arange(number) % 2
        stripes = (torch.arange(8) % 2 * 120).expand(number, 8, 8)
        pixels = torch.where(labels[:, None, None] == 0, stripes, stripes.mT)
        noise = torch.randint(0, 100, pixels.shape, generator=generator)
        return ressmooth.Images((pixels + noise).to(torch.uint8)[..., None], labels)

    return ressmooth.Dataset(draw(count), draw(20), num_classes=2)


@ressmooth.model
def mlp(num_classes: int, in_channels: int, width: int = 16) -> nn.Module:
    hidden = nn.LazyLinear(width), nn.ReLU(), nn.Dropout(0.1)
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, num_classes))


@ressmooth.method
class FocalLoss(nn.Module):
    def __init__(self, gamma: float = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, target, progress):
        loss = F.cross_entropy(logits, target, reduction="none")
        return ((1 - (-loss).exp()) ** self.gamma * loss).mean()


@ressmooth.optimizer
def sign_sgd(parameters, lr: float, weight_decay: float, beta: float = 0.9):
    return torch.optim.SGD(parameters, lr, momentum=beta, weight_decay=weight_decay)
'''
OTHER = """\
from torch import nn

import ressmooth


@ressmooth.model
def linear(num_classes: int, in_channels: int, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(dropout), nn.LazyLinear(num_classes))
"""
ALL = {"dataset": "stripes", "model": "mlp", "method": "FocalLoss", "optimizer": "sign_sgd"}


def plugins(source: str = SOURCE, file: str = "mine.py") -> Plugins:
    return Plugins((read(source, file, RunConfig.model_fields),))


def write(folder: Path, source: str = SOURCE) -> Path:
    (folder / "mine.py").write_text(source)
    return folder / "mine.py"
