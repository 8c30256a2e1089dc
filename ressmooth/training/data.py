"""Images as uint8 tensors on the device, and training batches made from them by indexing."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressmooth.config import CROP_PADDING
from ressmooth.errors import unknown

HOLDOUT = 0.1  # share of the training set that validates under selection = "holdout"
CPU = torch.device("cpu")
AUGMENTATIONS = ("none", "flip", "crop", "crop-flip")


@dataclass(frozen=True)
class Images:
    pixels: Tensor  # uint8 [N, H, W, C]
    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> "Images":
        return Images(self.pixels[index], self.labels[index])

    def to(self, device: torch.device) -> "Images":
        return Images(self.pixels.to(device), self.labels.to(device))

    @property
    def image(self) -> tuple[int, int, int]:
        """Return the shape [H, W, C] of an image."""
        height, width, channels = self.pixels.shape[1:]
        return height, width, channels

    def sha256(self) -> str:
        """Return a hash of all images and labels."""
        digest = hashlib.sha256()
        for tensor in (self.pixels, self.labels):
            digest.update(repr(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """Images in memory, or map-style data sets of torch: see streaming.py."""

    train: Any
    test: Any
    num_classes: int
    sha256: str | None = None  # of the user's own images and labels


@dataclass(frozen=True)
class Splits:
    train: Any  # Images, or Streamed
    validation: Any  # equals the test set under selection = "paper"
    test: Any


def stream(seed: int, *purpose: object) -> torch.Generator:
    """Return random numbers for one purpose, independent of other purposes and torch's state."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def seed_python(number: int) -> None:
    """Seed the generators of Python and numpy. Only plug-ins draw from them."""
    random.seed(number)
    np.random.seed(number % 2**32)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the CPU generators of torch, Python and numpy as they were."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


def split(dataset: Dataset, *, fraction: float, selection: str, seed: int) -> Splits:
    """Hold out the validation set if asked to, and keep a random `fraction` of the rest."""
    order = torch.randperm(len(dataset.train), generator=stream(seed, "split"))
    if selection == "paper":
        validation = dataset.test
    else:
        held_out = round(HOLDOUT * len(order))
        validation, order = dataset.train[order[:held_out]], order[held_out:]
    kept = order[: max(1, round(fraction * len(order)))]
    return Splits(dataset.train[kept], validation, dataset.test)


class Normaliser(nn.Module):
    """uint8 [B, H, W, C] -> float [B, C, H, W] with mean 0 and std 1 over the training set.

    `padding` adds zero pixels on each side, which do not count in mean and std.
    """

    factor: Tensor
    offset: Tensor

    def __init__(self, train: Images, padding: int = 0) -> None:
        super().__init__()
        self.padding = padding
        channels = train.pixels.unbind(-1)
        histogram = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in channels])
        share = histogram.double() / histogram.sum(1, keepdim=True)  # [C, 256]
        value = torch.arange(256, dtype=torch.float64, device=share.device)
        mean = (share * value).sum(1)
        std = (share * (value - mean[:, None]).square()).sum(1).sqrt().clamp_min(1.0)
        # Repeated over a row of pixels, [W*C], because a last axis of length 1 or 3 is slow.
        width = train.pixels.shape[2] + 2 * padding
        self.register_buffer("factor", (1 / std).float().repeat(width))
        self.register_buffer("offset", (-mean / std).float().repeat(width))

    def forward(self, pixels: Tensor) -> Tensor:
        if p := self.padding:
            pixels = F.pad(pixels, (0, 0, p, p, p, p))
        scaled = pixels.flatten(2).float().mul_(self.factor).add_(self.offset)
        return scaled.view(pixels.shape).permute(0, 3, 1, 2)  # channels_last in memory


def count_steps(images: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches of an epoch."""
    return images // batch_size if drop_last else -(-images // batch_size)


class Batches:
    """Shuffled, augmented training batches."""

    def __init__(
        self,
        train: Images,
        normalise: Normaliser,
        batch_size: int,
        augmentation: str,
        seed: int,
        device: torch.device = CPU,
        *,
        crop_padding: int = CROP_PADDING,
        drop_last: bool = True,
    ) -> None:
        if augmentation not in AUGMENTATIONS:
            raise unknown("augmentation", augmentation, AUGMENTATIONS)
        self.batch_size = min(batch_size, len(train))
        self.steps = count_steps(len(train), self.batch_size, drop_last)
        self.samples = min(self.steps * self.batch_size, len(train))  # per epoch
        self.normalise, self.augmentation, self.seed = normalise, augmentation, seed
        self.height, self.width = train.pixels.shape[1:3]
        p = self.padding = crop_padding if augmentation.startswith("crop") else 0
        # padded before it is moved, so that the device never holds the images twice
        padded = F.pad(train.pixels, (0, 0, p, p, p, p)) if p else train.pixels.contiguous()
        self.pixels, self.labels = padded.to(device), train.labels.to(device)
        self.x = torch.arange(self.width, device=device)
        self.y = torch.arange(self.height, device=device)[:, None] * (self.width + 2 * p)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch, which depend on the seed and its number alone."""
        generator = stream(self.seed, "epoch", epoch)
        order = torch.randperm(len(self.labels), generator=generator)
        origin, step = self._draw_crops(len(order), generator)
        drawn = order, order * self.pixels[0, ..., 0].numel() + origin, step
        parts = (torch.split(t.to(self.labels.device), self.batch_size) for t in drawn)
        for index, first, step in islice(zip(*parts, strict=True), len(self)):
            yield self.normalise(self._crop(index, first, step)), self.labels[index]

    def _draw_crops(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return each image's first pixel in its padded image, and the step to the next one."""
        top, left = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        is_flipping = self.augmentation.endswith("flip")
        flipped = torch.randint(1 + is_flipping, (count,), generator=generator).bool()
        row = self.width + 2 * self.padding
        origin = top * row + torch.where(flipped, left + self.width - 1, left)
        return origin, torch.where(flipped, -1, 1)

    def _crop(self, index: Tensor, first: Tensor, step: Tensor) -> Tensor:
        """Crop and flip images by one gather. Masks would wait for the device.

        `first` is an image's first pixel among those of all images.
        """
        if self.augmentation == "none":
            return self.pixels.index_select(0, index)
        channels = self.pixels.shape[-1]
        columns = torch.addcmul(first[:, None], step[:, None], self.x)  # [B, W]
        positions = columns[:, None, :] + self.y  # [B, H, W]
        pixels = self.pixels.view(-1, channels).index_select(0, positions.flatten())
        return pixels.view(len(index), self.height, self.width, channels)
