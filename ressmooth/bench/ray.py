"""The two sides of the overhead on Ray: a study, and plain Ray Tune with its MLflow callback.

Each side is a process of its own that starts its own Ray, as a user's would be. A run trains
nothing and reports one epoch.
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ressmooth.bench.workload import ENVIRONMENT, IDLE_EPOCH, SPACE, new_planner
from ressmooth.config import METRICS, Epoch
from ressmooth.engines import Decision
from ressmooth.engines.progress import View
from ressmooth.engines.ray import RayEngine, Worker
from ressmooth.engines.scheduler import ActiveStudy, Scheduler
from ressmooth.store import State, Store
from ressmooth.tracking.relay import Relay
from ressmooth.tracking.server import tracking_uri


def run_plain(directory: str, runs: int, launched: float) -> None:
    """Print the seconds from launch to each epoch of plain Ray Tune."""
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    times = []

    class TimingCallback(tune.Callback):
        def on_trial_result(self, *_: Any, **__: Any) -> None:
            times.append(time.time() - launched)

    def train(config: dict[str, float]) -> None:
        tune.report(dict.fromkeys(METRICS, 0.5))

    ray.init("local", include_dashboard=False, log_to_driver=False)
    space = {
        name: (tune.loguniform if "log" in axis else tune.uniform)(axis["low"], axis["high"])
        for name, axis in SPACE.items()
    }
    logger = MLflowLoggerCallback(f"sqlite:///{directory}/mlflow.db", experiment_name="bench")
    callbacks = [logger, TimingCallback()]
    tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=runs),
        run_config=tune.RunConfig(storage_path=directory, callbacks=callbacks, verbose=0),
    ).fit()
    print(json.dumps(times))


def run_ours(directory: str, runs: int, launched: float) -> None:
    """Print the seconds from launch to each epoch of a study."""
    home = Path(directory)
    planner = new_planner(f"sqlite:///{home}/results.db", runs)
    Relay(planner.store.url, home, tracking_uri(home), planner.study_id).start()
    engine = RayEngine(planner.spec.resources, None, planner.store.url)
    engine.worker = IdleWorker
    times = []

    class TimingView(View):
        def epoch(self, *_: Any) -> None:
            times.append(time.time() - launched)

    with TimingView(planner, engine.workers, quiet=True) as view:
        scheduler = Scheduler()
        scheduler.add(ActiveStudy(planner))
        engine.run(scheduler, planner.store, home, view, lambda: None)
    print(json.dumps(times), flush=True)
    os._exit(0)  # the relay may still be drawing figures


class IdleWorker(Worker):
    """Records an epoch without training."""

    def _begin(self) -> tuple[Epoch, float]:
        self.steps = self._epochs()
        return next(self.steps)

    def _epochs(self) -> Generator[tuple[Epoch, float], Decision, State]:
        self.store = self.store or Store(self.url)
        attempt = self.store.claim(self.run_id, ENVIRONMENT)
        self.store.record_epoch(attempt, IDLE_EPOCH, None)
        yield IDLE_EPOCH, 50.0
        self.store.finish_run(attempt, State.COMPLETE, max_acc=50.0, mean_acc=50.0)
        return State.COMPLETE
