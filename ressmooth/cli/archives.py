"""The command that reads archives of `ressmooth export --format archive`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ressmooth.cli import main, with_home
from ressmooth.errors import ConfigError
from ressmooth.formatting import count
from ressmooth.paths import check_writable, command

if TYPE_CHECKING:
    from ressmooth.report.archive import Archive
    from ressmooth.store import Imported


@main.command("import")
@click.argument("files", nargs=-1, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--bundled", is_flag=True, help="results that come with ressmooth")
@with_home
def import_(files: tuple[Path, ...], bundled: bool, home: Path) -> None:
    """Add the studies of archives to this home. What is recorded here never changes.

    \b
    ressmooth import results.zip
    ressmooth import --bundled
    """
    from ressmooth.report.archive import bundled_archives, import_archive, read_archive
    from ressmooth.store import default_url, open_store

    if not files and not bundled:
        raise ConfigError("name a FILE to import, or add --bundled")
    archives = [read_archive(path) for path in (*files, *(bundled_archives() if bundled else ()))]
    for archive in archives:
        for name in archive.studies:
            _warn_of_code(archive, name)
    check_writable(home)
    home.mkdir(parents=True, exist_ok=True)
    store = open_store(default_url(home))
    for archive in archives:
        for imported in import_archive(store, archive, home):
            _tell(imported, home)


def _warn_of_code(archive: "Archive", study: str) -> None:
    files = [plugin["file"] for plugin in archive.rows(study).study.spec.get("plugins", [])]
    if files:
        risk = "launching or rerunning it executes that code"
        click.echo(f"warning: {study} has plug-ins ({', '.join(files)}); {risk}", err=True)


def _tell(imported: "Imported", home: Path) -> None:
    number = f"{count(len(imported.added), 'run')} added"
    kept = f", {imported.kept} here already" if imported.kept else ""
    click.echo(f"{imported.name}: {number}{kept}; see: {command(home, 'show', imported.name)}")
    if imported.differing:
        reason = "runs with the same settings and seed differ, so it is a study of its own"
        click.echo(f"warning: {imported.name}: {reason}", err=True)
    for line in imported.differing:
        click.echo(f"  {line}", err=True)
