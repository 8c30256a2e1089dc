"""The names of decoded data sets in `data/`. Loads no torch."""

import hashlib
import os
from pathlib import Path

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def lock_file(key: str, root: Path) -> Path:
    """Return the file that a process locks while it decodes a data set."""
    return root / f".{key}.lock"


def own_key(name: str, image_size: int) -> str:
    """Return the key of the user's own data set, which changes with its files.

    Raise OSError if the files cannot be read.
    """
    kind, _, path = name.partition(":")
    state = fingerprint(Path(path))
    return f"{kind}-{hashlib.sha256(repr((name, image_size, state)).encode()).hexdigest()[:16]}"


def fingerprint(source: Path) -> str:
    """Return a hash of the files' names, sizes and times, which tells whether they changed."""
    files = image_files(source) if source.is_dir() else [source]
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        name = str(file.relative_to(source))
        digest.update(repr((name, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()


def image_files(directory: Path) -> list[Path]:
    """Return the images below a directory, also in linked ones. Hidden ones are left out."""
    found: list[Path] = []
    for folder, below, files in os.walk(directory, followlinks=True):
        below[:] = [name for name in below if not name.startswith(".")]
        paths = (Path(folder, name) for name in files if not name.startswith("."))
        found += (path for path in paths if path.suffix.lower() in SUFFIXES)
    return sorted(found)
