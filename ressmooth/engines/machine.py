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
def claim(home: Path, store: str) -> Iterator[None]:
    """Hold this machine for the service of a home and a Store, or raise StudyBusy.

    The Store's last service may still hold it, dying or frozen. It has lost its lease already, so
    it loses its lock file too.
    """
    if os.environ.get(ALLOW):
        yield
        return
    ours = f"{home}\n{store}".encode()
    descriptor = _open(lock_file())
    try:
        if not _lock(descriptor, fcntl.LOCK_EX):
            if _read(descriptor) != ours:
                raise _busy(descriptor)
            os.close(descriptor)
            descriptor = _replace(lock_file())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, ours, 0)
        yield
    finally:
        os.close(descriptor)


def check_free(*words: str) -> None:
    """Raise StudyBusy if a service uses this machine. `words` would submit to it."""
    if os.environ.get(ALLOW):
        return
    descriptor = _open(lock_file())
    try:
        if not _lock(descriptor, fcntl.LOCK_SH):
            raise _busy(descriptor, *words)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int) -> bool:
    """Lock a file until it is closed. Return False if another process has locked it."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, 8192, 0)


def _busy(descriptor: int, *words: str) -> StudyBusy:
    home = Path(_read(descriptor).decode(errors="replace").partition("\n")[0])
    submit = f"submit to it: {command(home, *words)}; " if words else ""
    return StudyBusy(
        f"The service of {home} uses this machine; {submit}or use the machine beside it: {ALLOW}=1"
    )


def _replace(path: Path) -> int:
    """Lock a new file at this path. Return its descriptor."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot replace {path}: {error.strerror}.") from error
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


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
