"""Data that does not fit into memory: images of a map-style data set, read when they are needed.

A plug-in returns them as `ressmooth.Dataset(train, test, num_classes)`, where `train[i]` is a pair
of an image (PIL, or uint8 [C, H, W]) and a label. A DataLoader reads them in several processes.
Order and augmentation depend on (seed, epoch, index) alone, whatever the number of processes.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from ressmooth.config import CROP_PADDING
from ressmooth.errors import ConfigError
from ressmooth.training.data import count_steps, kept_generators, seed_python, stream

SAMPLE = 512  # images that are hashed, and whose mean and standard deviation are taken for all


@dataclass(frozen=True)
class Streamed:
    """A part of a map-style data set."""

    source: Any  # source[i] -> image, label
    indices: Tensor  # of the source

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Tensor) -> "Streamed":
        return Streamed(self.source, self.indices[index])

    def to(self, device: torch.device) -> "Streamed":
        """Return this: images are moved batch by batch."""
        return self

    @property
    def image(self) -> tuple[int, int, int]:
        """Return the shape [H, W, C] of an image."""
        channels, height, width = self.read(0)[0].shape
        return height, width, channels

    def sha256(self) -> str:
        """Return a hash of the number of images and of a fixed sample of them."""
        digest = hashlib.sha256(repr(len(self)).encode())
        for position in _sample(len(self)):
            pixels, label = self.read(position)
            digest.update(repr((label, tuple(pixels.shape))).encode() + pixels.numpy().tobytes())
        return digest.hexdigest()

    def read(self, position: int) -> tuple[Tensor, int]:
        """Return an image as uint8 [C, H, W], and its label."""
        from torchvision.transforms.v2.functional import to_image  # slow to load, and rarely needed

        index = int(self.indices[position])
        image, label = self.source[index]
        pixels = to_image(image)
        if pixels.dtype != torch.uint8:
            found = f"{pixels.dtype} {list(pixels.shape)}"
            rule = "should be a PIL image or uint8 [C, H, W]"
            raise ConfigError(f"image {index} {rule}, but is {found}")
        return pixels.as_subclass(Tensor), int(label)


def whole(source: Any) -> Streamed:
    return Streamed(source, torch.arange(len(source)))


def check_source(name: str, source: Any) -> None:
    """Raise a ConfigError if this is not a map-style data set with at least one image."""
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        rule = "should be ressmooth.Images or have __getitem__ and __len__"
        raise ConfigError(f"{name}: {rule}, but is {source!r:.80}")
    if not len(source):
        raise ConfigError(f"{name}: has no images")
    try:
        whole(source).read(0)
    except (TypeError, ValueError):
        rule = "item 0 should be an image and a label"
        raise ConfigError(f"{name}: {rule}, but is {source[0]!r:.80}") from None


def _sample(count: int) -> list[int]:
    """Return fixed positions that stand for a whole data set."""
    chosen: list[int] = torch.randperm(count, generator=stream(0, "sample"))[:SAMPLE].tolist()
    return chosen


class StreamNormaliser(nn.Module):
    """uint8 [B, C, H, W] -> float with about mean 0 and std 1, estimated from a fixed sample."""

    mean: Tensor
    std: Tensor

    def __init__(self, train: Streamed, device: torch.device, padding: int = 0) -> None:
        super().__init__()
        self.padding = padding
        pixels = torch.stack([train.read(i)[0] for i in _sample(len(train))]).double()
        shape = (1, -1, 1, 1)
        self.register_buffer("mean", pixels.mean((0, 2, 3)).float().view(shape).to(device))
        std = pixels.std((0, 2, 3)).clamp_min(1.0).float().view(shape).to(device)
        self.register_buffer("std", std)

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = pad(pixels, [self.padding] * 4)
        return (pixels.float() - self.mean) / self.std


@dataclass(frozen=True)
class _Augmented:
    """What a DataLoader reads: item i of an epoch is the same in whatever process."""

    images: Streamed
    augment: Any  # a transform of torchvision
    seed: int
    epoch: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        number = stream(self.seed, "augment", self.epoch, position).initial_seed()
        torch.default_generator.manual_seed(number)  # which torchvision's transforms draw from
        seed_python(number)
        pixels, label = self.images.read(position)
        return self.augment(pixels), label


def _transform(augmentation: str, image: tuple[int, int, int], crop_padding: int) -> Any:
    """Return a transform of torchvision."""
    from torchvision.transforms import v2

    height, width, _ = image
    is_cropping, is_flipping = augmentation.startswith("crop"), augmentation.endswith("flip")
    crop = [v2.RandomCrop((height, width), crop_padding)] if is_cropping else []
    flip = [v2.RandomHorizontalFlip()] if is_flipping else []
    return v2.Compose([*crop, *flip]) if crop or flip else v2.Identity()


class StreamBatches:
    """Batches of streamed images with the interface of `Batches`."""

    def __init__(
        self,
        images: Streamed,
        normalise: StreamNormaliser,
        batch_size: int,
        augmentation: str,
        seed: int,
        workers: int,
        device: torch.device,
        *,
        crop_padding: int = CROP_PADDING,
        drop_last: bool = True,
    ) -> None:
        self.images, self.normalise, self.seed = images, normalise, seed
        self.batch_size = min(batch_size, len(images))
        self.workers, self.device = workers, device
        self.steps = count_steps(len(images), self.batch_size, drop_last)
        self.samples = min(self.steps * self.batch_size, len(images))  # per epoch
        self.augment = _transform(augmentation, images.image, crop_padding)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the shuffled, augmented batches of an epoch."""
        order = torch.randperm(len(self.images), generator=stream(self.seed, "epoch", epoch))
        data = _Augmented(self.images, self.augment, self.seed, epoch)
        yield from self._load(data, order[: self.steps * self.batch_size].tolist())

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all images as they are, for an evaluation."""
        unchanged = _transform("none", self.images.image, 0)
        data = _Augmented(self.images, unchanged, self.seed, 0)
        yield from self._load(data, list(range(len(self.images))))

    def _load(self, data: _Augmented, order: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        loader: Any = DataLoader(
            data,  # type: ignore[arg-type]  # map-style: it has __getitem__ and __len__
            self.batch_size,
            sampler=order,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        with kept_generators():  # what is read in this process seeds them
            read = iter(loader)
        for _ in range(len(loader)):
            with kept_generators():
                pixels, labels = next(read)
            on_device = pixels.to(self.device, non_blocking=True)
            yield self.normalise(on_device), labels.to(self.device, non_blocking=True)
