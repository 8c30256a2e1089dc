"""Locate, check and serve MLflow."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from ressmooth.errors import ConfigError
from ressmooth.store import StudyRow
from ressmooth.tracking.mirror import Mirror, redact


def tracking_uri(home: Path) -> str:
    """Return MLFLOW_TRACKING_URI, or else the embedded database of the home directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _embedded(home)


def _embedded(home: Path) -> str:
    return f"sqlite:///{home.absolute() / 'mlflow.db'}"


def show_report(home: Path, study: StudyRow, directory: Path) -> None:
    """Add a report to the artifacts of a study."""
    Mirror(tracking_uri(home), home).show_report(study, directory)


def check(home: Path) -> str:
    """Return MLflow's URI and its number of studies, or raise TrackingError."""
    uri = tracking_uri(home)
    if uri == _embedded(home) and not (home / "mlflow.db").exists():
        return f"{uri}: does not exist yet; the first study creates it"
    return f"{redact(uri, uri)}, {len(Mirror(uri, home).studies())} studies"


def pages(home: Path, port: int) -> dict[str, str]:
    """Return the address of each study's runs. MLflow's front page does not show them."""
    studies = Mirror(tracking_uri(home), home).studies()
    return {
        name: f"http://127.0.0.1:{port}/#/experiments/{id}/runs" for name, id in studies.items()
    }


def serve(home: Path, port: int) -> NoReturn:
    """Replace this process by an MLflow server that only this machine can reach."""
    uri = tracking_uri(home)
    if uri.startswith(("http:", "https:")):
        raise ConfigError(f"MLFLOW_TRACKING_URI = {redact(uri, uri)}: open it in a browser instead")
    Mirror(uri, home).studies()  # creates the database, which two processes must not do at once
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri  # not an argument, which `ps` shows to everybody
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]
    command += ["--artifacts-destination", (home.absolute() / "artifacts").as_uri()]
    command += ["--uvicorn-opts", "--log-level warning"]
    os.execv(sys.executable, command)
