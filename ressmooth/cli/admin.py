"""Commands that maintain a home directory, and the checks of `ressmooth doctor`."""

import os
import shutil
import sys
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import get_args

import click

from ressmooth.cli import main, open_home, with_home
from ressmooth.config import DatasetName
from ressmooth.errors import RessmoothError
from ressmooth.paths import make_directory

MIN_FREE_GB = 1.0  # below this, the disk counts as full


@main.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="DATASET...", type=click.Choice(get_args(DatasetName))
)
@with_home
def fetch(names: tuple[str, ...], home: Path) -> None:
    """Download and decode each DATASET, as a study does before it trains."""
    from ressmooth.training import data

    for name in names:
        found = data.load(name, home / "data")
        click.echo(f"{name}: {len(found.train):,} training images, {len(found.test):,} test images")


@main.command()
@with_home
def sync(home: Path) -> None:
    """Deliver pending events to MLflow."""
    from ressmooth.tracking import relay
    from ressmooth.tracking.server import tracking_uri

    sent = relay.sync(open_home(home), home, tracking_uri(home))
    click.echo(f"{sent} events delivered")


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), default=5000)
@with_home
def ui(port: int, home: Path) -> None:
    """Serve MLflow on 127.0.0.1 with the curves and artifacts of this home."""
    from ressmooth.tracking import server

    click.echo(f"MLflow is at http://127.0.0.1:{port} (Ctrl-C stops it)")
    for name, address in server.pages(home, port).items():
        click.echo(f"  {name}: {address}")
    sys.exit(server.serve(home, port))


@main.group()
def db() -> None:
    """Maintain the database."""


@db.command()
@with_home
def upgrade(home: Path) -> None:
    """Upgrade the database to the schema of this version."""
    from ressmooth import store

    make_directory(home)
    url = store.default_url(home)
    before, after = store.upgrade(url)
    result = "is already at" if before == after else f"upgraded from {before or 'nothing'} to"
    click.echo(f"{store.safe_url(url)} {result} {after}")


def _torch(home: Path) -> str:
    import torch

    return f"{torch.__version__}, {torch.get_num_threads()} threads"


def _cuda(home: Path) -> str:
    from torch import cuda

    if cuda.is_available():
        return ", ".join(cuda.get_device_name(i) for i in range(cuda.device_count()))
    if Path("/proc/driver/nvidia").exists():
        raise RessmoothError("a driver is installed, but torch finds no GPU")
    return "no GPU"


def _database(home: Path) -> str:
    from ressmooth.store import Store, default_url, safe_url

    url = default_url(home)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return f"{url}: does not exist yet; the first study creates it"
    with closing(Store(url)) as store:
        return f"{safe_url(url)}, {len(store.studies())} studies"


def _mlflow(home: Path) -> str:
    from ressmooth.tracking import server

    return server.check(home)


def _ray(home: Path) -> str:
    address = os.environ.get("RAY_ADDRESS")
    cluster = f"cluster at {address}" if address else "RAY_ADDRESS is not set: this machine only"
    try:
        return f"{version('ray')}, {cluster}"
    except PackageNotFoundError:
        missing = "not installed: pip install 'ressmooth[ray]'"
        if address:
            raise RessmoothError(missing) from None
        return missing


def _disk(home: Path) -> str:
    path = next(path for path in (home, *home.parents) if path.exists())
    free_gb = shutil.disk_usage(path).free / 1e9
    found = f"{home}: {free_gb:.1f} GB free"
    if free_gb <= MIN_FREE_GB or not os.access(path, os.W_OK):
        raise RessmoothError(found)
    return found


def _data(home: Path) -> str:
    from ressmooth.training.data import present

    return f"present: {', '.join(present(home / 'data'))}; others are downloaded on first use"


CHECKS = {
    "torch": _torch,
    "CUDA": _cuda,
    "database": _database,
    "MLflow": _mlflow,
    "Ray": _ray,
    "disk": _disk,
    "data": _data,
}


@main.command()
@with_home
def doctor(home: Path) -> None:
    """Check torch and CUDA, the database, MLflow, Ray, the disk and the data."""
    is_ok = True
    for subject, check in CHECKS.items():
        try:
            click.echo(f"ok   {subject}: {check(home)}")
        except RessmoothError as error:
            click.echo(f"BAD  {subject}: {error}")
            is_ok = False
    sys.exit(0 if is_ok else 1)
