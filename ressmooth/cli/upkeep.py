"""Looking after a home: MLflow, the database, the installation."""

import sys
from pathlib import Path
from typing import get_args

import click

from ressmooth.cli.group import main, open_home, with_home
from ressmooth.config import DatasetName
from ressmooth.places import make_directory


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
    from ressmooth import data

    for name in names:
        found = data.load(name, home / "data")
        click.echo(
            f"{name}: {len(found.train):,} images to train with, {len(found.test):,} to test"
        )


@main.command()
@with_home
def sync(home: Path) -> None:
    """Deliver to MLflow what is still waiting to be delivered."""
    from ressmooth import tracking

    sent = tracking.sync(open_home(home), home, tracking.tracking_uri(home))
    click.echo(f"{sent} events delivered")


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), default=5000)
@with_home
def ui(port: int, home: Path) -> None:
    """Open MLflow on 127.0.0.1 with the curves and artifacts of this home."""
    from ressmooth import tracking

    click.echo(f"MLflow is at http://127.0.0.1:{port} (Ctrl-C ends it)")
    for name, address in tracking.pages(home, port).items():
        click.echo(f"  {name}: {address}")
    sys.exit(tracking.serve(home, port))


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
    from ressmooth.doctor import examine

    findings = examine(home)
    for finding in findings:
        click.echo(f"{'ok ' if finding.fine else 'BAD'}  {finding.what}: {finding.found}")
    sys.exit(0 if all(finding.fine for finding in findings) else 1)
