"""Remove for good what is deleted in the home's MLflow, with MLflow's own command `mlflow gc`."""

import os
import shlex
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from ressmooth.errors import TrackingError
from ressmooth.formatting import last_line
from ressmooth.tracking.server import is_embedded, redact, tracking_uri

DAY = 86_400_000  # milliseconds
RUNS = "SELECT artifact_uri FROM runs WHERE lifecycle_stage = 'deleted' AND deleted_time <= ?"
EXPERIMENTS = (
    "SELECT count(*) FROM experiments WHERE lifecycle_stage = 'deleted' AND last_update_time <= ?"
)


@dataclass(frozen=True)
class Garbage:
    """What is deleted in MLflow and still takes space."""

    number: int = 0  # of runs and experiments
    size: int = 0  # bytes of the runs' artifacts

    def __str__(self) -> str:
        return f"{self.number} deleted runs and experiments of MLflow: {self.size / 1e6:.1f} MB"


def find(home: Path, days: int = 0) -> Garbage:
    """Return what was deleted in the home's MLflow more than so many days ago."""
    path = home / "mlflow.db"
    if not (is_embedded(home) and path.exists()):
        return Garbage()
    until = time.time() * 1000 - days * DAY
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as database:
            artifacts = [uri for (uri,) in database.execute(RUNS, (until,))]
            (experiments,) = database.execute(EXPERIMENTS, (until,)).fetchone()
    except sqlite3.Error as error:
        raise TrackingError(f"MLflow at {path}: {error}") from error
    return Garbage(len(artifacts) + experiments, sum(map(_size, artifacts)))


def remove(home: Path, days: int = 0) -> int:
    """Remove what `find` returns. Return the freed bytes."""
    before = find(home, days)
    if not before.number:
        return 0
    uri = tracking_uri(home)
    arguments = ["--backend-store-uri", uri, "--tracking-uri", uri, "--older-than", f"{days}d"]
    arguments += ["--artifacts-destination", str(home / "artifacts")]  # or it creates ./mlruns
    done = subprocess.run(
        [sys.executable, "-m", "mlflow", "gc", *arguments],
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise TrackingError(f"mlflow gc: {last_line(done.stderr)}")
    return before.size - find(home, days).size


def advice(home: Path) -> str | None:
    """Return how to do the same for an MLflow that is not the home's.

    RESSMOOTH_CLEAN_MLFLOW is the command for a server that has one, as the deployment's.
    """
    if is_embedded(home):
        return None
    if command := os.environ.get("RESSMOOTH_CLEAN_MLFLOW"):
        return f"to remove what is deleted in MLflow: {command}"
    uri = tracking_uri(home)
    shown = redact(uri, uri)
    # only who runs a server knows its database
    database = "DATABASE_URI" if uri.startswith("http") else shlex.quote(shown)
    arguments = f"--backend-store-uri {database} --tracking-uri {shlex.quote(shown)}"
    return f"to remove runs that are deleted in MLflow, run there: mlflow gc {arguments}"


def _size(artifact_uri: str) -> int:
    path = Path(url2pathname(urlsplit(artifact_uri).path))
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
