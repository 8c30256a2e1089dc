"""Execute runs on a cluster: Ray Tune places those that the scheduler chooses.

A Ray trial is one attempt of a run. Tune's own search, retries, checkpoints and restore are not
used. The Store knows what is done, and a run's checkpoints are in the home that all nodes share, so
either engine can resume the other's study.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from ressmooth import paths
from ressmooth.build import build_resource
from ressmooth.engines import MAX_STRIKES, Decision, Stoppable, worker_died
from ressmooth.engines.ray_cluster import RayCluster
from ressmooth.engines.ray_gpus import GpuRecord, Kept, Place, this_place
from ressmooth.engines.ray_tune import (
    NODE_LOST,
    EventCallback,
    LeaveTune,
    PlannerScheduler,
    PlannerSearcher,
)
from ressmooth.errors import ConfigError, DeviceError, RessmoothError, first_line
from ressmooth.formatting import count
from ressmooth.spec import Resources
from ressmooth.store import Holder, RunRow, State, Store

if TYPE_CHECKING:
    from ressmooth.engines.progress import EventLog
    from ressmooth.engines.runner import Recorded
    from ressmooth.engines.scheduler import ActiveStudy, Scheduler

MAX_TRIALS = 1000  # of one call of Tune
SHARE = 0.0001  # of the resource that marks nodes with the same build; Ray's smallest amount
UNSEEN = "worker died: DeviceError: "  # torch cannot use the GPU
REFRESH = 10.0  # seconds between two questions about the cluster's nodes


class RayEngine(Stoppable):
    """Executes runs on a Ray cluster. Tune calls the methods that its parts forward to."""

    def __init__(self, resources: Resources, workers: int | None, url: str) -> None:
        self.cluster = RayCluster(resources, workers, url)
        self.worker = Worker  # the benchmark replaces it
        self.record = GpuRecord()
        self.running: dict[str, tuple[int, RunRow]] = {}  # Ray's trial id -> row in the view, run
        self.refreshed = time.monotonic()

    def __str__(self) -> str:
        return f"{count(self.workers, 'worker')} {self.cluster.description}"

    @property
    def workers(self) -> int:
        return self.cluster.workers

    @property
    def gpus(self) -> float:
        return self.cluster.gpus

    @property
    def gpus_per_run(self) -> float:
        return self.cluster.gpus_per_run

    def nodes(self) -> list[dict[str, Any]]:
        return self.cluster.nodes

    def run(
        self,
        scheduler: "Scheduler",
        store: Store,
        home: Path,
        view: "EventLog",
        tick: Callable[[], None],
    ) -> None:
        self.scheduler, self.store, self.home = scheduler, store, home
        self.view, self.tick = view, tick
        here = f"Ray with {count(self.workers, 'worker')}"
        view.print(f"starting {here if self.cluster.is_local else self}")
        if not ray.is_initialized():
            self.cluster.connect()
        try:
            # Ray prints about lost workers, and so does the view
            with open(os.devnull, "w") as devnull, redirect_stdout(devnull):
                self._fit()
        except LeaveTune as leave:
            if leave.error is not None:
                raise leave.error from None
        finally:
            _shut_down()  # workers end with their launcher
        # not after an error: another launcher may have taken over the study
        for _, run in self.running.values():
            self._release(run)
        self.running.clear()

    def _fit(self) -> None:
        """Let Tune execute runs. Tune keeps every trial in memory, so it starts anew at times."""
        while True:
            self.started = 0
            with tempfile.TemporaryDirectory() as scratch:
                self._tuner(scratch).fit()
            if self.is_stopping or not self.scheduler.has_work:
                return

    def _tuner(self, scratch: str) -> tune.Tuner:
        store, share = self.store, min(1.0, self.gpus_per_run or 1.0)
        place = {"url": store.url, "home": self.home, "holder": store.holder, "gpu_share": share}
        worker = tune.with_parameters(self.worker, **place)
        needs = partial(_needs, self.cluster.resources.cpus_per_run, self.gpus_per_run)
        return tune.Tuner(
            tune.with_resources(worker, needs),
            tune_config=tune.TuneConfig(
                search_alg=PlannerSearcher(self),
                scheduler=PlannerScheduler(self),
                num_samples=-1,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="study",
                storage_path=scratch,
                callbacks=[EventCallback(self)],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=0),
                verbose=0,
            ),
        )

    def next_run(self, trial: str) -> Any:
        """Return the run that Ray executes as `trial`, None to wait, or FINISHED."""
        is_full = len(self.running) >= self.workers or self.started >= MAX_TRIALS
        run = None if is_full or self.is_stopping else self.scheduler.next()
        if run is None:
            return None if self.running else Searcher.FINISHED
        paths.make_directory(paths.run_directory(self.home, run.uid))
        taken = {row for row, _ in self.running.values()}
        row = next(number for number in range(len(taken) + 1) if number not in taken)
        self.running[trial] = row, run
        self.started += 1
        self.view.started(row, run)
        return {"run": run.id, "uid": run.uid, "whole_gpu": run.needs_whole_gpu}

    def decide(self, trial: str, epoch: Any, best: float | None) -> str:
        row, run = self.running[trial]
        self.view.epoch(row, epoch, best)
        if epoch.epoch > run.last_epoch and self.record.works(trial, run.id):
            self._count_places()
        if self.is_stopping:
            return TrialScheduler.STOP
        decision = self.scheduler.decide(run, epoch.epoch, best)
        if decision == Decision.PRUNE:
            self.scheduler.prune(run)
            paths.remove_checkpoints(paths.run_directory(self.home, run.uid))
        return TrialScheduler.STOP if decision != Decision.CONTINUE else TrialScheduler.CONTINUE

    def ended(self, trial: str, error: Exception | None) -> None:
        """Handle a run that finished, was stopped, or met an error that stops the study."""
        row, run = self.running.pop(trial)
        self.record.asked.pop(trial, None)
        if error is not None:
            self.scheduler.failed(run, error)
            self.store.release_run(run.next_attempt)
            self.view.lost(row, str(error))
            return
        if self.store.run(run.id).state.is_terminal:
            self._free_place_of(run)
            self.scheduler.ended(run)
        else:
            self._release(run)
        self.view.ended(row, self.store.run(run.id))

    def lost(self, trial: str, reason: str) -> None:
        """Handle a run whose worker or node died."""
        row, run = self.running.pop(trial)
        place = self.record.left(trial)
        if self.is_stopping:  # the signal that stops us may have reached the worker too
            self._release(run)
        elif place is not None and reason.startswith(UNSEEN):  # it costs the GPU, not the run
            cause = reason.removeprefix(UNSEEN)
            self._release(run)
            self.view.lost(row, cause)
            self._retire(place, cause)
        else:
            study = self.scheduler.study_of(run)
            self.view.lost(row, worker_died(self.scheduler, self.store, self.home, run, reason))
            after = self.store.run(run.id)
            if after.state.is_terminal:
                self._free_place_of(after)
            if place is not None and after.last_epoch == run.last_epoch and reason != NODE_LOST:
                self._suspect(place, after, study, reason)

    def _suspect(self, place: Place, run: RunRow, study: "ActiveStudy", reason: str) -> None:
        """Retire a GPU that loses its workers at once. Retry the first such run elsewhere."""
        if self.record.strike(place, run.id) >= MAX_STRIKES:
            self._retire(place, f"it lost the workers of {MAX_STRIKES} runs at once ({reason})")
        elif not run.state.is_terminal and self._count_places() > 1:
            self.record.kept[place.reservation] = Kept(place, run.id, study)
            self._count_places()

    def _retire(self, place: Place, reason: str) -> None:
        """Use a GPU no longer."""
        self.record.kept[place.reservation] = Kept(place)
        text = f"{place} gets no more runs: {reason}"
        if not self._count_places() and not (self.record.free_all() and self._count_places()):
            raise DeviceError(f"{text}; no other place is left")
        self.view.print(text)

    def _free_place_of(self, run: RunRow) -> None:
        """Use a place again that was kept until a run has shown that it trains elsewhere."""
        if self.record.ended(run.id):
            self._count_places()

    def _count_places(self) -> int:
        """Return how many runs fit on the nodes and GPUs that are in use."""
        self.cluster.unused = len(self.record.kept)
        return self.cluster.refresh()

    def _release(self, run: RunRow) -> None:
        self.store.release_run(run.next_attempt)
        self.scheduler.released(run)

    def on_start(self, trial: str, worker: Any) -> None:
        """Called before a worker gets its first or next run."""
        if self.gpus_per_run:
            self.record.started(trial, worker)

    def on_step(self) -> None:
        """Called between two of Tune's events."""
        self.tick()
        if self.grace_is_over:
            raise LeaveTune
        if time.monotonic() - self.refreshed > REFRESH:
            self.refreshed = time.monotonic()
            before = self.cluster.capacity
            self.record.clean(self.cluster.alive, self.scheduler.studies.values())
            if not self._count_places() and before:
                self.view.print(f"no node has room for a run, waiting: {self.cluster.description}")


class Worker(tune.Trainable):
    """A process on some node. It loads torch once and trains one run after another."""

    def setup(  # type: ignore[override]  # the rest comes by tune.with_parameters
        self, config: dict[str, Any], url: str, home: Path, holder: Holder | None, gpu_share: float
    ) -> None:
        if not ray.get_gpu_ids():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves GPUs visible to a CPU run
        self.url, self.home, self.holder, self.gpu_share = url, home, holder, gpu_share
        self.store: Store | None = None
        self.reset_config(config)

    def reset_config(self, config: dict[str, Any]) -> bool:
        self.run_id, self.uid = config["run"], config["uid"]
        self.steps: Generator[Recorded, Decision, State] | None = None
        return True

    def step(self) -> dict[str, Any]:
        """Train and record one epoch. Ray calls this again if the decision is to continue."""
        try:
            epoch, best = self.steps.send(Decision.CONTINUE) if self.steps else self._begin()
        except StopIteration:
            return {"done": True}
        except Exception as error:
            if not isinstance(error, RessmoothError) or isinstance(error, DeviceError):
                raise RuntimeError(first_line(error)) from None  # the launcher reads the last line
            return {"done": True, "error": error}
        return {"epoch": epoch, "best": best}

    def place(self) -> Place:
        return this_place()

    def _begin(self) -> "Recorded":
        from ressmooth.engines.runner import epochs

        directory = paths.run_directory(self.home, self.uid)
        if not directory.is_dir():  # the launcher has created it
            raise ConfigError(
                f"home = {str(self.home)!r}: node {os.uname().nodename} does not see the "
                "launcher's; give a --home on a path that all nodes share"
            )
        self.store = self.store or Store(self.url)
        self.store.holder = self.holder  # whose runs it claims
        self.steps = epochs(self.store, self.run_id, self.home, self.gpu_share)
        return next(self.steps)


def _needs(cpus: float, gpus: float, config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Return what a run needs. After it ran out of memory, that is a whole GPU."""
    whole = max(1.0, gpus) if config["whole_gpu"] else gpus
    build = build_resource()
    same_build = {build: SHARE} if build else {}
    return tune.PlacementGroupFactory([{"CPU": cpus, "GPU": whole, **same_build}])


def _shut_down() -> None:
    """Shut Ray down without garbage collection, which the relay's thread may be running.

    Freeing one of Ray's handles while Ray shuts down would end the process.
    """
    gc.collect()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        gc.enable()
