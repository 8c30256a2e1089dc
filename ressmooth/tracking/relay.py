"""From the Store's outbox to MLflow: beside the training, never in its way."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ressmooth.errors import StorageError, StoreUnreachable, TrackingError
from ressmooth.store import OutboxRow, Store
from ressmooth.tracking.mirror import Mirror, Refused, redact, subjects

ROWS = 200  # of the outbox, taken and ticked off at once
PERIOD = 1.0  # seconds between two looks at the outbox, at least
LONGEST_PERIOD = 10.0
SHARE = 0.02  # of a core, which delivering may take from the training
LONGEST_BACKOFF = 60.0
LAST_TRIES = 2  # once the study is over


@dataclass(frozen=True)
class Delivery:
    sent: int  # rows of the outbox
    refusals: list[str]  # a reason for each row that was parked


def deliver_pending(store: Store, mirror: Mirror, study_id: int | None) -> Delivery:
    """Deliver the oldest rows and park what MLflow refuses; TrackingError if it does not answer."""
    sent: list[int] = []
    refusals: list[str] = []
    try:
        for group in subjects(store.pending(study_id, ROWS)):
            try:
                _deliver(store, mirror, group)
                sent += [row.id for row in group]
            except (TrackingError, StoreUnreachable, StorageError):
                raise
            except Exception as error:  # refused, or a mistake of ours that would come again
                reason = redact(f"{type(error).__name__}: {error}", mirror.uri)
                for row in group:
                    store.reject(row.id, reason)
                    refusals.append(reason)
    finally:
        store.mark_sent(sent)
    return Delivery(len(sent), refusals)


def _deliver(store: Store, mirror: Mirror, group: list[OutboxRow]) -> None:
    try:
        mirror.deliver(store, group)
    except Refused:
        mirror.studies()  # something that refuses everything is not an MLflow that works
        mirror.deliver(store, group)  # somebody may have deleted the run: it is looked for anew


class Relay(threading.Thread):
    """A launcher's delivery: a thread with its own connection to the Store, which never raises."""

    def __init__(self, url: str, home: Path, uri: str, study_id: int) -> None:
        super().__init__(name="relay", daemon=True)
        self.url, self.study_id = url, study_id
        self.mirror = Mirror(uri, home)
        self.store: Store | None = None
        self.refused = 0  # rows
        self.problem: str | None = None  # why some are not delivered
        self.finishing = threading.Event()

    def finish(self, seconds: float) -> int:
        """Deliver what is left, at most so long; the number of rows that were not delivered."""
        self.finishing.set()
        self.join(seconds)
        if self.is_alive() and self.problem is None:
            self.problem = f"MLflow took longer than {seconds:g} s"
        store = Store(self.url)
        left = store.count_pending(self.study_id) + self.refused
        store.close()
        return left

    def run(self) -> None:
        failures = 0
        while True:
            last = self.finishing.is_set()  # if so, nothing is added any more
            began, rows = time.thread_time(), 0
            try:
                rows = self._deliver()
                failures = 0
            except Exception as error:
                failures += 1
                self.problem = redact(str(error), self.mirror.uri)
            if last and (failures >= LAST_TRIES or not failures and not rows):
                break
            self._pause(last, failures, rows, time.thread_time() - began)
        if self.store is not None:
            self.store.close()

    def _pause(self, last: bool, failures: int, rows: int, used: float) -> None:
        """`used` are the seconds of computing that the round took."""
        if last:
            time.sleep(PERIOD if failures else 0.0)
        elif failures:
            self.finishing.wait(min(2.0**failures, LONGEST_BACKOFF))
        elif rows < ROWS:
            self.finishing.wait(min(max(used / SHARE, PERIOD), LONGEST_PERIOD))

    def _deliver(self) -> int:
        """One round; how many rows were dealt with."""
        self.store = self.store or Store(self.url)
        done = deliver_pending(self.store, self.mirror, self.study_id)
        self.refused += len(done.refusals)
        if done.refusals:
            self.problem = done.refusals[-1]
        elif not self.refused:
            self.problem = None
        return done.sent + len(done.refusals)


def sync(store: Store, home: Path, uri: str) -> int:
    """Deliver what is pending of all studies, now; the number of rows that were sent."""
    mirror = Mirror(uri, home)
    total = 0
    refusals: list[str] = []
    while store.count_pending(None):
        done = deliver_pending(store, mirror, None)
        total += done.sent
        refusals += done.refusals
    if refusals:
        raise TrackingError(
            f"{total} events delivered; MLflow refused {len(refusals)}, which are not sent again: "
            f"{refusals[-1]}"
        )
    return total
