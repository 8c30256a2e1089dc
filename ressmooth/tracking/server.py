"""Where MLflow is."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from ressmooth.errors import ConfigError
from ressmooth.store import StudyRow
from ressmooth.tracking.mirror import Mirror, redact


def tracking_uri(home: Path) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or _embedded(home)


def _embedded(home: Path) -> str:
    return f"sqlite:///{home.absolute() / 'mlflow.db'}"


def show_report(home: Path, study: StudyRow, directory: Path) -> None:
    """Put a report beside the study's other files."""
    Mirror(tracking_uri(home), home).show_report(study, directory)


def check(home: Path) -> str:
    """Where MLflow is, if it answers."""
    uri = tracking_uri(home)
    if uri == _embedded(home) and not (home / "mlflow.db").exists():
        return f"{uri}: not there yet; the first study makes it"
    return f"{redact(uri, uri)}, {len(Mirror(uri, home).studies())} studies"


def pages(home: Path, port: int) -> dict[str, str]:
    """Where `serve` shows the runs of each study; MLflow's own front page is about chat bots."""
    studies = Mirror(tracking_uri(home), home).studies()
    return {
        name: f"http://127.0.0.1:{port}/#/experiments/{id}/runs" for name, id in studies.items()
    }


def serve(home: Path, port: int) -> NoReturn:
    """Become an MLflow server of this home's stores that only this machine can reach."""
    uri = tracking_uri(home)
    if uri.startswith(("http:", "https:")):
        shown = redact(uri, uri)
        raise ConfigError(f"MLFLOW_TRACKING_URI = {shown}: open that server in a browser")
    Mirror(uri, home).studies()  # makes the database, which must not happen twice at once
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri  # arguments are seen by everybody
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--allowed-hosts", f"127.0.0.1:{port},localhost:{port}"]
    command += ["--artifacts-destination", (home.absolute() / "artifacts").as_uri()]
    command += ["--uvicorn-opts", "--log-level warning"]
    os.execv(sys.executable, command)
