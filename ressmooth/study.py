"""`python -m ressmooth.study`: launch a study, or go on with it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ressmooth.shell import SETTINGS, ReportsErrors

if TYPE_CHECKING:
    from ressmooth.engines.cluster import Cluster
    from ressmooth.engines.optuna import Machine
    from ressmooth.spec import Resources, StudySpec
    from ressmooth.store import Store, StudyRow

BEAT = 15.0  # seconds between two signs of life
DELIVERY = 120.0  # seconds that MLflow gets at the end


@click.command(cls=ReportsErrors, context_settings=SETTINGS)
@click.argument("study")
@click.option("--home", type=click.Path(path_type=Path), help="where results are kept")
@click.option(
    "--engine",
    type=click.Choice(["optuna", "ray"]),
    default="optuna",
    help="workers on this machine, or the Ray cluster at RAY_ADDRESS",
)
@click.option("--workers", default="auto", metavar="N|auto", help="runs at the same time")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="change a setting")
@click.option("--dry-run", is_flag=True, help="show the plan and create nothing")
@click.option("--quiet", is_flag=True, help="print the comparison only")
def main(
    study: str,
    home: Path | None,
    engine: str,
    workers: str,
    overrides: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
) -> None:
    """Run STUDY, a TOML file or the name of a bundled study; again to go on with it.

    \b
    python -m ressmooth.study quickstart
    python -m ressmooth.study my.toml --workers 4 --set epochs=10 --set search.trials=50
    """
    from ressmooth import places, spec
    from ressmooth.errors import ConfigError

    loaded = spec.load(study, overrides)
    if workers != "auto" and not (workers.isdecimal() and 0 < int(workers) <= 1024):
        raise ConfigError(f"--workers {workers}: a number from 1 to 1024, or auto")
    resources = loaded.resources
    devices = {branch.values.get("device", "auto") for branch in loaded.branches}
    if "cuda" in devices and not resources.gpus_per_run:
        raise ConfigError("device = 'cuda': set resources.gpus_per_run to what a run may have")
    where = places.home(home)
    place = _place(
        engine, resources, resources.workers if workers == "auto" else int(workers), where
    )
    if place.idle_gpus and "auto" in devices:
        click.echo(
            f"warning: resources.gpus_per_run = 0 trains on CPUs; {place.idle_gpus:g} GPUs stay "
            "idle. Use --set resources.gpus_per_run=1, or a fraction",
            err=True,
        )
    if dry_run:
        from ressmooth.plan import describe

        click.echo(describe(loaded, str(place), place.workers, where))
        return
    options = ["--home", str(home)] if home else []
    options += ["--engine", engine] if engine != "optuna" else []
    options += [part for override in overrides for part in ("--set", override)]
    again = shlex.join(["python", "-m", "ressmooth.study", study, *options])
    code = launch(loaded, spec.find(study).read_text(), place, where, again, quiet)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Python's own end would abort if the relay is still drawing a picture


def _place(
    engine: str, resources: "Resources", workers: int | None, home: Path
) -> "Machine | Cluster":
    """Where the study is to run; a cluster is asked what it has."""
    if engine == "optuna":
        from ressmooth.engines.optuna import Machine

        return Machine(resources, workers)
    from ressmooth.errors import ConfigError
    from ressmooth.store import default_url

    try:
        from ressmooth.engines.cluster import Cluster
    except ImportError as error:
        raise ConfigError("--engine ray: Ray is missing; pip install 'ressmooth[ray]'") from error
    return Cluster(resources, workers, default_url(home))


def launch(
    spec: "StudySpec",
    text: str,
    place: "Machine | Cluster",
    home: Path,
    again: str,
    quiet: bool,
) -> int:
    """Run the study to its end; the exit code."""
    from ressmooth.places import make_directory
    from ressmooth.store import default_url, open_store

    make_directory(home)
    store = open_store(default_url(home))
    try:
        signalled = _hold_and_run(store, spec, text, place, home, quiet)
        if signalled:
            click.echo(f"stopped; nothing is lost. Resume with: {again}", err=True)
            return 128 + signalled
        return _conclude(store, spec, quiet)
    finally:
        store.close()


def _hold_and_run(
    store: "Store",
    spec: "StudySpec",
    text: str,
    place: "Machine | Cluster",
    home: Path,
    quiet: bool,
) -> int:
    """Be the study's only launcher while it runs; the signal that ended it, or 0."""
    from ressmooth.store import Holder

    study_id = store.open_study(spec, text)
    holder = Holder.here()
    store.hold(study_id, holder)
    try:
        with _handling(_raise):
            return _run(store, study_id, spec, place, home, holder, quiet)
    except _Stopped as stopped:  # while workers start or MLflow is waited for
        return stopped.number
    finally:
        store.release(study_id, holder)


def _run(
    store: "Store",
    study_id: int,
    spec: "StudySpec",
    place: "Machine | Cluster",
    home: Path,
    holder: Any,
    quiet: bool,
) -> int:
    """Train what is left to train; the signal that ended it, or 0."""
    from ressmooth.dispatch import Dispatcher
    from ressmooth.tracking import Relay, tracking_uri
    from ressmooth.view import View

    dispatcher = Dispatcher(store, study_id, spec)
    relay = Relay(store.url, home, tracking_uri(home), study_id)
    relay.start()
    began = beaten = time.monotonic()
    before = _row(store, spec).elapsed
    signals: list[int] = []

    def tick() -> None:
        nonlocal beaten
        elapsed = before + time.monotonic() - began
        if spec.search.hours is not None and elapsed > spec.search.hours * 3600:
            dispatcher.out_of_time = True
        if time.monotonic() - beaten > BEAT:
            beaten = time.monotonic()
            store.beat(study_id, holder, elapsed)

    tick()  # a spent time budget asks for no more
    if dispatcher.peek():
        _fetch(spec, home, quiet, tick)
        with View(dispatcher, place.workers, quiet=quiet) as view:
            engine = place.engine(dispatcher, home, view)

            def stop(number: int, _: object) -> None:
                """End at the next epochs; a second signal at once."""
                signals.append(number)
                engine.stop()

            with _handling(stop):
                engine.run(tick)
        store.touch_study(study_id)
    store.beat(study_id, holder, before + time.monotonic() - began)
    left = relay.finish(5.0 if signals else DELIVERY)
    if left:
        click.echo(
            f"warning: {left} tracking events not delivered ({relay.problem}); "
            'run "ressmooth sync"',
            err=True,
        )
    return signals[0] if signals else 0


def _fetch(spec: "StudySpec", home: Path, quiet: bool, tick: Callable[[], None]) -> None:
    """Get the data sets, as workers may be on nodes without a network; apart, as it needs torch."""
    from ressmooth.config import BUILT_IN, RunConfig
    from ressmooth.errors import DataError

    usual = RunConfig.model_fields["dataset"].default
    used = {branch.values.get("dataset", usual) for branch in spec.branches}
    decoded = {name for name in used if any((home / "data").glob(f"{name}-*.pt"))}
    missing = sorted(used - decoded - set(BUILT_IN))
    if not missing:
        return
    if not quiet:
        click.echo(f"fetching {', '.join(missing)}", err=True)
    fetch = [sys.executable, "-m", "ressmooth.cli", "fetch", *missing, "--home", str(home)]
    with subprocess.Popen(fetch, stdout=subprocess.DEVNULL) as child:
        try:
            while child.poll() is None:
                tick()
                time.sleep(0.2)
        except BaseException:
            child.kill()
            raise
    if child.returncode < 0:
        raise DataError(f"Fetching {', '.join(missing)} was ended by signal {-child.returncode}.")
    if child.returncode:
        raise click.exceptions.Exit(child.returncode)


class _Stopped(BaseException):
    def __init__(self, number: int) -> None:
        self.number = number


def _raise(number: int, _: object) -> None:
    raise _Stopped(number)


@contextmanager
def _handling(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM meanwhile."""
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _row(store: "Store", spec: "StudySpec") -> "StudyRow":
    row = store.study(spec.name)
    assert row is not None  # open_study has made it
    return row


def _conclude(store: "Store", spec: "StudySpec", quiet: bool) -> int:
    """Show the comparison and say what to type next; the exit code."""
    from ressmooth.compare import compare_studies, leading
    from ressmooth.report.tables import text

    compared = leading(compare_studies(store, [_row(store, spec)]))
    if not compared:
        click.echo(f"error: no trial completed; see: ressmooth show {spec.name}", err=True)
        return 7
    click.echo(text(compared, against_paper=any(table.has_paper for table in compared)))
    if not quiet:
        click.echo(f"next: ressmooth report {spec.name} --out report   or   ressmooth ui")
    return 0


if __name__ == "__main__":
    main(prog_name="python -m ressmooth.study")
