"""Data sets as uint8 tensors on the device, and batches made from them by indexing alone.

fashion_mnist, cifar10, cifar100 and svhn come through torchvision, which downloads them on first
use; digits is part of scikit-learn; synthetic is drawn from a fixed seed, CIFAR-shaped."""

import fcntl
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ressmooth.config import BUILT_IN
from ressmooth.errors import DataError, StorageError, unknown
from ressmooth.training.checkpoint import State, encode, sha256, write

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
HOLDOUT = 0.1  # share of the training set that selects under selection = "holdout"
PADDING = 4  # zero pixels around an image before it is cropped


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
    validation: Images  # the test set itself under selection = "paper"
    test: Images


def stream(seed: int, *purpose: object) -> torch.Generator:
    """Random numbers for one purpose, independent of every other purpose and of torch's own."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8]) >> 1)


def split(dataset: Dataset, *, fraction: float, selection: str, seed: int) -> Splits:
    """Hold out what selects (if asked), then keep a uniform random `fraction` of the rest."""
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
        # repeated over a row of pixels, [W*C]: a last axis of one or three numbers is slow
        width = train.pixels.shape[2]
        self.factor = (1 / std).float().repeat(width)
        self.offset = (-mean / std).float().repeat(width)

    def __call__(self, pixels: Tensor) -> Tensor:
        scaled = pixels.flatten(2).float().mul_(self.factor).add_(self.offset)
        return scaled.view(pixels.shape).permute(0, 3, 1, 2)  # channels_last in memory


class Batches:
    """Shuffled, augmented training batches; the last incomplete one of an epoch is dropped."""

    def __init__(
        self, train: Images, normalise: Normaliser, batch_size: int, augmentation: str, seed: int
    ) -> None:
        if augmentation not in ("none", "flip", "crop-flip"):
            raise unknown("augmentation", augmentation, ("none", "flip", "crop-flip"))
        self.batch_size = min(batch_size, len(train))
        self.normalise, self.augmentation, self.seed = normalise, augmentation, seed
        self.labels = train.labels
        self.height, self.width = train.pixels.shape[1:3]
        self.padding = PADDING if augmentation == "crop-flip" else 0
        p = self.padding
        self.pixels = F.pad(train.pixels, (0, 0, p, p, p, p))

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one epoch: the same for the same seed and epoch, on any device."""
        device = self.labels.device
        generator = stream(self.seed, "epoch", epoch)
        order = torch.randperm(len(self.labels), generator=generator).to(device)
        origin, step = (t.to(device) for t in self._crops(len(order), generator))
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            here = slice(start, start + self.batch_size)
            index = order[here]
            pixels = (
                self.pixels.index_select(0, index)
                if self.augmentation == "none"
                else self._crop(index, origin[here], step[here])
            )
            yield self.normalise(pixels), self.labels[index]

    def _crops(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Per image: where its first pixel lies in the padded image, and the step to the right."""
        top, left = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        flipped = torch.randint(2, (count,), generator=generator).bool()
        row = self.width + 2 * self.padding
        origin = top * row + torch.where(flipped, left + self.width - 1, left)
        return origin, torch.where(flipped, -1, 1)

    def _crop(self, index: Tensor, origin: Tensor, step: Tensor) -> Tensor:
        """Crop and flip by one gather: no masks, so no synchronisation with the device."""
        n, rows, row, channels = self.pixels.shape
        y = torch.arange(self.height, device=index.device) * row
        x = torch.arange(self.width, device=index.device)
        first = index * (rows * row) + origin  # [B]
        columns = first[:, None] + step[:, None] * x  # [B, W]
        where = columns[:, None, :] + y[:, None]  # [B, H, W]
        pixels = self.pixels.view(n * rows * row, channels).index_select(0, where.flatten())
        return pixels.view(len(index), self.height, self.width, channels)


def load(name: str, root: Path) -> Dataset:
    """A data set; downloaded into `root` if it is not there."""
    if name not in LOADERS:
        raise unknown("data set", name, LOADERS)
    return _load(name, root)


@lru_cache(maxsize=2)
def _load(name: str, root: Path) -> Dataset:
    """Decoded by the first process of a machine that wants it, mapped by the others."""
    if name in BUILT_IN:
        return LOADERS[name](root)
    try:
        if (parts := _load_decoded(root, name)) is not None:
            return _joined(parts)
        root.mkdir(parents=True, exist_ok=True)
        with open(root / f".{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # only one downloads and decodes
            if (parts := _load_decoded(root, name)) is not None:
                return _joined(parts)
            dataset = LOADERS[name](root)
            with suppress(StorageError):  # no room: every process has its own
                _save_decoded(root, name, asdict(dataset))
            return dataset
    except OSError:  # a directory that we may not write to
        return LOADERS[name](root)


def _joined(parts: dict[str, Any]) -> Dataset:
    return Dataset(Images(**parts["train"]), Images(**parts["test"]), parts["num_classes"])


def present(root: Path) -> list[str]:
    """The data sets that need no download, going by the files in `root`."""
    here = {
        "fashion_mnist": DEBIAN_FASHION_MNIST.is_dir() or (root / "FashionMNIST").is_dir(),
        "cifar10": (root / "cifar-10-batches-py").is_dir(),
        "cifar100": (root / "cifar-100-python").is_dir(),
        "svhn": (root / "train_32x32.mat").is_file(),
    }
    return [*BUILT_IN, *(name for name, found in here.items() if found)]


def _images(pixels: Any, labels: Any) -> Images:
    pixels, labels = torch.as_tensor(pixels), torch.as_tensor(labels)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    return Images(pixels.to(torch.uint8).contiguous(), labels.long())


def _digits(root: Path) -> Dataset:
    """1,797 images 8x8x1; every data set needs a test set, so a fixed fifth is ours."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits().images * 15, load_digits().target  # 0..16 -> 0..240
    order = torch.randperm(len(labels), generator=stream(0, "digits"))
    everything = _images(pixels, labels)
    return Dataset(everything[order[360:]], everything[order[:360]], 10)


def _synthetic(root: Path) -> Dataset:
    """2,560 + 512 images 32x32x3: one random pattern per class under heavy noise."""
    generator = stream(0, "synthetic")
    patterns = torch.randn(10, 32, 32, 3, generator=generator)

    def draw(count: int) -> Images:
        labels = torch.arange(count) % 10
        noise = torch.randn(count, 32, 32, 3, generator=generator) * 2
        return _images((128 + 24 * (patterns[labels] + noise)).clamp(0, 255), labels)

    return Dataset(draw(2560), draw(512), 10)


def _fashion_mnist(root: Path) -> Dataset:
    files = DEBIAN_FASHION_MNIST
    if not files.is_dir():
        return _torchvision("FashionMNIST", 10)(root)

    def read(part: str) -> Images:
        def array(name: str, header: int) -> np.ndarray[Any, Any]:
            file = files / f"{part}-{name}-ubyte.gz"
            try:
                content = gzip.decompress(file.read_bytes())
            except UNREADABLE as error:
                raise DataError(f"{file} is damaged ({error}); install it again.") from error
            return np.frombuffer(bytearray(content), np.uint8, offset=header)

        return _images(array("images-idx3", 16).reshape(-1, 28, 28), array("labels-idx1", 8))

    return Dataset(read("train"), read("t10k"), 10)


# what readers of damaged or missing files raise, ours and torchvision's
UNREADABLE = (OSError, EOFError, zlib.error, RuntimeError, ValueError, AssertionError)
# what belongs in the data directory, for when it cannot be downloaded
FILES = {
    "FashionMNIST": "FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz",
    "CIFAR10": "cifar-10-python.tar.gz",
    "CIFAR100": "cifar-100-python.tar.gz",
    "SVHN": "train_32x32.mat, test_32x32.mat",
}


def _torchvision(kind: str, num_classes: int) -> Callable[[Path], Dataset]:
    def read(root: Path) -> Dataset:
        from torchvision import datasets

        def part(train: bool) -> Images:
            which = {"split": "train" if train else "test"} if kind == "SVHN" else {"train": train}
            found = getattr(datasets, kind)(str(root), download=True, **which)
            if kind == "SVHN":
                return _images(found.data.transpose(0, 2, 3, 1), found.labels)
            return _images(found.data, found.targets)

        try:
            return Dataset(part(True), part(False), num_classes)
        except UNREADABLE as error:
            raise DataError(
                f"{kind} is not in {root} and could not be downloaded ({error}). "
                f"Put these files there and try again: {FILES[kind]}"
            ) from error

    return read


LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": _digits,
    "synthetic": _synthetic,
    "fashion_mnist": _fashion_mnist,
    "cifar10": _torchvision("CIFAR10", 10),
    "cifar100": _torchvision("CIFAR100", 100),
    "svhn": _torchvision("SVHN", 10),
}


def _save_decoded(directory: Path, name: str, state: State) -> None:
    """The file's name says what its content must hash to."""
    content = encode(state)
    write(directory / f"{name}-{sha256(content)}.pt", content)


def _load_decoded(directory: Path, name: str) -> State | None:
    """What an undamaged file holds, if there is one."""
    for path in directory.glob(f"{name}-*.pt"):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if path.stem == f"{name}-{digest}":
            state: State = torch.load(path, mmap=True, weights_only=True)
            return state
    return None
