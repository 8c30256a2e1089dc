"""Commands that maintain a home directory, and the checks of `ressmooth doctor`."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
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
    "names",
    nargs=-1,
    required=True,
    type=click.Choice(get_args(DatasetName)),
    metavar="DATASET...",
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


@main.command()
@with_home
def doctor(home: Path) -> None:
    """Check torch and CUDA, the database, MLflow, Ray, the disk and the data."""
    findings = [finding for check in CHECKS for finding in check(home)]
    for finding in findings:
        click.echo(f"{'ok ' if finding.is_ok else 'BAD'}  {finding.subject}: {finding.details}")
    sys.exit(0 if all(finding.is_ok for finding in findings) else 1)


@dataclass(frozen=True)
class Finding:
    """The result of one check of the installation."""

    subject: str
    details: str
    is_ok: bool = True


def _torch(home: Path) -> Iterator[Finding]:
    import torch

    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("CUDA", ", ".join(names))
    elif Path("/proc/driver/nvidia").exists():
        yield Finding("CUDA", "a driver is installed, but torch finds no GPU", is_ok=False)
    else:
        yield Finding("CUDA", "no GPU")


def _database(home: Path) -> Iterator[Finding]:
    from ressmooth.store import Store, default_url, safe_url

    url = default_url(home)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        yield Finding("database", f"{url}: does not exist yet; the first study creates it")
        return

    def describe() -> str:
        with closing(Store(url)) as store:
            return f"{safe_url(url)}, {len(store.studies())} studies"

    yield _finding("database", describe)


def _mlflow(home: Path) -> Iterator[Finding]:
    from ressmooth.tracking import server

    yield _finding("MLflow", lambda: server.check(home))


def _finding(subject: str, describe: Callable[[], str]) -> Finding:
    """Return what `describe` returns, or the error that it raises."""
    try:
        return Finding(subject, describe())
    except RessmoothError as error:
        return Finding(subject, str(error), is_ok=False)


def _ray(home: Path) -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS")
    cluster = f"cluster at {address}" if address else "RAY_ADDRESS is not set: this machine only"
    try:
        yield Finding("Ray", f"{version('ray')}, {cluster}")
    except PackageNotFoundError:
        yield Finding("Ray", "not installed: pip install 'ressmooth[ray]'", is_ok=not address)


def _disk(home: Path) -> Iterator[Finding]:
    path = home.absolute()
    while not path.exists():
        path = path.parent
    free_gb = shutil.disk_usage(path).free / 1e9
    is_ok = free_gb > MIN_FREE_GB and os.access(path, os.W_OK)
    yield Finding("disk", f"{home}: {free_gb:.1f} GB free", is_ok)


def _data(home: Path) -> Iterator[Finding]:
    from ressmooth.training.data import present

    names = present(home / "data")
    yield Finding("data", f"present: {', '.join(names)}; others are downloaded on first use")


CHECKS = (_torch, _database, _mlflow, _ray, _disk, _data)
