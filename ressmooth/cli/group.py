"""The command itself, and what several of its commands share."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ressmooth import __version__
from ressmooth.errors import ConfigError
from ressmooth.places import home
from ressmooth.shell import SETTINGS, Group

if TYPE_CHECKING:
    from ressmooth.store import Store, StudyRow


@click.group(cls=Group, context_settings=SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Does residual smoothing really regularise? Train, search, track and compare."""


with_home = click.option(
    "--home",
    type=click.Path(path_type=Path),
    callback=lambda ctx, option, given: home(given),
    help="where results are kept [default: RESSMOOTH_HOME or ~/.ressmooth]",
)


def open_home(where: Path) -> "Store":
    """The Store of a home that has one; looking must not create it."""
    from ressmooth.store import default_url, open_store

    return open_store(default_url(where), create=False)


def find_study(store: "Store", name: str) -> "StudyRow":
    study = store.study(name)
    if study is None:
        known = ", ".join(row.name for row in store.studies()) or "none yet"
        raise ConfigError(f"no study {name!r} here; known: {known}")
    return study
