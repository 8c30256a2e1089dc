"""Execute runs on one machine, in worker processes that execute run after run.

A worker reports every recorded epoch and waits for the launcher's decision, so pruning and
stopping happen at epoch ends. Workers die with their launcher. A worker that dies is replaced, and
its run resumes from its last checkpoint.
"""

import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ressmooth.engines import MAX_STRIKES, Decision, Stoppable, worker_died
from ressmooth.engines.placement import Gpus, gpus_per_run, slots, visible_gpus
from ressmooth.engines.worker import work
from ressmooth.errors import ConfigError, DeviceError, RessmoothError
from ressmooth.formatting import count
from ressmooth.spec import Resources
from ressmooth.store import Holder, RunRow, State, Store
from ressmooth.training.gpu import gpus

if TYPE_CHECKING:
    from ressmooth.engines.progress import EventLog
    from ressmooth.engines.scheduler import Scheduler

TICK = 0.5  # seconds
MAX_STARTS = 10
MAX_TMPDIR = 107 - len("/pymp-12345678/listener-12345678")  # characters; Linux allows 107 in all


class LocalEngine(Stoppable):
    """Executes runs on this machine's cores or GPUs."""

    def __init__(self, resources: Resources, workers: int | None) -> None:
        check_socket_paths()
        self.slots = slots(workers, resources)
        self.workers = len(self.slots)
        self.gpus: float = len(visible_gpus())
        self.gpus_per_run = gpus_per_run(resources, self.gpus)

    def __str__(self) -> str:
        gpus = {gpu for slot in self.slots for gpu in slot}
        place = f"on {count(len(gpus), 'GPU')}" if gpus else "on this machine's CPU"
        return f"{count(self.workers, 'worker')} {place}"

    def nodes(self) -> list[dict[str, Any]]:
        here = {"node": socket.gethostname(), "workers": self.workers}
        return [{**here, "gpus": [asdict(gpu) for gpu in gpus()]}]

    def run(
        self,
        scheduler: "Scheduler",
        store: Store,
        home: Path,
        view: "EventLog",
        tick: Callable[[], None],
    ) -> None:
        self.scheduler, self.store, self.home, self.view = scheduler, store, home, view
        self.pending: RunRow | None = None  # waits until a GPU is free of other runs
        view.print(f"starting {count(self.workers, 'worker')}")
        _start_fork_server()
        self.pool = [self._worker(*slot) for slot in enumerate(self.slots)]
        # runs whose worker died before an epoch was recorded, by place
        self.strikes: dict[int, set[int]] = {worker.number: set() for worker in self.pool}
        try:
            while self._start_runs():
                ready = wait([worker.connection for worker in self.pool], timeout=TICK)
                tick()  # first: after a freeze it notices a lost lease before anything is recorded
                for worker in list(self.pool):
                    if worker.connection in ready:
                        self._receive(worker)
                if self.grace_is_over:
                    break
        finally:
            self._shut_down()
        # not after an error: another launcher may have taken over the study
        for worker in self.pool:
            if worker.run is not None:
                self.store.release_run(worker.run.next_attempt)
                self.scheduler.released(worker.run)

    def _worker(self, number: int, gpus: Gpus) -> "Worker":
        share = min(1.0, self.gpus_per_run) if gpus else 1.0
        return Worker(number, gpus, self.store.url, self.home, self.store.holder, share)

    def _start_runs(self) -> bool:
        """Give idle workers a run. Return whether any worker is busy."""
        for worker in self.pool:
            if worker.run is None and not self.is_stopping:
                self._start_run(worker)
        return any(worker.run for worker in self.pool)

    def _start_run(self, worker: "Worker") -> None:
        """Give a worker the next run, unless that run or a neighbour needs the GPU to itself."""
        neighbours = [other.run for other in self.pool if other.run and other.shares_gpu(worker)]
        if any(run.needs_whole_gpu for run in neighbours):
            return
        run = self.pending or self.scheduler.next()
        is_crowded = run is not None and run.needs_whole_gpu and bool(neighbours)
        self.pending = (
            run if run and (is_crowded or self._should_go_elsewhere(run, worker)) else None
        )
        if run is not None and run is not self.pending:
            worker.start(run)
            self.view.started(worker.number, run)

    def _should_go_elsewhere(self, run: RunRow, worker: "Worker") -> bool:
        """Tell whether a run lost a worker here at once, and there is a place where it has not."""
        others = (self.strikes[other.number] for other in self.pool)
        return run.id in self.strikes[worker.number] and any(run.id not in each for each in others)

    def _receive(self, worker: "Worker") -> None:
        try:
            kind, *content = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        run = worker.run
        if kind == "error":
            self._failed(worker, content[0])
            return
        if kind == "dying":
            worker.cause = content[0]
            return
        if kind == "ready" or run is None:
            return
        if kind == "epoch":
            epoch, best = content
            if epoch.epoch > run.last_epoch:  # a resumed run reports its last epoch again
                worker.has_trained = True
                self.strikes[worker.number].clear()
            self.view.epoch(worker.number, epoch, best)
            worker.send(self._decide(run, epoch.epoch, best))
        else:
            worker.run = None
            ended = content[0] != State.WAITING
            (self.scheduler.ended if ended else self.scheduler.released)(run)
            self.view.ended(worker.number, self.store.run(run.id))

    def _failed(self, worker: "Worker", error: RessmoothError) -> None:
        """Handle an error that is not the run's fault. The worker ends after it."""
        if worker.run is None:
            raise error
        run, worker.run = worker.run, None
        if isinstance(error, DeviceError):  # it costs the place, not the study
            self.store.release_run(run.next_attempt)
            self.scheduler.released(run)
            self.view.lost(worker.number, str(error))
            self._retire(worker, str(error))
            return
        self.scheduler.failed(run, error)
        self.store.release_run(run.next_attempt)
        self.view.lost(worker.number, str(error))
        worker.send(None)  # it waits for an answer, then ends
        self._replace(worker)

    def _decide(self, run: RunRow, epoch: int, best: float | None) -> Decision:
        if self.is_stopping:
            return Decision.STOP
        return self.scheduler.decide(run, epoch, best)

    def _replace(self, worker: "Worker") -> None:
        """Replace a dead worker, and retry its run at most `retries` times."""
        ended = worker.join()
        reason = f"worker died: {worker.cause}" if worker.cause else ended
        worker.connection.close()
        if self.is_stopping:  # the signal that stops us may have reached the worker too
            self.pool.remove(worker)
            if worker.run is not None:
                self.store.release_run(worker.run.next_attempt)
                self.scheduler.released(worker.run)
            return
        if worker.run is not None:
            message = worker_died(self.scheduler, self.store, self.home, worker.run, reason)
            self.view.lost(worker.number, message)
            if worker.gpus and not worker.has_trained:  # a CPU is not broken by what a run does
                self.strikes[worker.number].add(worker.run.id)
        if len(self.strikes[worker.number]) >= MAX_STRIKES:
            self._retire(worker, f"it lost the workers of {MAX_STRIKES} runs at once ({reason})")
        else:
            self.pool[self.pool.index(worker)] = self._worker(worker.number, worker.gpus)

    def _retire(self, worker: "Worker", reason: str) -> None:
        """Use a worker's GPU no longer."""
        self.pool.remove(worker)
        worker.connection.close()
        text = f"GPU {', '.join(worker.gpus)} gets no more runs: {reason}"
        if not self.pool:
            raise DeviceError(f"{text}; no other place is left")
        self.view.print(text)

    def _shut_down(self) -> None:
        for worker in self.pool:
            worker.connection.close()  # an idle worker ends by itself
            if worker.run is not None:
                worker.process.kill()
            worker.process.join(timeout=5)


class Worker:
    """The launcher's side of a worker process. It executes at most one run at a time."""

    def __init__(
        self,
        number: int,
        gpus: Gpus,
        url: str,
        home: Path,
        holder: Holder | None,
        gpu_share: float,
    ) -> None:
        self.number, self.gpus = number, gpus
        self.run: RunRow | None = None
        self.has_trained = False  # an epoch was recorded
        self.cause: str | None = None  # of its death
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(
            target=work, args=(os.getpid(), theirs, gpus, url, home, holder, gpu_share)
        )
        _start(self.process)
        theirs.close()

    def start(self, run: RunRow) -> None:
        self.run = run
        self.send(run.id)

    def shares_gpu(self, other: "Worker") -> bool:
        return other is not self and not {*self.gpus}.isdisjoint(other.gpus)

    def send(self, message: object) -> None:
        with suppress(OSError):  # a dead worker is noticed at the next receive
            self.connection.send(message)

    def join(self) -> str:
        """Wait for the process to end. Return how it ended."""
        self.process.join()
        code = self.process.exitcode or 0
        if code >= 0:
            return f"worker ended with exit code {code}"
        memory = ", possibly out of memory" if code == -signal.SIGKILL else ""
        return f"worker killed by signal {-code}{memory}"


def check_socket_paths() -> None:
    """Raise a ConfigError if sockets in the temporary directory would have too long paths."""
    directory = tempfile.gettempdir()
    if len(os.fsencode(directory)) > MAX_TMPDIR:
        raise ConfigError(
            f"TMPDIR = {directory!r}: at most {MAX_TMPDIR} characters, because workers are reached "
            "by sockets in it; use a shorter path, as in: TMPDIR=/tmp"
        )


def _start_fork_server() -> None:
    """Start the process that forks workers. It loads torch once for all of them.

    A Ctrl-C reaches it too. It ignores the signal only after that, so it inherits a mask. It
    inherits that SIGHUP is ignored.
    """
    resource_tracker.ensure_running()  # or the fork server would start it, which resets the mask
    multiprocessing.get_context("forkserver").set_forkserver_preload(["ressmooth.engines.runner"])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    on_hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGHUP, on_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _start(process: ForkServerProcess) -> None:
    """Start a worker, and retry if the fork server was killed: Python then starts another."""
    for _ in range(MAX_STARTS):
        try:
            return process.start()
        except (OSError, EOFError) as error:
            reason = repr(error)
            time.sleep(TICK)
    raise RessmoothError(
        f"No worker could be started in {MAX_STARTS} tries ({reason}): the process that forks "
        "them died each time. Is there enough memory?"
    )
