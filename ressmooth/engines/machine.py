"""Keep a second service and foreground launches off a machine that a service uses."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ressmooth.errors import StorageError, StudyBusy
from ressmooth.paths import command

ALLOW = "RESSMOOTH_BESIDE_SERVICE"  # set it to train beside a service all the same


def lock_file() -> Path:
    """Return the file that a service locks. The kernel unlocks it when the process ends."""
    return Path(tempfile.gettempdir()) / "ressmooth-service.lock"


@contextmanager
def claim(home: Path) -> Iterator[None]:
    """Hold this machine for the service of a home, or raise StudyBusy."""
    with _lock(fcntl.LOCK_EX) as descriptor:
        if descriptor is not None:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(home).encode(), 0)
        yield


def check_free(*words: str) -> None:
    """Raise StudyBusy if a service uses this machine. `words` would submit to it."""
    with _lock(fcntl.LOCK_SH, *words):
        pass


@contextmanager
def _lock(operation: int, *words: str) -> Iterator[int | None]:
    """Lock the file while the context lasts. Yield its descriptor, or None if that is off."""
    if os.environ.get(ALLOW):
        yield None
        return
    descriptor = _open(lock_file())
    try:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            home = Path(os.pread(descriptor, 4096, 0).decode(errors="replace"))
            submit = f"submit to it: {command(home, *words)}; " if words else ""
            raise StudyBusy(
                f"The service of {home} uses this machine; {submit}or use the machine beside it: "
                f"{ALLOW}=1"
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """Open the file. Other users' services and launches use the same one."""
    try:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor
    except OSError as error:
        raise StorageError(f"Cannot open {path}: {error.strerror}.") from error
