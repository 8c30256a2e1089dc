"""Where things are kept: one home, a directory per run in it."""

import os
from contextlib import suppress
from pathlib import Path

from ressmooth.errors import ConfigError, StorageError

WEIGHTS = "best.safetensors"  # in a run's directory


def home(given: Path | None = None) -> Path:
    """Where results are kept: as given, or RESSMOOTH_HOME, or ~/.ressmooth."""
    place = given or Path(os.environ.get("RESSMOOTH_HOME") or Path.home() / ".ressmooth")
    place = place.absolute()
    if any(character in str(place) for character in "%?#"):  # have a meaning in database URLs
        raise ConfigError(f"home = {str(place)!r}: a path without % ? #")
    return place


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot create {path}: {error.strerror}.") from error


def of_run(home: Path, uid: str) -> Path:
    return home / "runs" / uid


def checkpoint(directory: Path, epoch: int) -> Path:
    return directory / f"epoch-{epoch:06d}.pt"


def clear(directory: Path) -> None:
    """A run that ended needs no checkpoints."""
    for path in directory.glob("epoch-*"):
        with suppress(OSError):
            path.unlink()
