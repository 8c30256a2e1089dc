"""`ressmooth`: everything but launching studies. Thin: each command imports what it needs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ressmooth import __version__
from ressmooth.config import PROTOCOL, RunConfig, choices
from ressmooth.errors import ConfigError, Diverged
from ressmooth.places import home, make_directory
from ressmooth.shell import SETTINGS, Group

if TYPE_CHECKING:
    from ressmooth.curves import Epoch
    from ressmooth.store import Store, StudyRow


@click.group(cls=Group, context_settings=SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Does residual smoothing really regularise? Train, search, track and compare."""


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """One option per setting of a run; what is not given stays with the paper's protocol."""
    by_protocol = {"lr", *next(iter(PROTOCOL.values()))}
    for name, field in reversed(RunConfig.model_fields.items()):
        flag = f"--{name.replace('_', '-')}"
        default = "the paper's" if name in by_protocol else field.default
        names = choices(field.annotation)
        kind: Any = click.Choice(names) if names else field.annotation
        if field.annotation is bool:
            flag = f"{flag}/--no-{name.replace('_', '-')}"
            default = "on" if field.default else "off"
        text = f"{field.description} [default: {default}]"
        command = click.option(flag, name, type=kind, default=None, help=text)(command)
    return command


@main.command()
@click.option("--out", type=click.Path(path_type=Path), help="directory for what the run leaves")
@click.option("--resume", is_flag=True, help="go on with the run in --out")
@click.option("--data", type=click.Path(path_type=Path), help="data directory")
@run_options
def train(out: Path | None, resume: bool, data: Path | None, **options: Any) -> None:
    """Train one run.

    \b
    ressmooth train --dataset digits --method smoothing --distribution laplace --b 0.5
    ressmooth train --dataset fashion_mnist --fraction 0.125 --model resnet20 --out run
    """
    from ressmooth import solo
    from ressmooth.progress import EpochBar

    values = {name: value for name, value in options.items() if value is not None}
    config = solo.configure(values, out, resume)
    bar = EpochBar(config.epochs)

    def started(done: int, threads_before: int | None) -> None:
        if threads_before is not None and config.threads not in (0, threads_before):
            click.echo(
                f"warning: resumed with {config.threads} threads (was {threads_before}): "
                "not bit for bit the uninterrupted run",
                err=True,
            )
        bar.start(done)

    def report(epoch: "Epoch") -> None:
        bar.advance(epoch)

    try:
        with bar:
            result = solo.run(
                config,
                data=data or home() / "data",
                out=out,
                resume=resume,
                started=started,
                report=report,
            )
    except KeyboardInterrupt:
        again = f"; resume with: ressmooth train --out {out} --resume" if out else ""
        click.echo(f"stopped after epoch {bar.done}{again}", err=True)
        sys.exit(130)
    if result.diverged_at is not None:
        raise Diverged(
            f"{result.outcome}: the loss is no longer a number; try a lower --lr (was {config.lr})"
        )
    click.echo(
        f"max accuracy {result.max_acc:.2f} %   mean of last {config.window} "
        f"{result.mean_acc:.2f} %   ({result.device}, {result.threads} threads)"
    )
    if config.selection == "holdout":
        click.echo(f"test accuracy {result.test_acc:.2f} %")
    if out is not None:
        click.echo(f"wrote {out}/: config.json, curves.csv, curves.png, checkpoint.pt")


@main.command()
@click.option("--quick", is_flag=True, help="under a minute, coarser")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--threads", type=click.IntRange(1), default=1, help="CPU threads, as a worker's [1]")
@click.option("--study", is_flag=True, help="what a study costs beside its training, instead")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
def bench(quick: bool, device: str, threads: int, study: bool, form: str) -> None:
    """Measure what the method and the trainer cost here, as ratios."""
    from ressmooth.bench import timing

    if study:
        from ressmooth.bench.study import measure

        rows = measure(quick=quick)
    else:
        from ressmooth.bench.training import measure as measure_training

        rows = measure_training(quick=quick, device=device, threads=threads)
    click.echo(timing.as_json(rows) if form == "json" else timing.as_table(rows))


with_home = click.option(
    "--home",
    type=click.Path(path_type=Path),
    callback=lambda ctx, option, given: home(given),
    help="where results are kept [default: RESSMOOTH_HOME or ~/.ressmooth]",
)


def _store(where: Path) -> "Store":
    """The Store of a home that has one; looking must not create it."""
    from ressmooth.store import default_url, open_store

    return open_store(default_url(where), create=False)


def _study(store: "Store", name: str) -> "StudyRow":
    study = store.study(name)
    if study is None:
        known = ", ".join(row.name for row in store.studies()) or "none yet"
        raise ConfigError(f"no study {name!r} here; known: {known}")
    return study


@main.command("list")
@with_home
def list_(home: Path) -> None:
    """List the studies of this home."""
    from ressmooth.compare import arms
    from ressmooth.report.text import overview

    store = _store(home)
    studies = [(s, store.trials(s.id), arms(s, store.winners(s.id))) for s in store.studies()]
    click.echo(overview(studies))


@main.command()
@click.argument("study")
@with_home
def show(study: str, home: Path) -> None:
    """Show every trial and run of STUDY, then the comparison."""
    from ressmooth.compare import compare_studies, leading
    from ressmooth.report.text import details

    store = _store(home)
    row = _study(store, study)
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
    from ressmooth.compare import chosen, compare
    from ressmooth.report import tables

    store = _store(home)
    rows = [_study(store, study) for study in dict.fromkeys(studies)]
    compared = compare(chosen(store, rows, names, fractions), store.baselines())
    if not compared:
        raise ConfigError(f"{', '.join(studies)}: nothing to compare yet, no trial is complete")
    if form == "json":
        click.echo(tables.as_json(compared))
    elif form == "csv":
        click.echo(tables.as_csv(compared))
    else:
        write = {"table": tables.text, "markdown": tables.markdown, "latex": tables.latex}[form]
        click.echo(write(compared, against_paper=against == "paper"))


@main.command()
@click.argument("study")
@click.option("--format", "form", type=click.Choice(["csv", "json"]), default="csv")
@with_home
def export(study: str, form: str, home: Path) -> None:
    """Print every epoch of STUDY with its arm, parameters and seed."""
    from ressmooth.export import write

    store = _store(home)
    write(store, _study(store, study), form, sys.stdout)


@main.command()
@click.argument("study")
@click.option("--failed", is_flag=True, required=True, help="the failed runs")
@with_home
def retry(study: str, failed: bool, home: Path) -> None:
    """Put the failed runs of STUDY back in the queue."""
    store = _store(home)
    count = store.reset_failed(_study(store, study).id)
    click.echo(f"{count} runs are waiting again; run: python -m ressmooth.study {study}")


@main.command()
@click.argument("run", type=int)
@with_home
def rerun(run: int, home: Path) -> None:
    """Train the recorded RUN again and say whether the result is identical."""
    from ressmooth.rerun import rerun as again

    differing = again(_store(home), run, home)
    if differing:
        click.echo("\n".join(f"differs: {line}" for line in differing))
        sys.exit(1)
    click.echo(f"run {run}: identical, every epoch and the weights")


@main.command()
@with_home
def sync(home: Path) -> None:
    """Deliver to MLflow what is still waiting to be delivered."""
    from ressmooth import tracking

    sent = tracking.sync(_store(home), home, tracking.tracking_uri(home))
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


if __name__ == "__main__":
    main()
