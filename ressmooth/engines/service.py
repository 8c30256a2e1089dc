"""Run every submitted study of a Store on one pool of workers: `ressmooth serve`."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ressmooth.engines import Engine, check_fits, machine, preflight
from ressmooth.engines.cleaning import Retention, keep_days, remove_forks
from ressmooth.engines.heartbeat import Heartbeat
from ressmooth.engines.launcher import check_standstill, fetch_data
from ressmooth.engines.output import survive_broken_output
from ressmooth.engines.preflight import Hashes, check_unchanged
from ressmooth.engines.progress import ServiceLog
from ressmooth.engines.scheduler import ActiveStudy, Scheduler
from ressmooth.engines.signals import acknowledge_signals, on_signal
from ressmooth.errors import (
    RessmoothError,
    SchemaError,
    StorageError,
    StoreCorrupt,
    StoreUnreachable,
    StudyBusy,
)
from ressmooth.paths import make_home, serve_command
from ressmooth.search.planner import Planner
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import (
    Holder,
    RunRow,
    Store,
    StudyState,
    Submission,
    default_url,
    open_store,
)
from ressmooth.store.database import safe_url
from ressmooth.tracking.relay import Relay
from ressmooth.tracking.server import tracking_uri
from ressmooth.tracking.webhook import notifying, webhook_address

if TYPE_CHECKING:
    from ressmooth.tracking.prometheus import MetricsServer

HEARTBEAT = 5.0  # seconds
POLL = 1.0  # seconds between two looks at the queue
PREPARED_AT_ONCE = 4  # studies; each may load torch in a process of its own
NOT_ITS_FAULT = (SchemaError, StorageError, StoreCorrupt, StoreUnreachable, StudyBusy)
DELIVERY_TIMEOUT = 5.0  # seconds that MLflow gets at the end; the next service delivers the rest


Key = tuple[int, datetime | None]  # a study's id, and when it was submitted


class Leaving(Exception):
    """The service ends while it prepares a study."""


class Service:
    """Executes submitted studies until a signal stops it."""

    def __init__(
        self,
        engine_name: str,
        new_engine: Callable[[], Engine],
        home: Path,
        metrics: "MetricsServer | None" = None,
    ) -> None:
        self.engine_name, self.new_engine, self.home = engine_name, new_engine, home
        self.metrics = metrics
        self.holder = Holder.here()
        self.webhook, self.keep_days = webhook_address(), keep_days()
        self.scheduler = Scheduler()
        self.scheduler.survives_bad_studies = True
        self.preparing: dict[Key, Future[tuple[StudySpec, Hashes]]] = {}
        self.signals: list[int] = []
        self.woken = threading.Event()  # by a signal
        self.engine: Engine | None = None
        self.ticked = self.polled = time.monotonic()

    def serve(self) -> int:
        """Serve until a signal arrives. Return the exit code."""
        survive_broken_output()
        if self.engine_name == "local":
            self.new_engine()  # a wrong option is an error before anything is created
        make_home(self.home)
        self.store = open_store(default_url(self.home))
        with closing(self.store), on_signal(self._stop):
            if self._wait_for_lease():
                try:
                    with machine.claim(self.home, safe_url(self.store.url)):
                        self._run()
                finally:
                    self.store.release_service(self.holder)
        click.echo(f"stopped; studies go on with the next: {serve_command(self.home)}", err=True)
        return 128 + self.signals[0]

    def _stop(self, signal_number: int, _: object) -> None:
        """Stop at the next epoch ends. A second signal stops at once."""
        self.signals.append(signal_number)
        self.woken.set()
        if self.engine is not None:
            self.engine.stop()

    def _wait_for_lease(self) -> bool:
        """Become the Store's service, as soon as no other is. Return False after a signal."""
        is_standby = False
        while not self.signals:
            if self.store.acquire_service(self.holder, self.engine_name):
                return True
            service = self.store.service()
            if not is_standby and service is not None:
                click.echo(
                    f"standby: {service.holder} serves this home; this one waits to take over "
                    "(Ctrl-C leaves)",
                    err=True,
                )
                is_standby = True
            self.woken.wait(POLL)
        return False

    def _run(self) -> None:
        self.store.holder = self.holder
        with (
            Heartbeat(self.store, HEARTBEAT, self._renew_lease) as self.heartbeat,
            notifying(self.store, self.home, self.webhook, partial(click.echo, err=True)),
        ):
            self.engine = engine = self.new_engine()  # Ray's may take a while
            self.log = ServiceLog(self._source_of, engine.workers, quiet=False)
            relay = Relay(self.store.url, self.home, tracking_uri(self.home), None)
            relay.start()
            if self.keep_days:
                Retention(self.store.url, self.home, self.keep_days, self.log.print).start()
            self._renew_lease(self.store)
            self.log.print(f"serving with {engine}")
            if self.metrics:
                self.metrics.activate()
                self.log.print(f"metrics for Prometheus are at {self.metrics.url}")
            self.pool = ThreadPoolExecutor(PREPARED_AT_ONCE, "prepare")
            try:
                with acknowledge_signals(self.log):
                    self._execute(engine)
            finally:
                self.woken.set()  # ends what is being prepared
                self.pool.shutdown(cancel_futures=True)
            relay.finish(DELIVERY_TIMEOUT)

    def _execute(self, engine: Engine) -> None:
        while not self.signals:
            self._tick()
            if self.scheduler.has_work:
                engine.run(self.scheduler, self.store, self.home, self.log, self._tick)
            else:
                self.woken.wait(POLL)

    def _source_of(self, run: RunRow) -> Planner:
        return self.scheduler.study_of(run).planner

    def _renew_lease(self, store: Store) -> None:
        nodes = self.engine.nodes() if self.engine else []
        elapsed = {s.id: s.elapsed for s in list(self.scheduler.studies.values())}
        store.service_heartbeat(self.holder, str(self.engine or "starting"), nodes, elapsed)

    def _tick(self) -> None:
        self.heartbeat.check()
        now = time.monotonic()
        self.scheduler.spend(now - self.ticked)
        self.ticked = now
        if now - self.polled >= POLL:
            self.polled = now
            self._poll(self.store.submissions())

    def _poll(self, submissions: list[Submission]) -> None:
        """Follow the queue: take up new studies, let go of stopped and finished ones."""
        rows = {row.id: row for row in submissions}
        waiting = {_key(row) for row in submissions}
        self.preparing = {key: self.preparing[key] for key in self.preparing.keys() & waiting}
        active = dict(self.scheduler.studies)
        for study in active.values():
            self._follow(study, rows.get(study.id))
        for row in submissions:
            if row.id not in active and not self.signals:  # a row of one just let go is outdated
                self._consider(row)

    def _follow(self, study: ActiveStudy, row: Submission | None) -> None:
        """Do what the queue says about a study that is being executed."""
        if row is None:  # somebody deleted it
            study.is_leaving = True
        else:
            self.scheduler.set_priority(study, row.priority)
            was_submitted_again = row.submitted_at != study.submitted_at
            is_stopping = row.state == StudyState.STOPPING
            study.is_leaving = is_stopping or was_submitted_again or study.problem is not None
        if study.account.in_use:
            check_standstill(self.store, study)
        elif study.is_idle and not self.signals:
            self.scheduler.remove(study)
            if row is not None:
                self._let_go(study, row)

    def _let_go(self, study: ActiveStudy, row: Submission) -> None:
        """Record the end of a study none of whose runs executes. It may be taken up again."""
        if study.problem is not None:
            self._end(study.id, study.name, study.submitted_at, StudyState.FAILED, study.problem)
        elif row.state == StudyState.STOPPING:
            if self.store.confirm_stop(study.id) == StudyState.STOPPED:
                self.store.release(study.id, self.holder)
                self.log.print(f"{study.name}: stopped")
        elif not study.is_leaving:
            self.store.announce_study(study.id)
            remove_forks(self.store, study.planner, self.home)
            self._end(study.id, study.name, study.submitted_at, StudyState.ENDED)

    def _end(
        self,
        study_id: int,
        name: str,
        submitted_at: datetime | None,
        state: StudyState,
        problem: str | None = None,
    ) -> None:
        if self.store.end(study_id, state, submitted_at, problem) == state:
            self.log.print(f"{name}: {state}" + (f": {problem}" if problem else ""))
        self.store.release(study_id, self.holder)

    def _consider(self, row: Submission) -> None:
        """Prepare a study that waits, then take it up."""
        is_ours = row.holder_token == self.holder.token  # inherited, or submitted again
        if row.state == StudyState.STOPPING and is_ours:
            if self.store.confirm_stop(row.id) == StudyState.STOPPED:
                self.store.release(row.id, self.holder)
        elif row.state == StudyState.QUEUED or row.state == StudyState.RUNNING and is_ours:
            prepared = self.preparing.get(_key(row))
            if prepared is None:
                study = self.store.study(row.name)
                if study is not None and study.submitted_at == row.submitted_at:
                    self.preparing[_key(row)] = self.pool.submit(self._prepare, study.spec)
            elif prepared.done():
                del self.preparing[_key(row)]
                self._take_up(row, prepared)

    def _prepare(self, stored: dict[str, Any]) -> tuple[StudySpec, Hashes]:
        """Read a study as it was submitted, check what it brings along, and download its data.

        Runs in a thread, because it can take minutes.
        """

        def tick() -> None:
            if self.woken.is_set():
                raise Leaving

        spec = read_stored(stored)
        hashes = preflight.check(spec, self.home, tick)
        fetch_data(spec, self.home, tick)
        return spec, hashes

    def _take_up(self, row: Submission, prepared: Future[tuple[StudySpec, Hashes]]) -> None:
        """Let a prepared study take part, or record why it cannot."""
        assert self.engine is not None
        if not self.store.take_up(row):
            return  # it runs in somebody's terminal, or was stopped, changed or deleted meanwhile
        try:
            spec, hashes = prepared.result()
            check_fits(spec, self.engine)
            check_unchanged(self.store, row.id, spec, hashes)
            planner = Planner(self.store, row.id, spec)
        except NOT_ITS_FAULT:
            raise
        except Exception as error:  # also of a plug-in that ends the process that tries it
            self._end(row.id, row.name, row.submitted_at, StudyState.FAILED, _problem(error))
            return
        study = self.store.study(row.name)
        elapsed = study.elapsed if study else 0.0
        active = ActiveStudy(planner, row.owner or "", row.priority, elapsed)
        active.submitted_at = row.submitted_at
        active.spend(0.0)  # a spent time budget adds no more trials
        self.scheduler.add(active)
        self.log.print(f"{row.name}: started")


def _key(row: Submission) -> Key:
    return row.id, row.submitted_at


def _problem(error: Exception) -> str:
    is_ours = isinstance(error, RessmoothError)
    return str(error) if is_ours else f"{type(error).__name__}: {error}"
