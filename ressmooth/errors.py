"""The errors that a user can act on, and their exit codes.

    RessmoothError
    ├── ConfigError        a setting is unknown or out of range          exit 2
    ├── DataError          a data set is missing or unreadable           exit 2
    ├── StudyBusy          another launcher runs the study               exit 3
    ├── StoreUnreachable   the database is missing or does not answer    exit 4
    ├── ClusterUnreachable the Ray cluster does not answer               exit 4
    ├── TrackingError      MLflow does not answer or refuses             exit 4
    ├── SchemaError        the database's tables are older or newer      exit 5
    ├── StoreCorrupt       the file is damaged or not a database         exit 5
    ├── CheckpointError    a checkpoint is damaged or of another run     exit 5
    ├── StorageError       the disk is full or refuses to write          exit 6
    ├── Diverged           the loss became nan or inf                    exit 7
    ├── StaleAttempt       another worker has claimed the run            exit 9
    └── RunFinished        a finished run cannot be claimed              exit 1

A bad argument to a library function is a plain ValueError.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class RessmoothError(Exception):
    exit_code = 1


class ConfigError(RessmoothError):
    """All errors that were found, one line each."""

    exit_code = 2

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))


class DataError(RessmoothError):
    exit_code = 2


class StudyBusy(RessmoothError):
    exit_code = 3


class StoreUnreachable(RessmoothError):
    exit_code = 4


class ClusterUnreachable(RessmoothError):
    exit_code = 4


class TrackingError(RessmoothError):
    exit_code = 4


class SchemaError(RessmoothError):
    exit_code = 5


class StoreCorrupt(RessmoothError):
    exit_code = 5


class CheckpointError(RessmoothError):
    exit_code = 5


class StorageError(RessmoothError):
    exit_code = 6


class Diverged(RessmoothError):
    exit_code = 7


class StaleAttempt(RessmoothError):
    exit_code = 9


class RunFinished(RessmoothError):
    pass


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that is closest, or an empty string."""
    matches = get_close_matches(name, list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for an unknown name. It lists the known ones."""
    names = sorted(known)
    return ValueError(
        f"Unknown {kind} {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}."
    )
