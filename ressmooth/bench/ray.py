"""Measure the overhead of a study on Ray, beside plain Ray Tune with its MLflow callback.

Each side is a process of its own that starts its own Ray, as a user's would be. A run trains
nothing and reports one epoch. The time per run counts only the second half of the runs, because
MLflow creates its database during the first.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ressmooth.bench.workload import ENVIRONMENT, SPACE, idle_epoch, new_planner
from ressmooth.config import METRICS, Epoch
from ressmooth.engines import Decision
from ressmooth.engines.progress import View
from ressmooth.engines.ray import RayEngine, Worker
from ressmooth.store import State, Store
from ressmooth.tracking.relay import Relay
from ressmooth.tracking.server import tracking_uri

if TYPE_CHECKING:
    from ressmooth.bench.timing import Bench  # loads torch, which neither side needs


def measure(bench: "Bench", directory: Path) -> None:
    """G6: compare the time to the first epoch, and the time per run."""
    plain_runs, our_runs = (6, 200) if bench.quick else (12, 400)
    launch, per_run = [], []
    for number in range(bench.rounds // 3):
        plain = _time_side("plain", directory / f"plain-{number}", plain_runs)
        ours = _time_side("ours", directory / f"ours-{number}", our_runs)
        launch.append(plain[0] / ours[0])
        per_run.append(plain[1] / ours[1])
    sides = "Ray Tune + MLflowLoggerCallback / ours on Ray"
    bench.add("G6", f"launch to first epoch: {sides}", launch, must=1, at_most=False)
    bench.add("G6", f"a run that trains nothing: {sides}", per_run, must=20, at_most=False)


def _time_side(side: str, directory: Path, runs: int) -> tuple[float, float]:
    """Return the seconds from launch to the first epoch, and per run of the second half."""
    directory.mkdir(parents=True)
    call = f"run_{side}({str(directory)!r}, {runs}, {time.time()})"
    code = f"from ressmooth.bench.ray import run_{side}; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    later = times[runs // 2 :]
    return times[0], (later[-1] - later[0]) / (len(later) - 1)


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
    tracking = f"sqlite:///{directory}/mlflow.db"
    logger = MLflowLoggerCallback(tracking_uri=tracking, experiment_name="bench")
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
    relay = Relay(planner.store.url, home, tracking_uri(home), planner.study_id)
    relay.start()
    engine = RayEngine(planner.spec.resources, None, planner.store.url)
    engine.worker = IdleWorker
    times = []

    class TimingView(View):
        def epoch(self, *_: Any) -> None:
            times.append(time.time() - launched)

    with TimingView(planner, engine.workers, quiet=True) as view:
        engine.run(planner, home, view, lambda: None)
    print(json.dumps(times), flush=True)
    os._exit(0)  # the relay may still be drawing figures


class IdleWorker(Worker):
    """Records an epoch without training."""

    def _begin(self) -> tuple[Epoch, float]:
        self.store = self.store or Store(self.url)
        self.steps = _epochs(self.store, self.run_id)
        return next(self.steps)


def _epochs(store: Store, run_id: int) -> Generator[tuple[Epoch, float], Decision, State]:
    attempt = store.claim(run_id, ENVIRONMENT)
    store.record_epoch(attempt, idle_epoch(1), None)
    yield idle_epoch(1), 50.0
    store.finish_run(attempt, State.COMPLETE, max_acc=50.0, mean_acc=50.0)
    return State.COMPLETE
