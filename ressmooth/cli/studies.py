"""Commands that show, compare, report, export and retry studies."""

import errno
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from ressmooth.cli import find_study, main, open_home, with_home
from ressmooth.errors import ConfigError, StorageError, TrackingError
from ressmooth.formatting import count
from ressmooth.paths import command, make_directory, report_directory
from ressmooth.paths import home as default_home

if TYPE_CHECKING:
    from ressmooth.store import Store, StudyRow

HOME_FILES = ("results.db", "mlflow.db", "mlflow.lock", "runs", "artifacts", "data", "reports")

with_force = click.option(
    "--force", is_flag=True, help="replace files that ressmooth did not write"
)


@main.command("list")
@with_home
def list_(home: Path) -> None:
    """List the studies of this home."""
    from ressmooth.report.tables import overview

    click.echo(overview(open_home(home)))


@main.command()
@click.argument("study")
@with_home
def show(study: str, home: Path) -> None:
    """Show every trial and run of STUDY, then the comparison."""
    from ressmooth.report.tables import details

    store = open_home(home)
    row = find_study(store, study)
    click.echo(details(store, row))
    states = {run.state for trial in store.trials(row.id) for run in trial.runs}
    if "failed" in states:
        click.echo(f"retry what failed: {command(home, 'retry', study, '--failed')}", err=True)
    if states & {"waiting", "running"} and row.held_by is None:
        click.echo(f"resume with: {command(home, 'study', study)}", err=True)


@main.command()
@click.argument("studies", nargs=-1, required=True, metavar="STUDY...")
@click.option("--against", type=click.Choice(["paper"]), help="add the paper's figures")
@click.option("--arm", "names", multiple=True, help="only this arm, and its reference")
@click.option("--reference", metavar="ARM", help="compare with this arm instead of the study's")
@click.option("--fraction", "fractions", type=float, multiple=True, help="only this fraction")
@click.option(
    "--format", "form", type=click.Choice("table markdown csv json latex".split()), default="table"
)
@with_home
def compare(
    studies: tuple[str, ...],
    against: str | None,
    names: tuple[str, ...],
    reference: str | None,
    fractions: tuple[float, ...],
    form: str,
    home: Path,
) -> None:
    """Compare the arms of one or more studies, with intervals and tests over seeds.

    \b
    ressmooth compare paper-table2 --against paper --fraction 0.125
    ressmooth compare mine yours --format latex
    """
    from ressmooth.report import tables
    from ressmooth.report.compare import compare_studies, filter_comparisons

    store = open_home(home)
    rows = [find_study(store, study) for study in dict.fromkeys(studies)]
    compared = compare_studies(store, rows, reference)
    if not compared:
        hint = command(home, "list")
        reason = f"nothing to compare yet, no trial is complete; see: {hint}"
        raise ConfigError(f"{', '.join(studies)}: {reason}")
    for row in rows:
        if not any(line.arm.study == row.name for table in compared for line in table.lines):
            click.echo(f"warning: {row.name}: left out, no trial is complete yet", err=True)
    compared = filter_comparisons(compared, names, fractions)
    if form in ("csv", "json"):
        click.echo(tables.as_csv(compared) if form == "csv" else tables.as_json(compared))
        return
    writers = {"table": tables.comparison_text, "markdown": tables.markdown, "latex": tables.latex}
    click.echo(writers[form](compared, against_paper=against == "paper"))


@main.command()
@click.argument("study")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="output directory")
@with_force
@with_home
def report(study: str, out: Path, force: bool, home: Path) -> None:
    """Write a report of STUDY (HTML, Markdown, figures, tables), and show it in MLflow."""
    from ressmooth.report.page import Report, is_report, write

    store = open_home(home)
    row = find_study(store, study)
    is_ours = is_report(out / "index.html")
    for name in ("index.html", "report.md", "comparison.csv", "comparison.json", "figures"):
        check_replaceable(out / name, home, is_ours, force)
    contents = Report(store, row)
    if not contents.arms:
        hint = command(home, "show", study)
        reason = f"nothing to report yet, no trial is complete; see: {hint}"
        raise ConfigError(f"{study}: {reason}")
    with TemporaryDirectory() as scratch:
        write(contents, Path(scratch))
        with _writing(out):
            _replace_report(Path(scratch), out)
        _replace_report(Path(scratch), report_directory(home, row.uid))  # without other files
    click.echo(f"wrote {out}/: index.html, report.md, comparison.csv and .json, figures/")
    store.announce_study(row.id)
    _show_in_mlflow(store, home)


def _show_in_mlflow(store: "Store", home: Path) -> None:
    """Deliver the report to a server. The embedded MLflow gets it when somebody looks at it."""
    from ressmooth.tracking import relay, server

    if server.is_embedded(home):
        click.echo(f"see it in MLflow with: {command(home, 'ui')}")
        return
    try:
        relay.sync(store, home, server.tracking_uri(home))
    except TrackingError as error:
        again = f"deliver it later with: {command(home, 'sync')}"
        click.echo(f"warning: not in MLflow yet ({error}); {again}", err=True)


def check_replaceable(path: Path, home: Path, is_ours: bool, force: bool) -> None:
    """Refuse to replace a file that ressmooth did not write, and files of the home always."""
    place = path.resolve()
    if any(place.is_relative_to(home.resolve() / name) for name in HOME_FILES):
        raise ConfigError(f"--out {path}: belongs to the home {home}; choose another path")
    if path.exists() and not is_ours and not force:
        reason = "exists and was not written by ressmooth"
        raise ConfigError(f"--out {path}: {reason}; choose another path, or add --force")


def _replace_report(source: Path, out: Path) -> None:
    """Copy a report over an older one. Modes follow the umask, existing directories keep theirs."""
    for old in out.glob("figures/[0-9][0-9]-*.[ps][nv]g"):  # earlier versions wrote PNG
        old.unlink()
    for path in source.rglob("*"):
        if path.is_file():
            target = out / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Create the parent directory, and turn errors of the file system into ours."""
    try:
        make_directory(path.absolute().parent)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"Cannot write {path}: {error.strerror}.") from error
        raise ConfigError(f"--out {path}: {error.strerror}") from error


@main.command()
@click.argument("picture", type=click.Choice(["annealing", "sigmoid", "evidence"]))
@click.option("--out", type=click.Path(path_type=Path), required=True, help=".png, .svg or .pdf")
@with_force
def plot(picture: str, out: Path, force: bool) -> None:
    """Draw the annealing of the scale, the diffusivity's sigmoid, or evidence by seeds."""
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {out}: the file name must end in .png, .svg or .pdf")
    from ressmooth.report import pictures, style

    check_replaceable(out, default_home(), style.is_picture(out), force)
    with _writing(out):
        style.save(style.picture(*pictures.PICTURES[picture]()), out)
    click.echo(f"wrote {out}")


@main.command()
@click.argument("study")
@click.option(
    "--table",
    type=click.Choice(["epochs", "runs", "trials", "comparison"]),
    help="what to export as csv, json or parquet [default: epochs]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "parquet", "optuna", "mlflow"]),
    default="csv",
    help="mlflow: log each arm's best network to MLflow",
)
@click.option("--out", type=click.Path(path_type=Path), help="file for parquet or optuna")
@with_force
@with_home
def export(
    study: str, table: str | None, form: str, out: Path | None, force: bool, home: Path
) -> None:
    """Print a table of STUDY, by default every epoch, or write it for another program.

    \b
    ressmooth export quickstart --table runs > runs.csv
    ressmooth export quickstart --format parquet --out epochs.parquet
    ressmooth export quickstart --format optuna --out optuna.db
    """
    if form in ("optuna", "parquet") and out is None:
        raise ConfigError(f"--format {form}: needs --out FILE")
    if form not in ("optuna", "parquet") and out is not None:
        rule = "only with --format parquet or optuna; csv and json are printed, so redirect them"
        raise ConfigError(f"--out {out}: {rule}: > {out}")
    if table and form in ("optuna", "mlflow"):
        raise ConfigError(f"--table {table}: only with --format csv, json or parquet")
    store = open_home(home)
    row = find_study(store, study)
    if form == "mlflow":
        _log_models(store, row, home)
    elif form == "optuna" and out is not None:
        from ressmooth.report.export import is_optuna_export, write_optuna

        _replace(out, home, force, is_optuna_export, partial(write_optuna, store, row))
        dashboard = join(["optuna-dashboard", f"sqlite:///{out}"])
        click.echo(f"wrote {out}; open it with: {dashboard}")
    else:
        _export_table(store, row, table or "epochs", form, out, force, home)


def _export_table(
    store: "Store", row: "StudyRow", name: str, form: str, out: Path | None, force: bool, home: Path
) -> None:
    from ressmooth.report.frames import TABLES, is_parquet_export

    table = TABLES[name](store, row)
    if out is None:
        click.echo(table.csv() if form == "csv" else table.json(), nl=False)
        return
    _replace(out, home, force, is_parquet_export, table.write_parquet)
    click.echo(f"wrote {out}: {count(len(table.records), 'row')}")


def _log_models(store: "Store", row: "StudyRow", home: Path) -> None:
    from ressmooth.tracking.models import log_models

    for best, uri in log_models(store, row, home):
        click.echo(f"{best.arm} (run {best.run.id}): {uri}")


def _replace(
    out: Path,
    home: Path,
    force: bool,
    is_ours: Callable[[Path], bool],
    write: Callable[[Path], None],
) -> None:
    """Write a file at once, unless that would replace one that ressmooth did not write."""
    check_replaceable(out, home, is_ours(out), force)
    with _writing(out), TemporaryDirectory(dir=out.absolute().parent) as scratch:
        write(Path(scratch) / out.name)
        (Path(scratch) / out.name).replace(out)


@main.command()
@click.argument("study")
@click.option("--failed", is_flag=True, required=True, help="the failed runs")
@with_home
def retry(study: str, failed: bool, home: Path) -> None:
    """Put the failed runs of STUDY back in the queue."""
    store = open_home(home)
    study_id = find_study(store, study).id
    with store.hold(study_id):
        number = store.reset_failed(study_id)
    click.echo(f"queued {count(number, 'run')} again; run: {command(home, 'study', study)}")


@main.command()
@click.argument("run", type=int)
@with_home
def rerun(run: int, home: Path) -> None:
    """Train the recorded RUN again, and report whether the result is identical."""
    store = open_home(home)
    recorded = store.run(run)
    if recorded.state != "complete":
        study_id = store.trial(recorded.trial_id).study_id
        name = next(study.name for study in store.studies() if study.id == study_id)
        reason = f"only a complete run can be compared; see: {command(home, 'show', name)}"
        raise ConfigError(f"run {run} is {recorded.state}; {reason}")
    from ressmooth.engines import runner  # loads torch

    differences = runner.rerun(store, recorded, store.curve(run), home)
    if differences:
        click.echo("\n".join(f"differs: {line}" for line in differences))
        sys.exit(1)
    click.echo(f"run {run}: identical in every epoch and in the weights")
