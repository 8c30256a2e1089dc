"""What is known of studies: listed, compared, reported, exported, tried again."""

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
from ressmooth.paths import make_directory


@main.command("list")
@with_home
def list_(home: Path) -> None:
    """List the studies of this home."""
    from ressmooth.report.compare import arms_of
    from ressmooth.report.tables import overview

    store = open_home(home)
    studies = [(s, store.trials(s.id), arms_of(s, store.winners(s.id))) for s in store.studies()]
    click.echo(overview(studies))


@main.command()
@click.argument("study")
@with_home
def show(study: str, home: Path) -> None:
    """Show every trial and run of STUDY, then the comparison."""
    from ressmooth.report.compare import compare_studies, leading
    from ressmooth.report.tables import details

    store = open_home(home)
    row = find_study(store, study)
    click.echo(details(row, store.trials(row.id), leading(compare_studies(store, [row]))))


@main.command()
@click.argument("studies", nargs=-1, required=True, metavar="STUDY...")
@click.option("--against", type=click.Choice(["paper"]), help="beside the paper's figures")
@click.option("--arm", "names", multiple=True, help="only this arm (and the SGD it is to beat)")
@click.option("--fraction", "fractions", type=float, multiple=True, help="only this fraction")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "markdown", "csv", "json", "latex"]),
    default="table",
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
    """Compare the arms of one STUDY or of several, with what a few seeds can tell.

    \b
    ressmooth compare paper-table2 --against paper --fraction 0.125
    ressmooth compare mine yours --format latex
    """
    from ressmooth.report import tables
    from ressmooth.report.compare import compare_studies, only

    store = open_home(home)
    rows = [find_study(store, study) for study in dict.fromkeys(studies)]
    compared = compare_studies(store, rows)
    if not compared:
        raise ConfigError(f"{', '.join(studies)}: nothing to compare yet, no trial is complete")
    for row in rows:
        if not any(line.arm.study == row.name for table in compared for line in table.lines):
            click.echo(f"warning: {row.name}: no trial is complete yet, left out", err=True)
    compared = only(compared, names, fractions)
    if form == "json":
        click.echo(tables.as_json(compared))
    elif form == "csv":
        click.echo(tables.as_csv(compared))
    else:
        write = {"table": tables.text, "markdown": tables.markdown, "latex": tables.latex}[form]
        click.echo(write(compared, against_paper=against == "paper"))


@main.command()
@click.argument("study")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="directory for it")
@with_home
def report(study: str, out: Path, home: Path) -> None:
    """Write a report of STUDY: a page, Markdown, figures and tables; MLflow gets it too."""
    from ressmooth.report.page import Report, write
    from ressmooth.tracking.server import show_report

    store = open_home(home)
    row = find_study(store, study)
    made = Report(store, row)
    if not made.arms:
        raise ConfigError(f"{study}: nothing to report yet, no trial is complete")
    with TemporaryDirectory() as scratch:  # MLflow gets this, and nothing else that is in `out`
        write(made, Path(scratch))
        with _writing(out):
            for old in out.glob("figures/[0-9][0-9]-*.png"):
                old.unlink()
            shutil.copytree(scratch, out, dirs_exist_ok=True)
        click.echo(f"wrote {out}/: index.html, report.md, comparison.csv and .json, figures/")
        try:
            show_report(home, row, Path(scratch))
        except TrackingError as error:
            click.echo(f"warning: not logged to MLflow ({error})", err=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        make_directory(path.absolute().parent)
        yield
    except shutil.Error as error:  # several files
        raise ConfigError(f"--out {path}: {error.args[0][0][2]}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"Cannot write {path}: {error.strerror}.") from error
        raise ConfigError(f"--out {path}: {error.strerror}") from error


@main.command()
@click.argument("what", type=click.Choice(["annealing", "sigmoid"]))
@click.option("--out", type=click.Path(path_type=Path), required=True, help=".png, .svg or .pdf")
def plot(what: str, out: Path) -> None:
    """Draw the annealing of the scale, or the diffusivity's sigmoid."""
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {out}: a file that ends in .png, .svg or .pdf")
    from ressmooth.report import figures, style

    with _writing(out):
        style.save(style.picture(*figures.PICTURES[what]()), out)
    click.echo(f"wrote {out}")


@main.command()
@click.argument("study")
@click.option("--format", "form", type=click.Choice(["csv", "json", "optuna"]), default="csv")
@click.option("--out", type=click.Path(path_type=Path), help="database for Optuna's dashboard")
@with_home
def export(study: str, form: str, out: Path | None, home: Path) -> None:
    """Print every epoch of STUDY with its arm, parameters and seed.

    \b
    ressmooth export quickstart --format csv > epochs.csv
    ressmooth export quickstart --format optuna --out optuna.db
    """
    if (form == "optuna") != (out is not None):
        raise ConfigError("--out FILE belongs to --format optuna; the others print")
    store = open_home(home)
    row = find_study(store, study)
    if out is None:
        from ressmooth.report.export import write

        write(store, row, form, sys.stdout)
        return
    from ressmooth.report.export import save_optuna

    with _writing(out), TemporaryDirectory(dir=out.absolute().parent) as scratch:
        save_optuna(store, row, Path(scratch) / out.name)
        (Path(scratch) / out.name).replace(out)
    click.echo(f"wrote {out}; look at it with: optuna-dashboard sqlite:///{out}")


@main.command()
@click.argument("study")
@click.option("--failed", is_flag=True, required=True, help="the failed runs")
@with_home
def retry(study: str, failed: bool, home: Path) -> None:
    """Put the failed runs of STUDY back in the queue."""
    from ressmooth.store import Holder

    store, holder = open_home(home), Holder.here()
    study_id = find_study(store, study).id
    store.acquire(study_id, holder)  # a launcher would not notice
    try:
        count = store.reset_failed(study_id)
    finally:
        store.release(study_id, holder)
    click.echo(f"{count} runs are waiting again; run: python -m ressmooth.study {study}")


@main.command()
@click.argument("run", type=int)
@with_home
def rerun(run: int, home: Path) -> None:
    """Train the recorded RUN again and say whether the result is identical."""
    from ressmooth.engines.runner import rerun as again

    differing = again(open_home(home), run, home)
    if differing:
        click.echo("\n".join(f"differs: {line}" for line in differing))
        sys.exit(1)
    click.echo(f"run {run}: identical, every epoch and the weights")
