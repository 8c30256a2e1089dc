"""Run one study in the foreground: hold its lease, execute what is left, show the comparison."""

import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import get_args

import click

from ressmooth import paths
from ressmooth.config import BUILT_IN, DatasetName, RunConfig
from ressmooth.engines import Engine
from ressmooth.engines.child import call_in_child
from ressmooth.engines.cleaning import remove_forks
from ressmooth.engines.heartbeat import Heartbeat
from ressmooth.engines.output import survive_broken_output
from ressmooth.engines.preflight import Hashes, check_unchanged
from ressmooth.engines.progress import View
from ressmooth.engines.scheduler import BAD_STUDY, ActiveStudy, Scheduler
from ressmooth.engines.signals import Stopped, acknowledge_signals, on_signal, raise_stopped
from ressmooth.errors import DataError
from ressmooth.formatting import count
from ressmooth.paths import command, make_home, only_submits, report_out
from ressmooth.search.notes import warm_start_notes
from ressmooth.search.planner import Planner
from ressmooth.search.warm_start import find_warm_start
from ressmooth.spec import StudySpec
from ressmooth.store import Holder, Store, StudyState, default_url, open_store
from ressmooth.store.database import Database
from ressmooth.tracking.relay import Relay
from ressmooth.tracking.server import tracking_uri
from ressmooth.tracking.webhook import notifying, webhook_address
from ressmooth.training.decoded import lock_file

HEARTBEAT = 15.0  # seconds
POLL = 1.0  # seconds between two looks at whether somebody has asked for a stop
STANDSTILL = 3600.0  # seconds without an epoch, after which the webhook is told
DELIVERY_TIMEOUT = 120.0  # seconds that MLflow gets at the end
STOPPED_DELIVERY_TIMEOUT = 5.0  # the same after a signal
NOTHING_COMPLETED = 7  # exit code


class Launcher:
    """Runs a study until it is finished or a signal stops it."""

    def __init__(
        self,
        spec: StudySpec,
        engine: Engine,
        home: Path,
        resume_command: str,
        quiet: bool,
        hashes: Hashes,
    ) -> None:
        self.spec, self.engine, self.home = spec, engine, home
        self.resume_command, self.quiet, self.hashes = resume_command, quiet, hashes
        self.holder = Holder.here()
        self.webhook = webhook_address()
        self.signals: list[int] = []
        self.ticked = self.polled = time.monotonic()

    def launch(self) -> int:
        """Run the study. Return the exit code."""
        survive_broken_output()
        for line in warm_start_notes(self.spec, find_warm_start(self.spec, self.home)):
            if not self.quiet:
                click.echo(line, err=True)
        signal_number = self._fetch_first() or self._open_and_train()
        if not signal_number:
            with closing(open_store(default_url(self.home))) as store:
                return show_comparison(store, self.spec.name, self.home, quiet=self.quiet)
        click.echo(f"stopped; nothing is lost. Resume with: {self.resume_command}", err=True)
        return 128 + signal_number

    def _fetch_first(self) -> int:
        """Fetch the data of a new study before it is recorded. Return a signal that came, or 0."""
        if _is_recorded(self.spec.name, self.home):
            return 0
        try:
            with on_signal(raise_stopped):
                fetch_data(self.spec, self.home, lambda: None, quiet=self.quiet)
            return 0
        except Stopped as stopped:
            return stopped.signal_number

    def _open_and_train(self) -> int:
        make_home(self.home)
        self.store = open_store(default_url(self.home))
        with closing(self.store), notifying(self.store, self.home, self.webhook, self._warn):
            return self._hold_lease()

    def _hold_lease(self) -> int:
        """Be the study's only launcher while it trains. Return the signal that ended it, or 0.

        While the engine runs, a signal lets epochs end. At any other time it stops the launcher.
        """
        self.study_id = self.store.open_study(self.spec)
        self.store.acquire(self.study_id, self.holder)
        self.store.holder = self.holder
        try:
            self.submitted_at = self.store.begin(self.study_id, paths.user())
            with on_signal(raise_stopped):
                signal_number = self._train_and_deliver()
            self._end(StudyState.STOPPED if signal_number else StudyState.ENDED)
            return signal_number
        except Stopped as stopped:
            self._end(StudyState.STOPPED)
            return stopped.signal_number
        except BAD_STUDY as error:
            self._end(StudyState.FAILED, str(error))
            raise
        finally:
            self.store.release(self.study_id, self.holder)

    def _warn(self, text: str) -> None:
        click.echo(f"warning: {text}", err=True)

    def _end(self, state: StudyState, problem: str | None = None) -> None:
        self.store.end(self.study_id, state, self.submitted_at, problem)

    def _train_and_deliver(self) -> int:
        """Train what is left and feed MLflow. Return the signal that ended it, or 0."""
        self.elapsed = self.store.study_with_id(self.study_id).elapsed
        with Heartbeat(self.store, HEARTBEAT, self._renew_lease) as self.heartbeat:
            return self._train()

    def _train(self) -> int:
        check_unchanged(self.store, self.study_id, self.spec, self.hashes)
        planner = Planner(self.store, self.study_id, self.spec)
        self.study = ActiveStudy(planner, elapsed=self.elapsed)
        self.study.spend(0.0)  # a spent time budget adds no more trials
        self.scheduler = Scheduler()
        self.scheduler.add(self.study)
        relay = Relay(self.store.url, self.home, tracking_uri(self.home), self.study_id)
        relay.start()
        self.ticked = time.monotonic()
        if planner.peek():
            fetch_data(self.spec, self.home, self._tick, quiet=self.quiet)
            self._run_engine(planner)
            self.store.announce_study(self.study_id)
        self._renew_lease(self.store)
        self._deliver(relay)
        if self.study.is_leaving:
            return signal.SIGTERM
        if not self.signals:
            remove_forks(self.store, planner, self.home)
        return self.signals[0] if self.signals else 0

    def _renew_lease(self, store: Store) -> None:
        store.heartbeat(self.study_id, self.holder, self.elapsed)

    def _deliver(self, relay: Relay) -> None:
        """Give MLflow some time for what is left, but none after a second signal."""
        timeouts = (DELIVERY_TIMEOUT, STOPPED_DELIVERY_TIMEOUT, 0.0)
        timeout = timeouts[min(len(self.signals), 2)]
        pending = self.store.count_pending(self.study_id)
        if pending and not (self.quiet or self.signals):
            click.echo(f"delivering {count(pending, 'event')} to MLflow", err=True)
        if left := relay.finish(timeout):
            words = ["sync", "--retry-rejected"] if relay.rejected else ["sync"]
            click.echo(
                f"warning: {left} tracking events not delivered ({relay.problem}); "
                f"send them later with: {command(self.home, *words)}",
                err=True,
            )

    def _run_engine(self, planner: Planner) -> None:
        def stop(signal_number: int) -> None:
            """Stop at the next epoch ends. A second signal stops at once."""
            self.signals.append(signal_number)
            self.engine.stop()

        with View(planner, self.engine.workers, quiet=self.quiet) as view:
            with acknowledge_signals(view, stop), on_signal(lambda *_: None):
                self.engine.run(self.scheduler, self.store, self.home, view, self._tick)

    def _tick(self) -> None:
        """Check the lease, the time budget, and whether somebody has asked for a stop."""
        self.heartbeat.check()
        now = time.monotonic()
        self.study.spend(now - self.ticked)
        self.ticked, self.elapsed = now, self.study.elapsed
        if now - self.polled > POLL:
            self.polled = now
            state = self.store.submission(self.study_id).state
            self.study.is_leaving = state == StudyState.STOPPING
            check_standstill(self.store, self.study)


def check_standstill(store: Store, study: ActiveStudy) -> None:
    """Tell the webhook if no epoch of a study has ended for an hour. Tell it again every hour."""
    if time.monotonic() - study.last_epoch_at > STANDSTILL:
        study.last_epoch_at = time.monotonic()
        store.notify(study.id, "standstill")


def _is_recorded(name: str, home: Path) -> bool:
    """Tell whether a home has a study. Create nothing."""
    with closing(Database(default_url(home))) as database:
        if database.is_new():
            return False
    with closing(Store(default_url(home))) as store:
        return store.study(name) is not None


def fetch_data(
    spec: StudySpec, home: Path, tick: Callable[[], None], *, quiet: bool = False
) -> None:
    """Download missing data sets, because workers may be on nodes without a network."""
    data = home / "data"
    if missing := missing_datasets(spec, data):
        if not quiet:
            click.echo(f"fetching {', '.join(missing)}", err=True)
        try:
            call_in_child(fetch, missing, data, tick=tick)
        except DataError:
            _remove_if_empty(missing, data)
            raise


def _remove_if_empty(names: list[str], data: Path) -> None:
    """Remove the directories that a failed download has left, unless they hold something."""
    with suppress(OSError):
        for name in names:
            lock_file(name, data).unlink(missing_ok=True)
        data.rmdir()
        data.parent.rmdir()


def show_comparison(store: Store, name: str, home: Path, *, quiet: bool) -> int:
    """Print a study's comparison and what to type next. Return the exit code."""
    from ressmooth.report.compare import by_selecting_statistic, compare_studies
    from ressmooth.report.tables import comparison_text

    study = store.study(name)
    assert study is not None  # it was just run
    compared = by_selecting_statistic(compare_studies(store, [study]))
    if not compared:
        show = command(home, "show", name)
        click.echo(f"error: no trial completed; see: {show}", err=True)
        return NOTHING_COMPLETED
    click.echo(comparison_text(compared, against_paper=any(t.has_paper for t in compared)))
    if not quiet:
        click.echo(f"next: {command(home, 'report', name, '--out', report_out(name))}", err=True)
        if not only_submits():  # in a container nobody would reach it
            click.echo(f"      {command(home, 'ui')}", err=True)
    return 0


def missing_datasets(spec: StudySpec, data: Path) -> list[str]:
    """Return the study's data sets that are neither built in nor decoded yet."""
    default = RunConfig.model_fields["dataset"].default
    used = {branch.values.get("dataset", default) for branch in spec.branches}
    used &= {*get_args(DatasetName)} - {*BUILT_IN}  # the user's own are where they are
    return sorted(name for name in used if not any(data.glob(f"{name}-*.pt")))


def fetch(names: list[str], data: Path) -> None:
    """Download and decode data sets. Runs in a process of its own."""
    from ressmooth.training.datasets import load

    for name in names:
        load(name, data)
