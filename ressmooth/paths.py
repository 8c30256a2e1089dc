"""The places of files: one home directory, with a directory per run in it."""

import errno
import getpass
import os
import shlex
from contextlib import suppress
from pathlib import Path

from ressmooth.errors import ConfigError, StorageError

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
WEIGHTS = "best.safetensors"  # in a run's directory


def home(path: Path | None = None) -> Path:
    """Return the home directory: `path`, or RESSMOOTH_HOME, or ~/.ressmooth."""
    path = path.absolute() if path else _default_home()
    if any(character in str(path) for character in "%?#"):  # special in database URLs
        raise ConfigError(f"home = {str(path)!r}: a path without % ? #")
    place = nearest_place(path)
    if not place.is_dir():
        raise ConfigError(f"home = {str(path)!r}: {place} is a file; choose another path")
    return path


def _default_home() -> Path:
    return Path(os.environ.get("RESSMOOTH_HOME") or Path.home() / ".ressmooth").absolute()


def user() -> str:
    """Return who runs this process, as user@host. RESSMOOTH_USER overrides it."""
    if name := os.environ.get("RESSMOOTH_USER"):
        return name
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"


def nearest_place(path: Path) -> Path:
    """Return the path if it exists, or else the nearest parent that does."""
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def check_writable(home: Path) -> None:
    """Refuse a home in which nothing can be created. Create nothing."""
    from tempfile import TemporaryFile  # loaded when needed, for a fast --help

    place = nearest_place(home)
    try:
        TemporaryFile(dir=place).close()  # not os.access, which believes that root may do all
    except OSError as error:
        raise ConfigError(
            f"home = {str(home)!r}: cannot write to {place} ({error.strerror}); "
            "choose another with --home"
        ) from error


def command(home_directory: Path, *words: str) -> str:
    """Return a `ressmooth` command to paste: with --home, unless that is the default.

    RESSMOOTH_COMMAND overrides its first word, for example inside a container.
    """
    is_default = home_directory.absolute() == _default_home()
    option = [] if is_default else ["--home", str(home_directory)]
    program = os.environ.get("RESSMOOTH_COMMAND") or "ressmooth"
    return f"{program} {shlex.join([*words, *option])}"


def only_submits() -> bool:
    """Tell whether studies are only submitted here: where RESSMOOTH_SERVE is set."""
    return bool(os.environ.get("RESSMOOTH_SERVE"))


def serve_command(home_directory: Path) -> str:
    """Return the command that starts a service. RESSMOOTH_SERVE overrides it."""
    return os.environ.get("RESSMOOTH_SERVE") or command(home_directory, "serve")


def report_out(study: str) -> str:
    """Return where a report can be written: ./report, or a directory in RESSMOOTH_REPORTS."""
    place = os.environ.get("RESSMOOTH_REPORTS")
    return f"{place}/{study}" if place else "report"


def dashboard_command(export: Path, home_directory: Path) -> str:
    """Return the command that shows an export in Optuna's dashboard.

    RESSMOOTH_DASHBOARD overrides it for optuna.db of the home, which the deployment shows.
    """
    deployed = os.environ.get("RESSMOOTH_DASHBOARD")
    if deployed and export.absolute() == home_directory.absolute() / "optuna.db":
        return deployed
    return shlex.join(["optuna-dashboard", f"sqlite:///{export}"])


def make_home(path: Path) -> None:
    """Create a home that only its owner can enter. One that exists keeps its mode."""
    make_directory(path, 0o700)


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read, unless there is one already."""
    with suppress(OSError):  # whoever opens it then says why it cannot be created
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))


def make_directory(path: Path, mode: int = 0o777) -> None:
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(
            f"Cannot create {path}: a file is in the way; choose another path."
        ) from error
    except OSError as error:
        message = f"Cannot create {path}: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise StorageError(f"{message}.") from error
        raise ConfigError(f"{message}; choose another path.") from error


def run_directory(home: Path, uid: str) -> Path:
    return home / "runs" / uid


def report_directory(home: Path, uid: str) -> Path:
    """Return where a study's latest report waits for MLflow."""
    return home / "reports" / uid


def checkpoint(directory: Path, epoch: int) -> Path:
    return directory / f"epoch-{epoch:06d}.pt"


def fork(directory: Path, epoch: int) -> Path:
    """Return the checkpoint from which other runs continue. It stays when the run has ended."""
    return directory / f"fork-{epoch:06d}.pt"


def remove_checkpoints(directory: Path) -> None:
    _remove(directory, "epoch-*")


def remove_forks(directory: Path) -> None:
    _remove(directory, "fork-*")


def _remove(directory: Path, pattern: str) -> None:
    for path in directory.glob(pattern):
        with suppress(OSError):
            path.unlink()
