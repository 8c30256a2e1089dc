"""Data sets as uint8 tensors on the device, and training batches made from them by indexing.

torchvision downloads fashion_mnist, cifar10, cifar100 and svhn on first use. digits is part of
scikit-learn. synthetic has CIFAR's shape and is drawn from a fixed seed.
"""

import fcntl
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ressmooth.config import BUILT_IN
from ressmooth.errors import DataError, StorageError, unknown
from ressmooth.training.checkpoint import encode, sha256, write

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
HOLDOUT = 0.1  # share of the training set that validates under selection = "holdout"
PADDING = 4  # zero pixels around an image before it is cropped
# Raised for damaged or missing files, by our readers and by torchvision's.
UNREADABLE = (OSError, EOFError, zlib.error, RuntimeError, ValueError, AssertionError)
# The files that torchvision expects, for a user who cannot download them.
FILES = {
    "FashionMNIST": "FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz",
    "CIFAR10": "cifar-10-python.tar.gz",
    "CIFAR100": "cifar-100-python.tar.gz",
    "SVHN": "train_32x32.mat, test_32x32.mat",
}


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


@dataclass(frozen=True)
class Dataset:
    train: Images
    test: Images
    num_classes: int


@dataclass(frozen=True)
class Splits:
    train: Images
    validation: Images  # equals the test set under selection = "paper"
    test: Images


@lru_cache(maxsize=2)
def load(name: str, root: Path) -> Dataset:
    """Return a data set. Download it into `root` if it is not there."""
    if name not in LOADERS:
        raise unknown("data set", name, LOADERS)
    if name in BUILT_IN:
        return LOADERS[name](root)
    try:
        return _load_decoded(name, root) or _decode(name, root)
    except OSError:  # `root` is not writable: every process decodes for itself
        return LOADERS[name](root)


def _load_decoded(name: str, root: Path) -> Dataset | None:
    """Map the decoded data set into memory that all processes share. Return None without one."""
    for path in root.glob(f"{name}-*.pt"):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if path.stem == f"{name}-{digest}":  # the file is intact
            parts = torch.load(path, mmap=True, weights_only=True)
            return Dataset(Images(**parts["train"]), Images(**parts["test"]), parts["num_classes"])
    return None


def _decode(name: str, root: Path) -> Dataset:
    """Decode a data set and save it for other processes, which wait meanwhile."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (dataset := _load_decoded(name, root)) is not None:
            return dataset
        dataset = LOADERS[name](root)
        content = encode(asdict(dataset))
        with suppress(StorageError):  # the disk is full: every process decodes for itself
            write(root / f"{name}-{sha256(content)}.pt", content)
        return dataset


def present(root: Path) -> list[str]:
    """Return the data sets that need no download, judging by the files in `root`."""
    is_present = {
        "fashion_mnist": DEBIAN_FASHION_MNIST.is_dir() or (root / "FashionMNIST").is_dir(),
        "cifar10": (root / "cifar-10-batches-py").is_dir(),
        "cifar100": (root / "cifar-100-python").is_dir(),
        "svhn": (root / "train_32x32.mat").is_file(),
    }
    return [*BUILT_IN, *(name for name, found in is_present.items() if found)]


def _digits(root: Path) -> Dataset:
    """Return 1,797 images of 8x8x1. A fixed fifth is the test set, which digits lacks."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits().images * 15, load_digits().target  # 0..16 -> 0..240
    order = torch.randperm(len(labels), generator=stream(0, "digits"))
    images = _images(pixels, labels)
    return Dataset(images[order[360:]], images[order[:360]], 10)


def _synthetic(root: Path) -> Dataset:
    """Return 2,560 + 512 images of 32x32x3: one random pattern per class under heavy noise."""
    generator = stream(0, "synthetic")
    patterns = torch.randn(10, 32, 32, 3, generator=generator)

    def draw(count: int) -> Images:
        labels = torch.arange(count) % 10
        noise = torch.randn(count, 32, 32, 3, generator=generator) * 2
        return _images((128 + 24 * (patterns[labels] + noise)).clamp(0, 255), labels)

    return Dataset(draw(2560), draw(512), 10)


def _fashion_mnist(root: Path) -> Dataset:
    if not DEBIAN_FASHION_MNIST.is_dir():
        return _torchvision("FashionMNIST", 10, root)

    def read(part: str) -> Images:
        pixels = _read_idx(DEBIAN_FASHION_MNIST / f"{part}-images-idx3-ubyte.gz", header=16)
        labels = _read_idx(DEBIAN_FASHION_MNIST / f"{part}-labels-idx1-ubyte.gz", header=8)
        return _images(pixels.reshape(-1, 28, 28), labels)

    return Dataset(read("train"), read("t10k"), 10)


def _read_idx(file: Path, header: int) -> np.ndarray[Any, Any]:
    """Return the values of an idx file, which follow a header of so many bytes."""
    try:
        content = gzip.decompress(file.read_bytes())
    except UNREADABLE as error:
        raise DataError(f"{file} is damaged ({error}); install it again.") from error
    return np.frombuffer(bytearray(content), np.uint8, offset=header)


def _torchvision(kind: str, num_classes: int, root: Path) -> Dataset:
    from torchvision import datasets

    def read(is_train: bool) -> Images:
        if kind == "SVHN":
            part = datasets.SVHN(str(root), "train" if is_train else "test", download=True)
            return _images(part.data.transpose(0, 2, 3, 1), part.labels)
        part = getattr(datasets, kind)(str(root), train=is_train, download=True)
        return _images(part.data, part.targets)

    try:
        return Dataset(read(True), read(False), num_classes)
    except UNREADABLE as error:
        raise DataError(
            f"{kind} is not in {root} and could not be downloaded ({error}). "
            f"Put these files there and try again: {FILES[kind]}"
        ) from error


def _images(pixels: Any, labels: Any) -> Images:
    pixels, labels = torch.as_tensor(pixels), torch.as_tensor(labels)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    return Images(pixels.to(torch.uint8).contiguous(), labels.long())


LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": _digits,
    "synthetic": _synthetic,
    "fashion_mnist": _fashion_mnist,
    "cifar10": partial(_torchvision, "CIFAR10", 10),
    "cifar100": partial(_torchvision, "CIFAR100", 100),
    "svhn": partial(_torchvision, "SVHN", 10),
}


def stream(seed: int, *purpose: object) -> torch.Generator:
    """Return random numbers for one purpose, independent of other purposes and torch's state."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


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


class Normaliser:
    """uint8 [B, H, W, C] -> float [B, C, H, W] with mean 0 and std 1 over the training set."""

    def __init__(self, train: Images) -> None:
        channels = train.pixels.unbind(-1)
        histogram = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in channels])
        share = histogram.double() / histogram.sum(1, keepdim=True)  # [C, 256]
        value = torch.arange(256, dtype=torch.float64, device=share.device)
        mean = (share * value).sum(1)
        std = (share * (value - mean[:, None]).square()).sum(1).sqrt().clamp_min(1.0)
        # Repeated over a row of pixels, [W*C], because a last axis of length 1 or 3 is slow.
        width = train.pixels.shape[2]
        self.factor = (1 / std).float().repeat(width)
        self.offset = (-mean / std).float().repeat(width)

    def __call__(self, pixels: Tensor) -> Tensor:
        scaled = pixels.flatten(2).float().mul_(self.factor).add_(self.offset)
        return scaled.view(pixels.shape).permute(0, 3, 1, 2)  # channels_last in memory


class Batches:
    """Shuffled, augmented training batches. The last, incomplete one of an epoch is dropped."""

    def __init__(
        self, train: Images, normalise: Normaliser, batch_size: int, augmentation: str, seed: int
    ) -> None:
        if augmentation not in ("none", "flip", "crop-flip"):
            raise unknown("augmentation", augmentation, ("none", "flip", "crop-flip"))
        self.batch_size = min(batch_size, len(train))
        self.normalise, self.augmentation, self.seed = normalise, augmentation, seed
        self.labels = train.labels
        self.height, self.width = train.pixels.shape[1:3]
        p = self.padding = PADDING if augmentation == "crop-flip" else 0
        self.pixels = F.pad(train.pixels, (0, 0, p, p, p, p))

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch, which depend on the seed and its number alone."""
        generator = stream(self.seed, "epoch", epoch)
        order = torch.randperm(len(self.labels), generator=generator)
        drawn = (order, *self._draw_crops(len(order), generator))
        parts = (torch.split(t.to(self.labels.device), self.batch_size) for t in drawn)
        for index, origin, step in islice(zip(*parts, strict=True), len(self)):
            yield self.normalise(self._crop(index, origin, step)), self.labels[index]

    def _draw_crops(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return each image's first pixel in its padded image, and the step to the next one."""
        top, left = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        flipped = torch.randint(2, (count,), generator=generator).bool()
        row = self.width + 2 * self.padding
        origin = top * row + torch.where(flipped, left + self.width - 1, left)
        return origin, torch.where(flipped, -1, 1)

    def _crop(self, index: Tensor, origin: Tensor, step: Tensor) -> Tensor:
        """Crop and flip images by one gather. Masks would wait for the device."""
        if self.augmentation == "none":
            return self.pixels.index_select(0, index)
        n, rows, row, channels = self.pixels.shape
        y = torch.arange(self.height, device=index.device) * row
        x = torch.arange(self.width, device=index.device)
        first = index * (rows * row) + origin  # [B]
        columns = first[:, None] + step[:, None] * x  # [B, W]
        positions = columns[:, None, :] + y[:, None]  # [B, H, W]
        pixels = self.pixels.view(n * rows * row, channels).index_select(0, positions.flatten())
        return pixels.view(len(index), self.height, self.width, channels)
