"""The process of a worker of the local engine. It dies with its launcher."""

import os
import select
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ressmooth.engines.output import survive_broken_output
from ressmooth.engines.placement import Gpus
from ressmooth.errors import RessmoothError, first_line
from ressmooth.store import Holder, Store


def work(
    launcher: int,
    connection: Connection,
    gpus: Gpus,
    url: str,
    home: Path,
    holder: Holder | None,
    gpu_share: float,
) -> None:
    """Execute the runs whose ids arrive over the connection. Runs in the worker process."""
    die_with(launcher)
    survive_broken_output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # none: train on the CPU

    def ask(message: object) -> Any:
        """Send a message and return the answer. Exit if the launcher is gone."""
        try:
            connection.send(message)
            return connection.recv()
        except (EOFError, OSError):
            raise SystemExit from None

    def report(epoch: Any, best: float | None) -> Any:
        return ask(("epoch", epoch, best))

    try:
        from ressmooth.engines.runner import execute
    except (ImportError, OSError, MemoryError) as error:  # it is no run's fault
        ask(("error", RessmoothError(f"A worker cannot load torch: {error}")))
        return
    try:
        store = Store(url)
        store.holder = holder  # whose runs it claims
        run_id = ask(("ready",))
        while True:
            run_id = ask(("ended", execute(store, run_id, home, report, gpu_share)))
    except RessmoothError as error:
        ask(("error", error))
    except Exception as error:  # it has lost its GPU
        with suppress(OSError):
            connection.send(("dying", first_line(error)))
        raise


def die_with(launcher: int) -> None:
    """Kill this process as soon as the launcher is gone, whatever it is doing then.

    The fork server does not do that: it lives as long as any of its children.
    """
    try:
        gone = os.pidfd_open(launcher)
    except ProcessLookupError:
        os._exit(1)

    def watch() -> None:
        select.select([gone], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
