"""The errors that a user can act on. A bad argument to a function is a plain ValueError."""

from collections.abc import Iterable
from difflib import get_close_matches


class RessmoothError(Exception):
    exit_code = 1


class ConfigError(RessmoothError):  # settings are unknown or out of range: one line each
    exit_code = 2

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))


class DataError(RessmoothError):  # a data set is missing or unreadable
    exit_code = 2


class DataChanged(DataError):  # the files of a data set are not those that a run began with
    pass


class DeviceError(RessmoothError):  # torch cannot use the GPU of a worker
    exit_code = 2


class StudyBusy(RessmoothError):  # another launcher runs the study
    exit_code = 3


class StoreUnreachable(RessmoothError):  # the database is missing or does not answer
    exit_code = 4


class ClusterUnreachable(RessmoothError):  # the Ray cluster does not answer
    exit_code = 4


class TrackingError(RessmoothError):  # MLflow does not answer or refuses
    exit_code = 4


class SchemaError(RessmoothError):  # the database's tables are older or newer
    exit_code = 5


class StoreCorrupt(RessmoothError):  # the file is damaged or not a database
    exit_code = 5


class CheckpointError(RessmoothError):  # a checkpoint is damaged or of another run
    exit_code = 5


class StorageError(RessmoothError):  # the disk is full or refuses to write
    exit_code = 6


class Diverged(RessmoothError):  # the loss became nan or inf
    exit_code = 7


class StaleAttempt(RessmoothError):  # another worker has claimed the run
    exit_code = 9


class RunFinished(RessmoothError):  # a finished run cannot be claimed
    exit_code = 1


def first_line(error: BaseException) -> str:
    """Return an error's kind and the first line that says something."""
    lines = (line.strip() for line in str(error).splitlines())
    return ": ".join(filter(None, (type(error).__name__, next(filter(None, lines), ""))))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is closest in any case, or an empty string."""
    by_lower = {other.lower(): other for other in known}
    matches = get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[matches[0]]!r}?)" if matches else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown name. It lists the known ones."""
    names = sorted(known)
    return ValueError(
        f"Unknown {kind} {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}."
    )
