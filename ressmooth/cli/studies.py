"""Commands that show, compare, report, export and retry studies."""

import errno
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from ressmooth.cli import find_study, main, open_home, with_home
from ressmooth.errors import ConfigError, StorageError, TrackingError
from ressmooth.formatting import count
from ressmooth.paths import home as default_home
from ressmooth.paths import make_directory

HOME_FILES = ("results.db", "mlflow.db", "mlflow.lock", "runs", "artifacts", "data")

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
    click.echo(details(store, find_study(store, study)))


@main.command()
@click.argument("studies", nargs=-1, required=True, metavar="STUDY...")
@click.option("--against", type=click.Choice(["paper"]), help="add the paper's figures")
@click.option("--arm", "names", multiple=True, help="only this arm, and SGD as its reference")
@click.option("--fraction", "fractions", type=float, multiple=True, help="only this fraction")
@click.option(
    "--format", "form", type=click.Choice("table markdown csv json latex".split()), default="table"
)
@with_home
def compare(
    studies: tuple[str, ...],
    against: str | None,
    names: tuple[str, ...],
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
    compared = compare_studies(store, rows)
    if not compared:
        reason = "nothing to compare yet, no trial is complete; see: ressmooth list"
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
    """Write a report of STUDY (HTML, Markdown, figures, tables) and log it to MLflow."""
    from ressmooth.report.page import Report, is_report, write
    from ressmooth.tracking.server import show_report

    store = open_home(home)
    row = find_study(store, study)
    is_ours = is_report(out / "index.html")
    for name in ("index.html", "report.md", "comparison.csv", "comparison.json", "figures"):
        check_replaceable(out / name, home, is_ours, force)
    contents = Report(store, row)
    if not contents.arms:
        reason = f"nothing to report yet, no trial is complete; see: ressmooth show {study}"
        raise ConfigError(f"{study}: {reason}")
    with TemporaryDirectory() as scratch:  # so that MLflow gets no other files of `out`
        write(contents, Path(scratch))
        with _writing(out):
            for old in out.glob("figures/[0-9][0-9]-*.png"):
                old.unlink()
            _copy_files(Path(scratch), out)
        click.echo(f"wrote {out}/: index.html, report.md, comparison.csv and .json, figures/")
        try:
            show_report(home, contents.study, Path(scratch))
        except TrackingError as error:
            click.echo(f"warning: not logged to MLflow ({error})", err=True)


def check_replaceable(path: Path, home: Path, is_ours: bool, force: bool) -> None:
    """Refuse to replace a file that ressmooth did not write, and files of the home always."""
    place = path.resolve()
    if any(place.is_relative_to(home.resolve() / name) for name in HOME_FILES):
        raise ConfigError(f"--out {path}: belongs to the home {home}; choose another path")
    if path.exists() and not is_ours and not force:
        reason = "exists and was not written by ressmooth"
        raise ConfigError(f"--out {path}: {reason}; choose another path, or add --force")


def _copy_files(source: Path, out: Path) -> None:
    """Copy a directory's files. Modes follow the umask, and existing directories keep theirs."""
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
@click.argument("picture", type=click.Choice(["annealing", "sigmoid"]))
@click.option("--out", type=click.Path(path_type=Path), required=True, help=".png, .svg or .pdf")
@with_force
def plot(picture: str, out: Path, force: bool) -> None:
    """Draw the annealing of the scale, or the diffusivity's sigmoid."""
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {out}: the file name must end in .png, .svg or .pdf")
    from ressmooth.report import figures, style

    check_replaceable(out, default_home(), style.is_picture(out), force)
    with _writing(out):
        style.save(style.picture(*figures.PICTURES[picture]()), out)
    click.echo(f"wrote {out}")


@main.command()
@click.argument("study")
@click.option("--format", "form", type=click.Choice(["csv", "json", "optuna"]), default="csv")
@click.option("--out", type=click.Path(path_type=Path), help="database for Optuna's dashboard")
@with_force
@with_home
def export(study: str, form: str, out: Path | None, force: bool, home: Path) -> None:
    """Print every epoch of STUDY with its arm, parameters and seed.

    \b
    ressmooth export quickstart --format csv > epochs.csv
    ressmooth export quickstart --format optuna --out optuna.db
    """
    if (form == "optuna") != (out is not None):
        rule = "optuna needs --out FILE; csv and json are printed and take no --out"
        raise ConfigError(f"--format {form}: {rule}")
    from ressmooth.report.export import is_optuna_export, write_epochs, write_optuna

    store = open_home(home)
    row = find_study(store, study)
    if out is None:
        write_epochs(store, row, form, sys.stdout)
        return
    check_replaceable(out, home, is_optuna_export(out), force)
    with _writing(out), TemporaryDirectory(dir=out.absolute().parent) as scratch:
        write_optuna(store, row, Path(scratch) / out.name)
        (Path(scratch) / out.name).replace(out)
    click.echo(f"wrote {out}; open it with: optuna-dashboard sqlite:///{out}")


@main.command()
@click.argument("study")
@click.option("--failed", is_flag=True, required=True, help="the failed runs")
@with_home
def retry(study: str, failed: bool, home: Path) -> None:
    """Put the failed runs of STUDY back in the queue."""
    from ressmooth.store import Holder

    store, holder = open_home(home), Holder.here()
    study_id = find_study(store, study).id
    store.acquire(study_id, holder)  # a running launcher would not notice the change
    try:
        number = store.reset_failed(study_id)
    finally:
        store.release(study_id, holder)
    click.echo(f"queued {count(number, 'run')} again; run: python -m ressmooth.study {study}")


@main.command()
@click.argument("run", type=int)
@with_home
def rerun(run: int, home: Path) -> None:
    """Train the recorded RUN again, and report whether the result is identical."""
    from ressmooth.engines import runner

    differences = runner.rerun(open_home(home), run, home)
    if differences:
        click.echo("\n".join(f"differs: {line}" for line in differences))
        sys.exit(1)
    click.echo(f"run {run}: identical in every epoch and in the weights")
