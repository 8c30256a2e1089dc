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
from ressmooth.cli.output import check_directory, check_replaceable, with_force
from ressmooth.errors import ConfigError, StorageError, TrackingError
from ressmooth.formatting import count
from ressmooth.paths import command, dashboard_command, make_directory, report_directory
from ressmooth.paths import home as default_home

if TYPE_CHECKING:
    from ressmooth.store import Store, StudyRow

FILES = ("parquet", "optuna", "archive")  # formats of export that need --out


@main.command("list")
@with_home
def list_(home: Path) -> None:
    """List the studies of this home."""
    from ressmooth.report.tables import overview

    click.echo(overview(open_home(home)))


@main.command()
@click.argument("study")
@click.option("--page", type=click.IntRange(1), default=1, help="of its trials [default: 1]")
@click.option("--tree", is_flag=True, help="show which runs continue the prefix of another")
@with_home
def show(study: str, page: int, tree: bool, home: Path) -> None:
    """Show every trial and run of STUDY, then the comparison."""
    store = open_home(home)
    row = find_study(store, study)
    if tree:
        from ressmooth.report.tree import tree_of

        click.echo(tree_of(store.trials(row.id)))
    else:
        _show_page(store, row, page, home)
    states = store.run_states().get(row.id, {}).keys()
    if "failed" in states:
        click.echo(f"retry what failed: {command(home, 'retry', study, '--failed')}", err=True)
    if states & {"waiting", "running"} and row.held_by is None:
        click.echo(f"resume with: {command(home, 'study', study)}", err=True)


def _show_page(store: "Store", row: "StudyRow", page: int, home: Path) -> None:
    from ressmooth.report.tables import TRIALS_PER_PAGE, details

    pages = max(1, -(-store.count_trials(row.id) // TRIALS_PER_PAGE))
    if page > pages:
        raise ConfigError(f"--page {page}: {row.name} has {count(pages, 'page')}")
    click.echo(details(store, row, page))
    if page < pages:
        following = command(home, "show", row.name, "--page", str(page + 1))
        click.echo(f"page {page} of {pages}; next: {following}", err=True)


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
    """Compare the arms of one or more studies, with tests over seeds.

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
    """Write a report: page, Markdown, figures, tables. Show it in MLflow too."""
    from ressmooth.report.page import Report, is_report, write

    store = open_home(home)
    row = find_study(store, study)
    check_directory(out)
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
    """Draw the annealing, the diffusivity's sigmoid, or the evidence."""
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {out}: the file name must end in .png, .svg or .pdf")
    from ressmooth.report import pictures, style

    check_replaceable(out, default_home(), style.is_picture(out), force)
    with _writing(out):
        style.save(style.picture(*pictures.PICTURES[picture]()), out)
    click.echo(f"wrote {out}")


@main.command()
@click.argument("studies", nargs=-1, required=True, metavar="STUDY...")
@click.option(
    "--table",
    type=click.Choice(["epochs", "runs", "trials", "comparison"]),
    help="what to export as csv, json or parquet [default: epochs]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "parquet", "optuna", "mlflow", "archive"]),
    default="csv",
    help="mlflow: log each arm's best network to MLflow; archive: for `ressmooth import`",
)
@click.option("--out", type=click.Path(path_type=Path), help="file for parquet, optuna or archive")
@click.option("--weights", is_flag=True, help="archive: with the best weights of each run")
@with_force
@with_home
def export(
    studies: tuple[str, ...],
    table: str | None,
    form: str,
    out: Path | None,
    weights: bool,
    force: bool,
    home: Path,
) -> None:
    """Print a table of STUDY, or write it for another program.

    \b
    ressmooth export quickstart --table runs > runs.csv
    ressmooth export quickstart --format parquet --out epochs.parquet
    ressmooth export quickstart --format optuna --out optuna.db
    ressmooth export mine yours --format archive --out results.zip
    """
    if form in FILES and out is None:
        raise ConfigError(f"--format {form}: needs --out FILE")
    if form not in FILES and out is not None:
        rule = f"only with --format {', '.join(FILES)}; csv and json are printed, so redirect them"
        raise ConfigError(f"--out {out}: {rule}: > {out}")
    if table and form in ("optuna", "mlflow", "archive"):
        raise ConfigError(f"--table {table}: only with --format csv, json or parquet")
    if form != "archive" and (weights or len(studies) > 1):
        given = "--weights" if weights else ", ".join(studies)
        raise ConfigError(f"{given}: only with --format archive; the others take one study")
    store = open_home(home)
    rows = [find_study(store, study) for study in dict.fromkeys(studies)]
    row = rows[0]
    if form == "archive" and out is not None:
        _export_archive(store, rows, out, weights, force, home)
    elif form == "mlflow":
        _log_models(store, row, home)
    elif form == "optuna" and out is not None:
        from ressmooth.report.export import is_optuna_export, write_optuna

        _replace(out, home, force, is_optuna_export, partial(write_optuna, store, row))
        click.echo(f"wrote {out}; open it with: {dashboard_command(out, home)}")
    else:
        _export_table(store, row, table or "epochs", form, out, force, home)


def _export_table(
    store: "Store", row: "StudyRow", name: str, form: str, out: Path | None, force: bool, home: Path
) -> None:
    from ressmooth.report.frames import TABLES, is_parquet_export

    table = TABLES[name](store, row)
    if out is None:
        for text in table.csv() if form == "csv" else table.json():
            sys.stdout.write(text)
        return
    _replace(out, home, force, is_parquet_export, table.write_parquet)
    click.echo(f"wrote {out}: {count(len(table.records), 'row')}")


def _export_archive(
    store: "Store", rows: "list[StudyRow]", out: Path, weights: bool, force: bool, home: Path
) -> None:
    from ressmooth.report.archive import is_archive, write_archive

    names = [row.name for row in rows]
    write = partial(write_archive, store, names, home=home, weights=weights)
    _replace(out, home, force, is_archive, write)
    size = out.stat().st_size / 1e6
    read_it = join(["ressmooth", "import", str(out)])
    click.echo(f"wrote {out} ({size:.1f} MB); read it elsewhere with: {read_it}")


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
    if out.is_dir():
        raise ConfigError(f"--out {out}: is a directory; add the name of a file")
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
    """Train the recorded RUN again, and tell if it is identical."""
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
