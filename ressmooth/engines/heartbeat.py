"""Renew a lease from a thread, so that nothing slow in the main thread lets it lapse."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Self

from ressmooth.errors import StudyBusy
from ressmooth.store import Store

LATE = 3  # periods without a renewal, after which the main thread asks for itself


class Heartbeat(threading.Thread):
    """Calls `beat` with a Store of its own, until it is left or the lease is lost."""

    def __init__(self, store: Store, period: float, beat: Callable[[Store], None]) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.store, self.period, self.beat = store, period, beat  # the period is in seconds
        self.leaving = threading.Event()
        self.lost: StudyBusy | None = None
        self.renewed = time.monotonic()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leaving.set()
        self.join(self.period)

    def check(self) -> None:
        """Raise StudyBusy if the lease is lost.

        Called by the main thread. If it was frozen, it wakes up before the thread has noticed.
        """
        if self.lost is None and time.monotonic() - self.renewed > LATE * self.period:
            self._renew(self.store)
        if self.lost is not None:
            raise self.lost

    def _renew(self, store: Store) -> None:
        began = time.monotonic()
        try:
            self.beat(store)
            self.renewed = began
        except StudyBusy as error:
            self.lost = error

    def run(self) -> None:
        while self.lost is None and not self.leaving.wait(self.period):
            try:
                with closing(Store(self.store.url)) as store:
                    self._renew(store)
            except Exception:
                pass  # the main thread meets the same error soon, and knows what to do
