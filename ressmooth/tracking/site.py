"""Serve MLflow and the landing page in front of it, to this machine only."""

import os
import socket
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from ressmooth.errors import RessmoothError
from ressmooth.store import default_url, open_store
from ressmooth.tracking.landing import MLFLOW, Landing
from ressmooth.tracking.mirror import Mirror
from ressmooth.tracking.relay import sync
from ressmooth.tracking.server import HOST

SHUTDOWN_SECONDS = 3  # for requests that are still being answered


class Server(uvicorn.Server):
    """Calls `ready` once it answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()


def serve(home: Path, listener: socket.socket, uri: str, announce: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM. Announce the addresses once they answer."""
    announce("starting MLflow ...")
    host, port = listener.getsockname()
    warnings.simplefilter("ignore")  # the terminal is for the addresses
    mirror = Mirror(uri, home)
    mirror.studies()  # creates the database, which two processes must not do at once
    landing = Landing(home, mirror)
    names = landing.names()
    if names:
        _deliver_pending(home, uri, announce)
    app = _mlflow(home, port, uri)
    app.router.routes[:0] = landing.routes()

    def ready() -> None:
        address = f"http://{host}:{port}"
        announce(f"Studies are at {address} (Ctrl-C stops it)")
        for name in names:
            announce(f"  {name}: {address}/curves/{name}")

    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=SHUTDOWN_SECONDS)
    try:
        Server(config, ready).run([listener])
    except KeyboardInterrupt:
        pass  # uvicorn has shut down and raises the signal again


def _deliver_pending(home: Path, uri: str, announce: Callable[[str], None]) -> None:
    """Deliver what waits for MLflow, such as a new report."""
    try:
        with closing(open_store(default_url(home), create=False)) as store:
            sync(store, home, uri)
    except RessmoothError as error:
        announce(f"warning: {error}")


def _mlflow(home: Path, port: int, uri: str) -> Starlette:
    """Return MLflow's application. Its check of the Host header applies to our routes too."""
    os.environ |= {  # what `mlflow server` passes to its workers
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": uri,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": (home.absolute() / "artifacts").as_uri(),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_STATIC_PREFIX": MLFLOW,
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"{HOST}:{port},localhost:{port}",
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    from mlflow.server import fastapi_app

    app: Starlette = fastapi_app.app
    return app
