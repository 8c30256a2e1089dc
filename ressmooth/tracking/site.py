"""Serve MLflow and the landing page in front of it, to this machine only."""

import os
import socket
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ressmooth.errors import RessmoothError
from ressmooth.formatting import count
from ressmooth.store import default_url, open_store
from ressmooth.tracking import front
from ressmooth.tracking.landing import Landing
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
    app = _application(home, port, uri, landing)

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
            if pending := store.count_pending(None):
                announce(f"delivering {count(pending, 'event')} to MLflow ...")
            sync(store, home, uri)
    except RessmoothError as error:
        announce(f"warning: {error}")


def _application(home: Path, port: int, uri: str, landing: Landing) -> ASGIApp:
    """Return the landing page and MLflow, for pages of this machine and this port only."""
    hosts = [f"{HOST}:{port}", f"localhost:{port}"]
    origins = [f"http://{host}" for host in hosts]
    artifacts = (home.absolute() / "artifacts").as_uri()
    os.environ |= front.environment(uri, artifacts, hosts, origins)
    from mlflow.server import fastapi_app

    return front.protect(front.Front(fastapi_app.app, landing.routes()), hosts, origins)
