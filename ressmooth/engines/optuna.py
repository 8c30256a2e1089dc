"""Studies on one machine: worker processes that load torch once and execute run after run.

A worker reports every recorded epoch and waits for the launcher's word, so pruning and stopping
happen at epoch ends. Workers die with their launcher; a worker that dies is replaced, and its run
goes on from its last checkpoint.
"""

import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ressmooth.engines import Grace, lost
from ressmooth.errors import RessmoothError
from ressmooth.phrases import count
from ressmooth.placement import Slot, slots, visible_gpus

if TYPE_CHECKING:
    from ressmooth.dispatch import Dispatcher
    from ressmooth.spec import Resources
    from ressmooth.store import RunRow
    from ressmooth.view import View

TICK = 0.5  # seconds
STARTS = 10


class Machine:
    """Where the workers are: this machine's cores or GPUs."""

    def __init__(self, resources: "Resources", workers: int | None) -> None:
        self.slots = slots(
            workers, gpus_per_run=resources.gpus_per_run, cpus_per_run=resources.cpus_per_run
        )
        self.workers = len(self.slots)
        self.idle_gpus = 0 if resources.gpus_per_run else len(visible_gpus())

    def __str__(self) -> str:
        gpus = {gpu for slot in self.slots for gpu in slot.gpus}
        where = f"on {count(len(gpus), 'GPU')}" if gpus else "on this machine's CPU"
        return f"{count(self.workers, 'worker')} {where}"

    def engine(self, dispatcher: "Dispatcher", home: Path, view: "View") -> "Engine":
        return Engine(dispatcher, self.slots, home, view)


class Worker:
    """A process in a slot; it holds at most one run."""

    def __init__(self, slot: Slot, url: str, home: Path) -> None:
        self.slot = slot
        self.run: RunRow | None = None
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ressmooth.run"])  # torch is loaded once for all workers
        self.connection, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(
            target=work, args=(os.getpid(), theirs, slot.gpus, url, home), daemon=True
        )
        _start(self.process)
        theirs.close()

    def start(self, run: "RunRow") -> None:
        self.run = run
        self.tell(run.id)

    def tell(self, message: object) -> None:
        with suppress(OSError):  # a dead worker is noticed when it is listened to
            self.connection.send(message)

    def end(self) -> str:
        """Wait for the process to be gone; how it ended."""
        self.process.join()
        code = self.process.exitcode or 0
        if code >= 0:
            return f"worker ended with exit code {code}"
        memory = ", possibly out of memory" if code == -signal.SIGKILL else ""
        return f"worker killed by signal {-code}{memory}"


def _start(process: ForkServerProcess) -> None:
    """Tried again if the fork server was killed, as another one is started then."""
    for _ in range(STARTS):
        try:
            return process.start()
        except (OSError, EOFError) as error:
            reason = repr(error)
            time.sleep(TICK)
    raise RessmoothError(
        f"No worker could be started in {STARTS} tries ({reason}): the process that forks them "
        "died each time. Is there enough memory?"
    )


def work(
    launcher: int, connection: Connection, gpus: tuple[str, ...], url: str, home: Path
) -> None:
    """The life of a worker: execute the runs that come over the connection."""
    _die_with(launcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # none: this run has the CPU
    from ressmooth.run import execute
    from ressmooth.store import Store

    def ask(message: object) -> Any:
        """Say something and wait for the answer; the end of the launcher is ours too."""
        try:
            connection.send(message)
            return connection.recv()
        except (EOFError, OSError):
            raise SystemExit from None

    def hear(epoch: Any, best: float) -> Any:
        return ask(("epoch", epoch, best))

    try:
        store = Store(url)
        run_id = ask(("ready",))
        while True:
            run_id = ask(("ended", execute(store, run_id, home, hear)))
    except RessmoothError as error:
        ask(("error", error))


def _die_with(launcher: int) -> None:
    """Be killed when the launcher is gone, whatever we are doing then.

    The fork server is no help: it lives as long as any of its children does.
    """
    try:
        gone = os.pidfd_open(launcher)
    except ProcessLookupError:
        os._exit(1)

    def watch() -> None:
        select.select([gone], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


class Engine:
    """Runs a study's dispatcher on a set of slots until nothing is left, or until stopped."""

    def __init__(
        self, dispatcher: "Dispatcher", slots: list[Slot], home: Path, view: "View"
    ) -> None:
        self.dispatcher, self.home, self.view = dispatcher, home, view
        self.store = dispatcher.store
        self.workers = [Worker(slot, self.store.url, home) for slot in slots]
        self.grace = Grace()

    def run(self, tick: Callable[[], None]) -> None:
        """`tick` is called about twice a second: heartbeat, time budget."""
        try:
            while self._busy_or_more():
                ready = wait([w.connection for w in self.workers], timeout=TICK)
                for worker in list(self.workers):
                    if worker.connection in ready:
                        self._listen(worker)
                tick()
                if self.grace.over:
                    break
        finally:
            self._shut_down()
        # not after an error: another launcher may have taken the study over
        for worker in self.workers:
            if worker.run is not None:
                self.store.release_run(worker.run.id)

    def stop(self) -> None:
        """End every run at its next epoch; a second call does not wait for that."""
        self.grace.begin()

    def _busy_or_more(self) -> bool:
        if not self.grace.begun:
            for worker in self.workers:
                if worker.run is None and (run := self.dispatcher.next()) is not None:
                    worker.start(run)
                    self.view.started(worker.slot.number, run)
        return any(worker.run for worker in self.workers)

    def _listen(self, worker: Worker) -> None:
        try:
            kind, *content = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        run = worker.run
        if kind == "error":
            raise content[0]
        if kind == "ready" or run is None:
            return
        if kind == "epoch":
            epoch, best = content
            self.view.epoch(worker.slot.number, run, epoch, best)
            worker.tell(self._verdict(run, epoch.epoch, best))
        else:
            worker.run = None
            if content[0] != "waiting":
                self.dispatcher.ended(run)
            self.view.ended(worker.slot.number, self.store.run(run.id))

    def _verdict(self, run: "RunRow", epoch: int, best: float) -> str:
        if self.grace.begun:
            return "stop"
        return "prune" if self.dispatcher.should_prune(run, epoch, best) else "go on"

    def _replace(self, worker: Worker) -> None:
        """The process died: its run is tried again, at most `retries` times."""
        reason = worker.end()
        worker.connection.close()
        if self.grace.begun:  # the signal that stops us may reach it as well
            self.workers.remove(worker)
            if worker.run is not None:
                self.store.release_run(worker.run.id)
            return
        self.workers[self.workers.index(worker)] = Worker(worker.slot, self.store.url, self.home)
        if (run := worker.run) is None:
            return
        told = lost(self.dispatcher, self.home, run, reason)
        self.view.lost(worker.slot.number, run, told)

    def _shut_down(self) -> None:
        for worker in self.workers:
            worker.connection.close()  # an idle worker ends by itself
            if worker.run is not None:
                worker.process.kill()
            worker.process.join(timeout=5)
