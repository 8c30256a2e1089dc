"""Studies on a cluster: Ray Tune places and executes the runs that the shared dispatcher chooses.

A Ray trial is one attempt of a run. Tune's own search, retries, checkpoints and restore are not
used: the Store knows what is done, a run's checkpoints lie in the home that all nodes share, and so
either engine goes on with what the other began.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.air.execution._internal import RayActorManager
from ray.tune.execution import tune_controller
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from ressmooth import places
from ressmooth.engines import Grace, lost
from ressmooth.errors import ConfigError, RessmoothError
from ressmooth.store.rows import TERMINAL

if TYPE_CHECKING:
    from ressmooth.dispatch import Dispatcher
    from ressmooth.engines.cluster import Cluster
    from ressmooth.run import Recorded, Verdict
    from ressmooth.store import RunRow, Store
    from ressmooth.view import View

LOOK = 10.0  # seconds between two looks at the cluster's nodes


class Worker(tune.Trainable):
    """A process on some node: it loads torch once and trains one run after another."""

    def setup(  # type: ignore[override]  # the rest comes by tune.with_parameters
        self, config: dict[str, Any], url: str, home: Path
    ) -> None:
        if not ray.get_gpu_ids():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves them visible to a run without
        self.url, self.home = url, home
        self.store: Store | None = None
        self.reset_config(config)

    def reset_config(self, config: dict[str, Any]) -> bool:
        self.run_id, self.uid = config["run"], config["uid"]
        self.steps: Generator[Recorded, Verdict, str] | None = None
        return True

    def step(self) -> dict[str, Any]:
        """One epoch, recorded; then the launcher's word is waited for."""
        try:
            epoch, best = self._begin() if self.steps is None else self.steps.send("go on")
        except StopIteration:
            return {"done": True}
        except RessmoothError as error:
            return {"done": True, "error": error}
        return {"epoch": epoch, "best": best}

    def _begin(self) -> "Recorded":
        from ressmooth.run import epochs
        from ressmooth.store import Store

        directory = places.of_run(self.home, self.uid)
        if not directory.is_dir():  # the launcher has made it
            raise ConfigError(
                f"home = {str(self.home)!r}: node {os.uname().nodename} does not see the "
                "launcher's; give a --home on a path that all nodes share"
            )
        self.store = self.store or Store(self.url)
        self.steps = epochs(self.store, self.run_id, self.home)
        return next(self.steps)


class _Leave(BaseException):
    """Out of Tune's loop at once: its own way waits for workers and makes errors into text."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


def _leaving(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            raise _Leave(error) from error

    return call


def _reason(account: str) -> str:
    """The gist of Ray's account of how a worker was lost."""
    if "low on memory" in account:
        return "worker killed: its node is out of memory"
    if "worker process has died" in account:
        return "worker killed, possibly out of memory"
    if "The actor" in account:
        return "worker lost with its node"
    return account.strip().splitlines()[-1]


class _Actors(RayActorManager):
    """Tune takes a worker that Ray's memory monitor kills for a fault of its own, and ends."""

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, ray.exceptions.OutOfMemoryError):
            exception = ray.exceptions.RayActorError(error_msg=str(exception))
        super()._actor_task_failed(tracked_actor_task, exception)


tune_controller.RayActorManager = _Actors  # type: ignore[attr-defined]


def _shut_down() -> None:
    """Without garbage collection, which the relay's thread may be at: a handle of Ray's that is
    freed while Ray shuts down ends the process."""
    gc.collect()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        gc.enable()


class _Part:
    """Of Tune, which pickles its parts for a restore that never happens here."""

    def __init__(self, engine: "Engine") -> None:
        super().__init__()
        self.engine = engine

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Asks(_Part, Searcher):
    """What is next?"""

    @_leaving
    def suggest(self, trial_id: str) -> Any:
        return self.engine.next(trial_id)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """The scheduler has heard it already."""

    def save(self, checkpoint_path: str) -> None:
        """The Store has everything."""


class _Judges(_Part, FIFOScheduler):
    """Go on, or stop? And what follows from an end?"""

    @_leaving
    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        goes_on = self.engine.heard(trial.trial_id, result["epoch"], result["best"])
        return TrialScheduler.CONTINUE if goes_on else TrialScheduler.STOP

    @_leaving
    def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self.engine.ended(trial.trial_id, result.get("error"))

    @_leaving
    def on_trial_error(self, controller: Any, trial: Any) -> None:
        account = Path(trial.error_file).read_text()
        if "creation task" in account:
            raise ConfigError(
                f"a worker cannot start: {account.strip().splitlines()[-1]}; "
                "every node needs the launcher's ressmooth and Python"
            )
        self.engine.lost(trial.trial_id, _reason(account))


class _Ticks(_Part, tune.Callback):
    @_leaving
    def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
        self.engine.look_up()


class Engine:
    """Runs a study's dispatcher on a cluster until nothing is left, or until stopped."""

    def __init__(
        self, dispatcher: "Dispatcher", cluster: "Cluster", home: Path, view: "View"
    ) -> None:
        self.dispatcher, self.cluster, self.home, self.view = dispatcher, cluster, home, view
        self.store = dispatcher.store
        self.worker = Worker
        self.running: dict[str, tuple[int, RunRow]] = {}  # Ray's trial -> line in the view, run
        self.grace = Grace()
        self.looked = time.monotonic()

    def run(self, tick: Callable[[], None]) -> None:
        """`tick` is called several times a second: heartbeat, time budget."""
        self.tick = tick
        try:
            # Ray prints about lost workers what the view tells in fewer words
            with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "w") as nowhere:
                with redirect_stdout(nowhere):
                    self._tuner(scratch).fit()
        except _Leave as leave:
            if leave.error is not None:
                raise leave.error from None
        finally:
            _shut_down()  # workers end with their launcher
        for _, run in self.running.values():
            self.store.release_run(run.id)

    def stop(self) -> None:
        """End every run at its next epoch; a second call does not wait for that."""
        self.grace.begin()

    def next(self, trial: str) -> Any:
        """The run that Ray is to execute as `trial`."""
        full = len(self.running) >= self.cluster.workers
        run = None if full or self.grace.begun else self.dispatcher.next()
        if run is None:
            return None if self.running else Searcher.FINISHED
        places.make_directory(places.of_run(self.home, run.uid))
        taken = {line for line, _ in self.running.values()}
        line = next(number for number in range(len(taken) + 1) if number not in taken)
        self.running[trial] = line, run
        self.view.started(line, run)
        return {"run": run.id, "uid": run.uid}

    def heard(self, trial: str, epoch: Any, best: float) -> bool:
        """An epoch is recorded; does the run go on?"""
        line, run = self.running[trial]
        self.view.epoch(line, run, epoch, best)
        if self.grace.begun:
            return False
        if self.dispatcher.should_prune(run, epoch.epoch, best):
            self.dispatcher.prune(run, best)
            places.clear(places.of_run(self.home, run.uid))
            return False
        return True

    def ended(self, trial: str, error: Exception | None) -> None:
        """A run reached its end, or was stopped at an epoch's end, or met what stops the study."""
        if error is not None:
            raise error
        line, run = self.running.pop(trial)
        now = self.store.run(run.id)
        if now.state in TERMINAL:
            self.dispatcher.ended(run)
        else:
            self.store.release_run(run.id)
            now = self.store.run(run.id)
        self.view.ended(line, now)

    def lost(self, trial: str, reason: str) -> None:
        """A run's worker or node died."""
        line, run = self.running.pop(trial)
        if self.grace.begun:  # the signal that stops us may reach it as well
            self.store.release_run(run.id)
        else:
            self.view.lost(line, run, lost(self.dispatcher, self.home, run, reason))

    def look_up(self) -> None:
        """Between two of Tune's events."""
        self.tick()
        if self.grace.over:
            raise _Leave
        if time.monotonic() - self.looked > LOOK:
            self.looked = time.monotonic()
            before = self.cluster.fitting
            if not self.cluster.look() and before:
                self.view.say(f"no node has room for a run, waiting: {self.cluster.where}")

    def _tuner(self, scratch: str) -> tune.Tuner:
        worker = tune.with_parameters(self.worker, url=self.store.url, home=self.home)
        per_run = {"cpu": self.cluster.cpus_per_run, "gpu": self.cluster.gpus_per_run}
        return tune.Tuner(
            tune.with_resources(worker, per_run),
            tune_config=tune.TuneConfig(
                search_alg=_Asks(self), scheduler=_Judges(self), num_samples=-1, reuse_actors=True
            ),
            run_config=tune.RunConfig(
                name="study",
                storage_path=scratch,
                callbacks=[_Ticks(self)],
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                failure_config=tune.FailureConfig(max_failures=0),
                verbose=0,
            ),
        )
