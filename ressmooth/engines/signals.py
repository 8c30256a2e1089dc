"""Stop at epoch ends on Ctrl-C, SIGTERM, and SIGHUP when a terminal closes."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat

from ressmooth.engines import GRACE
from ressmooth.engines.progress import EventLog

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPING = f"stopping after this epoch, {GRACE:g} s at most; Ctrl-C again to stop now"
STOPPING_NOW = "stopping now"


class Stopped(BaseException):
    """A signal has arrived while nothing was training."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


def raise_stopped(signal_number: int, _: object) -> None:
    raise Stopped(signal_number)


@contextmanager
def on_signal(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Handle signals. SIGHUP stays ignored where it was, as under nohup."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [n for n in SIGNALS if n != signal.SIGHUP or before[n] != signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])


@contextmanager
def acknowledge_signals(
    view: EventLog, stop: Callable[[int], None] = lambda _: None
) -> Iterator[None]:
    """Show at once that a signal arrived, and call `stop` for each.

    A thread does it. A handler would have to wait until Ray's C++ code returns, where Python makes
    one call of two signals, and could not print, because the main thread may hold rich's lock.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def acknowledge() -> None:
        texts = chain([STOPPING], repeat(STOPPING_NOW))
        while number := os.read(reader, 1):
            if ord(number) in SIGNALS:
                stop(ord(number))
                view.notify(next(texts))
        os.close(reader)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=acknowledge, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # ends the thread
