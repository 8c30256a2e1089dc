"""Looking after a home: MLflow, the database, the installation."""

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
    """Download and decode each DATASET, as a study does before it begins."""
    from ressmooth.training import data

    for name in names:
        found = data.load(name, home / "data")
        click.echo(
            f"{name}: {len(found.train):,} images to train with, {len(found.test):,} to test"
        )


@main.command()
@with_home
def sync(home: Path) -> None:
    """Deliver to MLflow what is still waiting to be delivered."""
    from ressmooth.tracking.relay import sync as deliver
    from ressmooth.tracking.server import tracking_uri

    sent = deliver(open_home(home), home, tracking_uri(home))
    click.echo(f"{sent} events delivered")


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), default=5000)
@with_home
def ui(port: int, home: Path) -> None:
    """Open MLflow on 127.0.0.1 with the curves and artifacts of this home."""
    from ressmooth.tracking import server

    click.echo(f"MLflow is at http://127.0.0.1:{port} (Ctrl-C ends it)")
    for name, address in server.pages(home, port).items():
        click.echo(f"  {name}: {address}")
    sys.exit(server.serve(home, port))


@main.group()
def db() -> None:
    """Look after the database."""


@db.command()
@with_home
def upgrade(home: Path) -> None:
    """Bring the database to this program's schema."""
    from ressmooth.store import default_url, safe_url
    from ressmooth.store import upgrade as migrate

    make_directory(home)
    url = default_url(home)
    before, after = migrate(url)
    what = "is already at" if before == after else f"upgraded from {before or 'nothing'} to"
    click.echo(f"{safe_url(url)} {what} {after}")


@main.command()
@with_home
def doctor(home: Path) -> None:
    """Check torch and CUDA, the database, MLflow, the disk and the data."""

    findings = examine(home)
    for finding in findings:
        click.echo(f"{'ok ' if finding.fine else 'BAD'}  {finding.what}: {finding.found}")
    sys.exit(0 if all(finding.fine for finding in findings) else 1)


ROOM = 1.0  # GB below which the disk is called full


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    fine: bool = True


def examine(home: Path) -> list[Finding]:
    checks = (_torch, _database, _mlflow, _ray, _disk, _data)
    return [finding for check in checks for finding in check(home)]


def _torch(home: Path) -> Iterator[Finding]:
    import torch

    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("CUDA", ", ".join(names))
    else:
        driver = Path("/proc/driver/nvidia").exists()
        yield Finding("CUDA", "a driver, but torch sees no GPU" if driver else "no GPU", not driver)


def _database(home: Path) -> Iterator[Finding]:
    from ressmooth.store import Store, default_url, safe_url

    url = default_url(home)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        yield Finding("database", f"{url}: not there yet; the first study makes it")
        return

    def count() -> str:
        with closing(Store(url)) as store:
            return f"{safe_url(url)}, {len(store.studies())} studies"

    yield _tried("database", count)


def _mlflow(home: Path) -> Iterator[Finding]:
    from ressmooth.tracking.server import check

    yield _tried("MLflow", lambda: check(home))


def _ray(home: Path) -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS")
    try:
        where = f"cluster at {address}" if address else "no RAY_ADDRESS: one of its own on demand"
        yield Finding("Ray", f"{version('ray')}, {where}")
    except PackageNotFoundError:
        yield Finding("Ray", "not installed: pip install 'ressmooth[ray]'", fine=not address)


def _disk(home: Path) -> Iterator[Finding]:
    place = home.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    fine = free > ROOM and os.access(place, os.W_OK)
    yield Finding("disk", f"{home}: {free:.1f} GB free", fine)


def _data(home: Path) -> Iterator[Finding]:
    from ressmooth.training.data import present

    names = present(home / "data")
    yield Finding("data", f"here: {', '.join(names)}; others are downloaded on first use")


def _tried(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, check())
    except RessmoothError as error:
        return Finding(what, str(error), fine=False)
