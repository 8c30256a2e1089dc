"""Do work that needs torch in a process of its own, so that the launcher never loads torch."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ressmooth.engines.output import survive_broken_output
from ressmooth.engines.worker import die_with
from ressmooth.errors import RessmoothError

PERIOD = 0.2  # seconds between two calls of `tick`

T = TypeVar("T")


class ChildDied(RessmoothError):
    """The process has ended without a result: it was killed, or called os._exit."""


def call_in_child(work: Callable[..., T], *args: Any, tick: Callable[[], None]) -> T:
    """Return what `work` returns in a child process, or raise its RessmoothError."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (os.getpid(), sender, work, args)
    child = context.Process(target=_call, args=arguments, daemon=True)
    child.start()
    sender.close()
    try:
        while not receiver.poll(PERIOD):
            tick()
        result = receiver.recv()
    except EOFError:
        child.join()
        raise ChildDied(f"The process ended with exit code {child.exitcode}.") from None
    finally:
        child.kill()
    if isinstance(result, RessmoothError):
        raise result
    return result  # type: ignore[no-any-return]


def _call(launcher: int, sender: Connection, work: Callable[..., Any], args: Any) -> None:
    die_with(launcher)
    survive_broken_output()
    for number in (signal.SIGINT, signal.SIGHUP):  # the launcher handles Ctrl-C
        signal.signal(number, signal.SIG_IGN)
    try:
        sender.send(work(*args))
    except RessmoothError as error:
        sender.send(error)
