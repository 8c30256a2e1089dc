"""Deliver the Store's outbox to MLflow without slowing down the training."""

import threading
import time
from contextlib import closing
from pathlib import Path

from ressmooth.errors import StorageError, StoreUnreachable, TrackingError
from ressmooth.paths import command
from ressmooth.store import OutboxRow, Store
from ressmooth.tracking.mirror import Mirror, Rejected, group_by_subject
from ressmooth.tracking.server import redact

BATCH_ROWS = 200  # outbox rows delivered and marked at once
MIN_PERIOD_SECONDS = 1.0  # between two batches
MAX_PERIOD_SECONDS = 10.0
MAX_CPU_SHARE = 0.02  # of a core, so that delivery leaves the cores to the training
MAX_BACKOFF_SECONDS = 60.0
FINAL_TRIES = 2  # after the study has ended


def deliver_pending(store: Store, mirror: Mirror, study_id: int | None) -> tuple[int, list[str]]:
    """Deliver the oldest rows of a study, or of all studies, and mark them sent or rejected.

    Return the number of rows sent, and the reason for each rejected row. Raise TrackingError if
    MLflow does not answer, and StorageError, after all other rows, if files cannot be written here.
    """
    sent: list[int] = []
    rejections: list[str] = []
    problem: OSError | None = None
    try:
        for group in group_by_subject(store.pending(study_id, BATCH_ROWS)):
            try:
                _deliver(store, mirror, group)
                sent += [row.id for row in group]
            except (TrackingError, StoreUnreachable, StorageError):
                raise
            except OSError as error:  # as of a full temporary directory: a later try may help
                problem = error
            except Exception as error:  # rejected, or a bug of ours that a retry would not fix
                reason = redact(f"{type(error).__name__}: {error}", mirror.uri)
                for row in group:
                    store.reject(row.id, reason)
                    rejections.append(reason)
    finally:
        store.mark_sent(sent)
    if problem is not None:
        raise StorageError(f"Cannot write files for MLflow ({problem}).")
    return len(sent), rejections


def _deliver(store: Store, mirror: Mirror, group: list[OutboxRow]) -> None:
    try:
        mirror.deliver(store, group)
    except Rejected:
        mirror.studies()  # raises TrackingError if the server rejects every request
        mirror.deliver(store, group)  # finds or creates a run that somebody has deleted


class Relay(threading.Thread):
    """Delivers the outbox of a study, or of all. It has its own Store and never raises."""

    def __init__(self, url: str, home: Path, uri: str, study_id: int | None) -> None:
        super().__init__(name="relay", daemon=True)
        self.url, self.study_id = url, study_id
        self.mirror = Mirror(uri, home)
        self.store: Store | None = None
        self.rejected = 0  # rows
        self.problem: str | None = None  # why rows are not delivered
        self.finishing = threading.Event()

    def finish(self, timeout: float) -> int:
        """Deliver what is left within `timeout` seconds. Return the number of rows not delivered.

        Call this when the study adds no more rows.
        """
        self.finishing.set()
        self.join(timeout)
        if self.is_alive() and self.problem is None:
            self.problem = f"MLflow took longer than {timeout:g} s" if timeout else "stopped"
        with closing(Store(self.url)) as store:
            return store.count_pending(self.study_id) + self.rejected

    def run(self) -> None:
        failures = 0
        while True:
            finishing = self.finishing.is_set()
            began, rows = time.thread_time(), 0
            try:
                rows = self._deliver()
                failures = 0
            except Exception as error:
                failures += 1
                self.problem = redact(str(error), self.mirror.uri)
            if finishing and (failures >= FINAL_TRIES or not failures and not rows):
                break
            self._pause(finishing, failures, rows, time.thread_time() - began)
        if self.store is not None:
            self.store.close()

    def _pause(self, finishing: bool, failures: int, rows: int, cpu_seconds: float) -> None:
        """Wait for the next batch. `cpu_seconds` is what the last one took."""
        if finishing:
            time.sleep(MIN_PERIOD_SECONDS if failures else 0.0)
        elif failures:
            self.finishing.wait(min(2.0**failures, MAX_BACKOFF_SECONDS))
        elif rows < BATCH_ROWS:
            period = max(cpu_seconds / MAX_CPU_SHARE, MIN_PERIOD_SECONDS)
            self.finishing.wait(min(period, MAX_PERIOD_SECONDS))

    def _deliver(self) -> int:
        """Deliver one batch. Return its number of rows."""
        self.store = self.store or Store(self.url)
        sent, rejections = deliver_pending(self.store, self.mirror, self.study_id)
        self.rejected += len(rejections)
        if rejections:
            self.problem = rejections[-1]
        elif not self.rejected:
            self.problem = None
        return sent + len(rejections)


def sync(store: Store, home: Path, uri: str) -> int:
    """Deliver the pending rows of all studies. Return the number of rows sent."""
    mirror = Mirror(uri, home)
    sent = 0
    rejections: list[str] = []
    while store.count_pending(None):
        batch, rejected = deliver_pending(store, mirror, None)
        sent += batch
        rejections += rejected
    if rejections:
        raise TrackingError(
            f"{sent} events delivered; MLflow rejected {len(rejections)}: {rejections[-1]}\n"
            f"Try these again with: {command(home, 'sync', '--retry-rejected')}"
        )
    return sent
