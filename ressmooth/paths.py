"""The places of files: one home directory, with a directory per run in it."""

import os
from contextlib import suppress
from pathlib import Path

from ressmooth.errors import ConfigError, StorageError

WEIGHTS = "best.safetensors"  # in a run's directory


def home(path: Path | None = None) -> Path:
    """Return the home directory: `path`, or RESSMOOTH_HOME, or ~/.ressmooth."""
    path = path or Path(os.environ.get("RESSMOOTH_HOME") or Path.home() / ".ressmooth")
    path = path.absolute()
    if any(character in str(path) for character in "%?#"):  # special in database URLs
        raise ConfigError(f"home = {str(path)!r}: a path without % ? #")
    return path


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(
            f"Cannot create {path}: a file is in the way; choose another path."
        ) from error
    except OSError as error:
        raise StorageError(f"Cannot create {path}: {error.strerror}.") from error


def run_directory(home: Path, uid: str) -> Path:
    return home / "runs" / uid


def checkpoint(directory: Path, epoch: int) -> Path:
    return directory / f"epoch-{epoch:06d}.pt"


def remove_checkpoints(directory: Path) -> None:
    for path in directory.glob("epoch-*"):
        with suppress(OSError):
            path.unlink()
