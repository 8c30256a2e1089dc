"""Commands that rename and delete recorded studies, and free space."""

import shutil
import sys
from pathlib import Path

import click

from ressmooth.cli import find_study, main, open_home, with_home
from ressmooth.errors import ConfigError, TrackingError
from ressmooth.formatting import count
from ressmooth.paths import command, report_directory, run_directory


@main.command()
@click.argument("old")
@click.argument("new")
@with_home
def rename(old: str, new: str, home: Path) -> None:
    """Rename the study OLD to NEW, in the database and in MLflow."""
    from ressmooth.spec.schema import NAME, NAME_RULE
    from ressmooth.tracking import relay
    from ressmooth.tracking.server import tracking_uri

    if not NAME.fullmatch(new):
        raise ConfigError(f"{new!r}: {NAME_RULE}")
    store = open_home(home)
    study_id = find_study(store, old).id
    with store.hold(study_id):
        store.rename_study(study_id, new)
    store.announce_study(study_id)
    resume = command(home, "study", new)
    click.echo(f'renamed {old} to {new}; a study file needs name = "{new}" now, or run: {resume}')
    try:
        relay.sync(store, home, tracking_uri(home))
    except TrackingError as error:
        later = command(home, "sync")
        click.echo(f"warning: not yet renamed in MLflow ({error}); later: {later}", err=True)


@main.command()
@click.argument("study")
@click.option("--yes", is_flag=True, help="do not ask")
@with_home
def delete(study: str, yes: bool, home: Path) -> None:
    """Delete STUDY: its results, its files and its MLflow experiment."""
    from ressmooth.tracking import server

    store = open_home(home)
    row = find_study(store, study)
    runs = [run for trial in store.trials(row.id) for run in trial.runs]
    directories = [run_directory(home, run.uid) for run in runs]
    directories.append(home / "artifacts" / row.uid)  # of MLflow's embedded database
    directories.append(report_directory(home, row.uid))
    with store.hold(row.id) as holder:
        click.echo(
            f"This deletes {study}: {count(len(runs), 'run')} with all results, checkpoints, "
            f"weights and artifacts ({_megabytes(directories):.1f} MB in {home}), and MLflow's "
            "experiment."
        )
        delete_now = command(home, "delete", study, "--yes")
        if not (yes or _confirm("Delete it?", f"to delete without a question: {delete_now}")):
            click.echo("nothing was deleted")
            return
        store.acquire(row.id, holder)  # the lease may have lapsed while we asked
        store.delete_study(row.id)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
    for directory in filter(Path.exists, directories):
        click.echo(f"warning: cannot remove {directory}", err=True)
    try:
        server.delete_study(home, row)
    except TrackingError as error:
        hint = f"delete the experiment {study!r} there"
        click.echo(f"warning: MLflow still shows the study ({error}); {hint}", err=True)
    click.echo(f"deleted {study}")


@main.command()
@click.option("--yes", is_flag=True, help="do not ask")
@with_home
def clean(yes: bool, home: Path) -> None:
    """Show files that are no longer needed, ask, and remove them. Results are kept."""
    from ressmooth.engines import cleaning
    from ressmooth.tracking import garbage

    store = open_home(home)
    found = cleaning.find(store, home)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if not (found.leftovers or found.garbage.number):
        click.echo(f"nothing to free in {home}")
        return
    click.echo(f"This frees {found.size / 1e6:.1f} MB in {home}:")
    for line in found.summary():
        click.echo(f"  {line}")
    clean_now = command(home, "clean", "--yes")
    if not (yes or _confirm("Free it?", f"to free it without a question: {clean_now}")):
        click.echo("nothing was removed")
        return
    freed, kept = cleaning.free(store, home, found.leftovers)
    for path in kept:
        click.echo(f"warning: cannot remove {path}", err=True)
    try:
        freed += garbage.remove(home)
    except TrackingError as error:
        click.echo(f"warning: {error}", err=True)
    click.echo(f"freed {freed / 1e6:.1f} MB")


def _confirm(question: str, without_one: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"no terminal to ask on; {without_one}")
    return click.confirm(question)


def _megabytes(directories: list[Path]) -> float:
    files = (file for directory in directories for file in directory.rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6
