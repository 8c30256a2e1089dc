"""Read the user's own images: a folder with a directory per class, or the arrays of an npz file.

A folder has train/ and test/ (or val/) with a directory per class each, or just the directories
of the classes, of which a fixed fifth of the images is the test set.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ressmooth.errors import DataError
from ressmooth.training.decoded import image_files

TEST_SHARE = 0.2  # of a folder without test/ and val/
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
PARTS = ("train", "test", "val")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")  # 8 bits

Part = tuple[Tensor, Tensor]  # uint8 [N, H, W, C], int64 [N]
Labels = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Labelled:
    """The files of one part of a folder, with the numbers of their classes."""

    files: list[Path]
    labels: list[int]


def read_folder(source: Path, image_size: int) -> tuple[Part, Part, int]:
    """Return training set, test set and number of classes. A size of 0 keeps the files' size."""
    train = source / "train" if (source / "train").is_dir() else source
    classes = [path.name for path in _directories(train)]
    if all(name.lower().startswith(PARTS) for name in classes) and len(classes) > 1:
        raise DataError(
            f"images:{source}: {', '.join(classes)} are no classes; rename them to train/ and test/"
        )
    if len(classes) < 2:
        raise DataError(
            f"images:{source}: needs a directory of images for each of at least 2 classes in "
            f"{train}, but has {', '.join(classes) or 'none'}"
        )
    parts = [_labelled(train, classes)]
    if train is source:
        parts = _split(parts[0])
    else:
        parts.append(_labelled(_test_directory(source), classes))
    pixels = _decode([file for part in parts for file in part.files], image_size)
    border = len(parts[0].files)
    labels = [torch.tensor(part.labels) for part in parts]
    return (pixels[:border], labels[0]), (pixels[border:], labels[1]), len(classes)


def _directories(part: Path) -> list[Path]:
    """Return the directories that have images."""
    return sorted(
        path
        for path in part.iterdir()
        if path.is_dir() and not path.name.startswith(".") and image_files(path)
    )


def _test_directory(source: Path) -> Path:
    for name in ("test", "val"):
        if (source / name).is_dir():
            return source / name
    raise DataError(f"images:{source}: has train/, but neither test/ nor val/")


def _labelled(directory: Path, classes: Sequence[str]) -> Labelled:
    if unknown := [p.name for p in _directories(directory) if p.name not in classes]:
        raise DataError(f"{directory}: classes that are not in train/: {', '.join(unknown)}")
    found = [
        (file, number)
        for number, name in enumerate(classes)
        for file in image_files(directory / name)
    ]
    if not found:
        raise DataError(f"{directory}: has no images in directories of classes")
    return Labelled([file for file, _ in found], [number for _, number in found])


def _split(whole: Labelled) -> list[Labelled]:
    """Return a fixed training and test set, drawn from each class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor(whole.labels)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for number in set(whole.labels):
        members = (labels == number).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        is_test[members[order[: round(TEST_SHARE * len(members))]]] = True
    if not is_test.any():
        raise DataError("images: too few images for a test set; add test/ beside train/")
    return [
        Labelled(
            [
                file
                for file, test in zip(whole.files, is_test.tolist(), strict=True)
                if test == part
            ],
            labels[is_test == part].tolist(),
        )
        for part in (False, True)
    ]


def _decode(files: Sequence[Path], image_size: int) -> Tensor:
    """Return uint8 [N, H, W, C] with one channel if every image is grey, else three."""
    headers = [_header(file) for file in files]
    mode = "L" if all(mode in ("1", "L") for mode, _ in headers) else "RGB"
    sizes = dict.fromkeys(size for _, size in headers)
    if len(sizes) > 1 and not image_size:
        shown = ", ".join(f"{width} x {height}" for width, height in list(sizes)[:3])
        raise DataError(f"images have different sizes ({shown}, ...); set image_size = 32")
    size = (image_size, image_size) if image_size else next(iter(sizes))
    channels = 1 if mode == "L" else 3
    pixels = torch.empty(len(files), size[1], size[0], channels, dtype=torch.uint8)
    for number, file in enumerate(files):
        pixels[number] = _pixels(file, mode, size).view(size[1], size[0], channels)
    return pixels


def _header(file: Path) -> tuple[str, tuple[int, int]]:
    """Return mode and size of an image."""
    with _reading(file), Image.open(file) as image:
        mode, size = image.mode, image.size
    if mode not in MODES:  # Pillow would cut larger values off
        rule = "convert it, or read it in a plug-in"
        raise DataError(f"{file} has more than 8 bits per channel (mode {mode}); {rule}")
    return mode, size


def _pixels(file: Path, mode: str, size: tuple[int, int]) -> Tensor:
    """Return an image that is scaled and cropped at its centre to `size` (width, height)."""
    with _reading(file), Image.open(file) as image:
        fitted = ImageOps.fit(image.convert(mode), size, Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(fitted))


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} is not a readable image ({error}); mend or remove it") from error


def read_npz(source: Path) -> tuple[Part, Part, int]:
    """Return training set, test set and number of classes of an npz file."""
    try:
        with np.load(source, allow_pickle=False) as file:
            missing = [name for name in ARRAYS if name not in file]
            if missing:
                raise DataError(f"npz:{source}: has no array {', '.join(missing)}")
            arrays = {name: file[name] for name in ARRAYS}
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, ZlibError) as error:
        raise DataError(f"npz:{source} is not a readable npz file ({error})") from error
    train, test = (_part(source, arrays, name) for name in ("train", "test"))
    if train[0].shape[1:] != test[0].shape[1:]:
        shapes = " and ".join(str(tuple(x.shape[1:])) for x, _ in (train, test))
        raise DataError(f"npz:{source}: x_train and x_test have images of {shapes}")
    return train, test, _count_classes(source, arrays["y_train"], arrays["y_test"])


def _count_classes(source: Path, train: Labels, test: Labels) -> int:
    """Return the number of classes. Each needs a training image, or they are numbered wrongly."""
    seen, last = np.unique(train), int(max(train.max(), test.max()))
    if last < 1:
        raise DataError(f"npz:{source}: needs at least 2 classes, numbered from 0")
    if len(seen) <= last:
        gap = next(n for n in range(last + 1) if n >= len(seen) or seen[n] != n)
        raise DataError(
            f"npz:{source}: y_train has no image of class {gap}, but reaches {last}; number the "
            "classes from 0 without gaps"
        )
    return last + 1


def _part(source: Path, arrays: dict[str, Any], name: str) -> Part:
    x, y = arrays[f"x_{name}"], arrays[f"y_{name}"]
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or not x.size:
        raise DataError(
            f"npz:{source}: x_{name} must be uint8 [N, H, W] or [N, H, W, C], but is {x.dtype} "
            f"{list(x.shape)}"
        )
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1] or y.min() < 0:
        raise DataError(
            f"npz:{source}: y_{name} must be class numbers from 0, [{len(x)}], but is {y.dtype} "
            f"{list(y.shape)}" + (f" with {y.min()}" if y.dtype.kind == "i" and y.size else "")
        )
    pixels = torch.from_numpy(np.ascontiguousarray(x))
    return pixels if x.ndim == 4 else pixels[..., None], torch.from_numpy(y.astype(np.int64))
