"""Run one study in the foreground: hold its lease, execute what is left, show the comparison."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import click

from ressmooth.config import BUILT_IN, RunConfig
from ressmooth.engines import Engine
from ressmooth.engines.local import die_with
from ressmooth.engines.progress import View
from ressmooth.errors import DataError, RessmoothError
from ressmooth.paths import make_directory
from ressmooth.search.planner import Planner
from ressmooth.spec import StudySpec
from ressmooth.store import Holder, default_url, open_store
from ressmooth.tracking.relay import Relay
from ressmooth.tracking.server import tracking_uri

HEARTBEAT = 15.0  # seconds
DELIVERY_TIMEOUT = 120.0  # seconds that MLflow gets at the end
STOPPED_DELIVERY_TIMEOUT = 5.0  # the same after a signal
NOTHING_COMPLETED = 7  # exit code


class Launcher:
    """Runs a study until it is finished or a signal stops it."""

    def __init__(
        self, spec: StudySpec, engine: Engine, home: Path, resume_command: str, quiet: bool
    ) -> None:
        self.spec, self.engine, self.home = spec, engine, home
        self.resume_command, self.quiet = resume_command, quiet
        self.holder = Holder.here()
        self.signals: list[int] = []
        self.began = self.last_heartbeat = time.monotonic()
        self.elapsed_before = 0.0  # seconds, by earlier launches

    def launch(self) -> int:
        """Run the study. Return the exit code."""
        make_directory(self.home)
        self.store = open_store(default_url(self.home))
        with closing(self.store):
            signal_number = self._hold_lease()
            if not signal_number:
                return self._show_comparison()
            click.echo(f"stopped; nothing is lost. Resume with: {self.resume_command}", err=True)
            return 128 + signal_number

    def _hold_lease(self) -> int:
        """Be the study's only launcher while it trains. Return the signal that ended it, or 0.

        While the engine runs, a signal lets epochs end. At any other time it stops the launcher.
        """
        self.study_id = self.store.open_study(self.spec)
        self.store.acquire(self.study_id, self.holder)
        try:
            with _on_signal(_raise_stopped):
                return self._train_and_deliver()
        except _Stopped as stopped:
            return stopped.signal_number
        finally:
            self.store.release(self.study_id, self.holder)

    def _train_and_deliver(self) -> int:
        """Train what is left and feed MLflow. Return the signal that ended it, or 0."""
        self.planner = Planner(self.store, self.study_id, self.spec)
        relay = Relay(self.store.url, self.home, tracking_uri(self.home), self.study_id)
        relay.start()
        study = self.store.study(self.spec.name)
        self.elapsed_before = study.elapsed if study else 0.0
        self._tick()  # a spent time budget adds no more trials
        if self.planner.peek():
            self._fetch_data()
            self._run_engine()
            self.store.announce_study(self.study_id)
        self.store.heartbeat(self.study_id, self.holder, self._elapsed())
        timeout = STOPPED_DELIVERY_TIMEOUT if self.signals else DELIVERY_TIMEOUT
        if left := relay.finish(timeout):
            click.echo(
                f"warning: {left} tracking events not delivered ({relay.problem}); "
                'run "ressmooth sync"',
                err=True,
            )
        return self.signals[0] if self.signals else 0

    def _run_engine(self) -> None:
        def stop(signal_number: int, _: object) -> None:
            """Stop at the next epoch ends. A second signal stops at once."""
            self.signals.append(signal_number)
            self.engine.stop()

        with View(self.planner, self.engine.workers, quiet=self.quiet) as view, _on_signal(stop):
            self.engine.run(self.planner, self.home, view, self._tick)

    def _elapsed(self) -> float:
        """Return the seconds that all launches have taken so far."""
        return self.elapsed_before + time.monotonic() - self.began

    def _tick(self) -> None:
        """Check the time budget and renew the lease."""
        hours = self.spec.search.hours
        if hours is not None and self._elapsed() > hours * 3600:
            self.planner.out_of_time = True
        if time.monotonic() - self.last_heartbeat > HEARTBEAT:
            self.last_heartbeat = time.monotonic()
            self.store.heartbeat(self.study_id, self.holder, self._elapsed())

    def _fetch_data(self) -> None:
        """Download missing data sets, because workers may be on nodes without a network."""
        data = self.home / "data"
        missing = missing_datasets(self.spec, data)
        if not missing:
            return
        names = ", ".join(missing)
        if not self.quiet:
            click.echo(f"fetching {names}", err=True)
        context = multiprocessing.get_context("spawn")  # it needs torch, which we do not load
        receiver, sender = context.Pipe(duplex=False)
        arguments = (os.getpid(), sender, missing, data)
        child = context.Process(target=_fetch, args=arguments, daemon=True)
        child.start()
        sender.close()
        try:
            while not receiver.poll(0.2):
                self._tick()
            error = receiver.recv()
        except EOFError:
            child.join()
            raise DataError(f"Fetching {names} ended with exit code {child.exitcode}.") from None
        finally:
            child.kill()
        if error is not None:
            raise error

    def _show_comparison(self) -> int:
        """Print the comparison and what to type next. Return the exit code."""
        from ressmooth.report.compare import by_selecting_statistic, compare_studies
        from ressmooth.report.tables import comparison_text

        study = self.store.study(self.spec.name)
        assert study is not None  # open_study has recorded it
        compared = by_selecting_statistic(compare_studies(self.store, [study]))
        name = self.spec.name
        if not compared:
            click.echo(f"error: no trial completed; see: ressmooth show {name}", err=True)
            return NOTHING_COMPLETED
        click.echo(comparison_text(compared, against_paper=any(t.has_paper for t in compared)))
        if not self.quiet:
            click.echo(f"next: ressmooth report {name} --out report   or   ressmooth ui")
        return 0


def missing_datasets(spec: StudySpec, data: Path) -> list[str]:
    """Return the study's data sets that are neither built in nor decoded yet."""
    default = RunConfig.model_fields["dataset"].default
    used = {branch.values.get("dataset", default) for branch in spec.branches}
    decoded = {name for name in used if any(data.glob(f"{name}-*.pt"))}
    return sorted(used - decoded - set(BUILT_IN))


def _fetch(launcher: int, sender: Connection, names: list[str], data: Path) -> None:
    """Download and decode data sets. Send None, or the error. Runs in a process of its own."""
    die_with(launcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C
    from ressmooth.training.data import load

    try:
        for name in names:
            load(name, data)
    except RessmoothError as error:
        sender.send(error)
    else:
        sender.send(None)


class _Stopped(BaseException):
    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


def _raise_stopped(signal_number: int, _: object) -> None:
    raise _Stopped(signal_number)


@contextmanager
def _on_signal(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM."""
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
