"""Data sets by name, decoded once into files that all processes share.

torchvision downloads fashion_mnist, cifar10, cifar100 and svhn on first use. digits is part of
scikit-learn. synthetic has CIFAR's shape and is drawn from a fixed seed. images:PATH and npz:PATH
are the user's own, as is what a plug-in provides.
"""

import fcntl
import gzip
import hashlib
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ressmooth.config import BUILT_IN, RunConfig, is_own
from ressmooth.errors import ConfigError, DataError, StorageError, unknown
from ressmooth.paths import DEBIAN_FASHION_MNIST
from ressmooth.plugins import NO_PLUGINS, Plugins
from ressmooth.training import user_data
from ressmooth.training.checkpoint import encode, sha256, write
from ressmooth.training.data import Dataset, Images, stream
from ressmooth.training.decoded import lock_file, own_key
from ressmooth.training.streaming import check_source, whole

# Raised for damaged or missing files, by our readers and by torchvision's.
UNREADABLE = (OSError, EOFError, zlib.error, RuntimeError, ValueError, AssertionError)


def load_for(
    config: RunConfig, root: Path, plugins: Plugins = NO_PLUGINS, *, keep: bool = True
) -> Dataset:
    """Return the data set of a run, which a plug-in may provide."""
    if not plugins.get("dataset", config.dataset):
        return load(config.dataset, root, config.image_size, keep)
    settings = config.plugin_settings
    return _hashed(_checked(plugins.call("dataset", config.dataset, settings, root=root)))


def _checked(found: Any) -> Dataset:
    """Return what a plug-in provides, or raise a ConfigError if it is not a data set."""
    if not isinstance(found, Dataset):
        raise ConfigError(
            f"a dataset should return a ressmooth.Dataset, but returned {found!r:.80}"
        )
    if type(found.num_classes) is not int or found.num_classes < 2:
        raise ConfigError(f"num_classes should be an int above 1, but is {found.num_classes!r}")
    for name, part in (("train", found.train), ("test", found.test)):
        if not isinstance(part, Images):
            check_source(name, part)
            continue
        pixels, labels = part.pixels, part.labels
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or not len(pixels):
            rule = "pixels should be uint8 [N, H, W, C]"
            raise ConfigError(f"{name}: {rule}, but are {pixels.dtype} {list(pixels.shape)}")
        if labels.dtype != torch.int64 or labels.shape != pixels.shape[:1]:
            rule = f"labels should be int64 [{len(pixels)}]"
            raise ConfigError(f"{name}: {rule}, but are {labels.dtype} {list(labels.shape)}")
        if labels.min() < 0 or labels.max() >= found.num_classes:
            rule = f"labels should be 0 to {found.num_classes - 1}"
            raise ConfigError(f"{name}: {rule}, but reach {labels.min()} to {labels.max()}")
    train, test = (p if isinstance(p, Images) else whole(p) for p in (found.train, found.test))
    if train.image != test.image:
        raise ConfigError(f"train and test have images of {train.image} and {test.image}")
    return Dataset(train, test, found.num_classes)


def _hashed(dataset: Dataset) -> Dataset:
    """Return the data set with the hash of its content."""
    content = dataset.train.sha256() + dataset.test.sha256()
    return replace(dataset, sha256=sha256(content.encode()))


@lru_cache(maxsize=2)
def load(name: str, root: Path, image_size: int = 0, keep: bool = True) -> Dataset:
    """Return a data set. Download it into `root` if it is not there, unless `keep` is False."""
    if is_own(name):
        return _load_own(name, root, image_size, keep)
    if name not in LOADERS:
        raise unknown("data set", name, LOADERS)
    if name in BUILT_IN:
        return LOADERS[name](root)
    return _shared(name, root, lambda: LOADERS[name](root, download=keep), keep)


def _load_own(name: str, root: Path, image_size: int, keep: bool) -> Dataset:
    """Return the user's own data set. It is decoded anew when its files change."""
    kind, _, path = name.partition(":")
    source = Path(path)
    try:
        key = own_key(name, image_size)
    except OSError as error:
        raise DataError(
            f"dataset = {name!r}: cannot read {error.filename} ({error.strerror})"
        ) from error

    def read() -> Dataset:
        train, test, num_classes = (
            user_data.read_folder(source, image_size)
            if kind == "images"
            else user_data.read_npz(source)
        )
        return _hashed(Dataset(Images(*train), Images(*test), num_classes))

    return _shared(key, root, read, keep)


def _shared(key: str, root: Path, read: Callable[[], Dataset], keep: bool) -> Dataset:
    """Return a data set that is decoded once, into a file that all processes share."""
    if not keep:
        return _load_decoded(key, root) or read()
    try:
        return _load_decoded(key, root) or _decode(key, root, read)
    except OSError:  # `root` is not writable: every process decodes for itself
        return read()


def _load_decoded(key: str, root: Path) -> Dataset | None:
    """Map the decoded data set into memory that all processes share. Return None without one."""
    for path in root.glob(f"{key}-*.pt"):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if path.stem == f"{key}-{digest}" and (found := _read_decoded(path)):  # it is intact
            return found
    return None


def _read_decoded(path: Path) -> Dataset | None:
    """Return what a decoded file holds, or None if somebody has put another file in its place."""
    try:
        parts = torch.load(path, mmap=True, weights_only=True)
        train, test = Images(**parts.pop("train")), Images(**parts.pop("test"))
        found = Dataset(train, test, **parts)
        _checked(found)
    except Exception:  # torch raises EOFError, RuntimeError, UnpicklingError ...
        return None
    # a study that has recorded this hash refuses data with another one
    return found if found.sha256 in (None, _hashed(found).sha256) else None


def _decode(key: str, root: Path, read: Callable[[], Dataset]) -> Dataset:
    """Decode a data set and save it for other processes, which wait meanwhile."""
    root.mkdir(parents=True, exist_ok=True)
    with open(lock_file(key, root), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (dataset := _load_decoded(key, root)) is not None:
            return dataset
        dataset = read()
        content = encode(asdict(dataset))
        with suppress(StorageError):  # the disk is full: every process decodes for itself
            write(root / f"{key}-{sha256(content)}.pt", content)
        return dataset


def _digits(root: Path) -> Dataset:
    """Return 1,797 images of 8x8x1. A fixed fifth is the test set, which digits lacks."""
    # its file is read here because importing scikit-learn takes a second in every worker
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(file, np.uint8, delimiter=",")
    pixels, labels = rows[:, :-1].reshape(-1, 8, 8) * 15, rows[:, -1]  # 0..16 -> 0..240
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


def _fashion_mnist(root: Path, download: bool = True) -> Dataset:
    if not DEBIAN_FASHION_MNIST.is_dir():
        return _torchvision("FashionMNIST", 10, root, download)

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


def _torchvision(kind: str, num_classes: int, root: Path, download: bool = True) -> Dataset:
    from torchvision import datasets

    def read(is_train: bool) -> Images:
        if kind == "SVHN":
            part = datasets.SVHN(str(root), "train" if is_train else "test", download=download)
            return _images(part.data.transpose(0, 2, 3, 1), part.labels)
        part = getattr(datasets, kind)(str(root), train=is_train, download=download)
        return _images(part.data, part.targets)

    try:
        return Dataset(read(True), read(False), num_classes)
    except UNREADABLE as error:
        raise DataError(_missing(kind, root, error)) from error


def _missing(kind: str, root: Path, error: Exception) -> str:
    """Return which original files are damaged or missing, and what to do."""
    from torchvision.datasets.utils import calculate_md5

    reason = " ".join(str(error).split())  # torchvision's has line breaks
    sums = {root / name: md5 for name, md5 in _sums(kind).items()}
    found = {file: calculate_md5(file) for file in sums if file.is_file()}
    damaged = [
        f"{file} is not the original: its MD5 sum is {md5}, but should be {sums[file]}"
        for file, md5 in found.items()
        if md5 != sums[file]
    ]
    if damaged:
        text = "; ".join(damaged)
        return f"{text}. Downloading it failed ({reason}). Remove the file, or copy it again."
    needed = ", ".join(f"{file.relative_to(root)} (MD5 {md5})" for file, md5 in sums.items())
    return (
        f"{kind} is not in {root} and could not be downloaded. "
        f"Put these files there and try again: {needed}\n{reason}"
    )


def _sums(kind: str) -> dict[str, str]:
    """Return the MD5 sums of the files that torchvision downloads."""
    from torchvision import datasets

    source = getattr(datasets, kind)
    if kind == "FashionMNIST":
        return {f"{kind}/raw/{name}": md5 for name, md5 in source.resources}
    if kind == "SVHN":
        return {
            source.split_list[part][1]: source.split_list[part][2] for part in ("train", "test")
        }
    return {source.filename: source.tgz_md5}


def _images(pixels: Any, labels: Any) -> Images:
    pixels, labels = torch.as_tensor(pixels), torch.as_tensor(labels)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    return Images(pixels.to(torch.uint8).contiguous(), labels.long())


LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": _digits,
    "synthetic": _synthetic,
    "fashion_mnist": _fashion_mnist,
    "cifar10": partial(_torchvision, "CIFAR10", 10),
    "cifar100": partial(_torchvision, "CIFAR100", 100),
    "svhn": partial(_torchvision, "SVHN", 10),
}
