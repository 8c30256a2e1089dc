"""Locate, check and serve MLflow. Errors are found before anything slow is imported."""

import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from ressmooth import paths
from ressmooth.errors import ConfigError, TrackingError
from ressmooth.tracking import STUDY_TAG

if TYPE_CHECKING:
    from ressmooth.store import StudyRow

HOST = "127.0.0.1"


def tracking_uri(home: Path) -> str:
    """Return MLFLOW_TRACKING_URI, or else the embedded database of the home directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _embedded(home)


def _embedded(home: Path) -> str:
    return f"sqlite:///{home.absolute() / 'mlflow.db'}"


def redact(text: str, uri: str) -> str:
    """Replace the user name and password of a tracking URI with ***."""
    login = uri.partition("://")[2].rpartition("@")[0]
    password = login.partition(":")[2]
    for secret in (login, unquote(login), password, unquote(password)):
        if secret:
            text = text.replace(secret, "***")
    return text


def is_embedded(home: Path) -> bool:
    """Tell whether MLflow is the database of the home directory, which needs no server."""
    return tracking_uri(home) == _embedded(home)


def delete_study(home: Path, study: "StudyRow") -> None:
    """Delete the experiment of a study, if there is one."""
    uri = tracking_uri(home)
    if not _is_missing(home, uri):
        from ressmooth.tracking.mirror import Mirror

        Mirror(uri, home).delete_study(study)


def _is_missing(home: Path, uri: str) -> bool:
    return uri == _embedded(home) and not (home / "mlflow.db").exists()


def check(home: Path) -> str:
    """Return MLflow's URI and its number of studies, or raise TrackingError."""
    uri = tracking_uri(home)
    if not is_embedded(home):
        from ressmooth.tracking.mirror import Mirror

        return f"{redact(uri, uri)}, {len(Mirror(uri, home).studies())} studies"
    if _is_missing(home, uri):
        return f"{uri}: does not exist yet; the first study creates it"
    return f"{uri}, {_count_embedded(home / 'mlflow.db')} studies"


def _count_embedded(path: Path) -> int:
    """Return the number of studies in an embedded database, without loading mlflow."""
    query = (
        "SELECT count(*) FROM experiments JOIN experiment_tags USING (experiment_id) "
        "WHERE key = ? AND lifecycle_stage = 'active'"
    )
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            return int(database.execute(query, (STUDY_TAG,)).fetchone()[0])
    except sqlite3.Error as error:
        raise TrackingError(f"MLflow at {path}: {error}") from error


def serve(home: Path, port: int, announce: Callable[[str], None]) -> None:
    """Serve the studies of a home and its MLflow, to this machine only, until Ctrl-C."""
    uri = tracking_uri(home)
    if uri.startswith(("http:", "https:")):
        raise ConfigError(f"MLFLOW_TRACKING_URI = {redact(uri, uri)}: open it in a browser instead")
    if not home.is_dir():
        launch = paths.command(home, "study", "quickstart")
        raise ConfigError(f"home = {str(home)!r}: no such directory; a study creates it: {launch}")
    with listen(home, port) as listener:
        from ressmooth.tracking import site

        site.serve(home, listener, uri, announce)


def listen(home: Path, port: int) -> socket.socket:
    """Return a socket that listens on the port, or raise a ConfigError with a free one.

    It listens at once: others could bind the port while the server starts.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        with socket.create_server((HOST, 0)) as other:
            command = paths.command(home, "ui", "--port", str(other.getsockname()[1]))
        raise ConfigError(f"--port {port}: {error.strerror}; run: {command}") from None
    return listener
