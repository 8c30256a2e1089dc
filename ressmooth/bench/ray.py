"""What Ray costs a study, beside plain Ray Tune with its MLflow callback.

Each side is a process of its own on a Ray that it starts, as a user would: the time from its launch
to the first epoch, then the time per run, where a run trains nothing and reports one epoch. Of
the runs the second half counts: in the first, MLflow makes its database."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ressmooth.bench.study import ENVIRONMENT, METRICS, SPACE, made_up_epoch, new_planner
from ressmooth.bench.timing import Bench
from ressmooth.config import Epoch
from ressmooth.engines import Decision
from ressmooth.engines.progress import View
from ressmooth.engines.ray import RayEngine, Worker
from ressmooth.store import State, Store
from ressmooth.tracking.relay import Relay
from ressmooth.tracking.server import tracking_uri

SIDES = ("plain", "ours")
GOALS = {"launch to first epoch": 1, "a run that trains nothing": 20}


def measure(bench: Bench, directory: Path) -> None:
    runs = (6, 200) if bench.quick else (12, 400)
    rounds = [
        [
            _timed(side, directory / str(number) / side, n)
            for side, n in zip(SIDES, runs, strict=True)
        ]
        for number in range(bench.rounds // 3)
    ]
    for index, (what, must) in enumerate(GOALS.items()):
        ratios = [plain[index] / ours[index] for plain, ours in rounds]
        what = f"{what}: Ray Tune + MLflowLoggerCallback / ours on Ray"
        bench.keep("G6", what, ratios, must=must, at_most=False)


def _timed(side: str, directory: Path, runs: int) -> tuple[float, float]:
    """Seconds from launch to the first epoch, and per run once it is in full swing."""
    directory.mkdir(parents=True)
    call = f"{side}({str(directory)!r}, {runs}, {time.time()})"
    code = f"from ressmooth.bench.ray import {side}; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    later = times[runs // 2 :]
    return times[0], (later[-1] - later[0]) / (len(later) - 1)


def plain(directory: str, runs: int, launched: float) -> None:
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    times = []

    class Hears(tune.Callback):
        def on_trial_result(self, *_: Any, **__: Any) -> None:
            times.append(time.time() - launched)

    def train(config: dict[str, float]) -> None:
        tune.report(dict.fromkeys(METRICS, 0.5))

    ray.init("local", include_dashboard=False, log_to_driver=False)
    space = {
        name: (tune.loguniform if "log" in axis else tune.uniform)(axis["low"], axis["high"])
        for name, axis in SPACE.items()
    }
    logger = MLflowLoggerCallback(
        tracking_uri=f"sqlite:///{directory}/mlflow.db", experiment_name="bench"
    )
    tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=runs),
        run_config=tune.RunConfig(storage_path=directory, callbacks=[logger, Hears()], verbose=0),
    ).fit()
    print(json.dumps(times))


class Idle(Worker):
    """Records an epoch, but trains nothing."""

    def _begin(self) -> tuple[Epoch, float]:
        self.store = self.store or Store(self.url)
        self.steps = _idle(self.store, self.run_id)
        return next(self.steps)


def _idle(store: Store, run_id: int) -> Generator[tuple[Epoch, float], Decision, State]:
    attempt = store.claim(run_id, ENVIRONMENT)
    epoch = made_up_epoch(1)
    store.record_epoch(attempt, epoch, None)
    yield epoch, 50.0
    store.finish_run(attempt, State.COMPLETE, max_acc=50.0, mean_acc=50.0)
    return State.COMPLETE


def ours(directory: str, runs: int, launched: float) -> None:
    home = Path(directory)
    planner = new_planner(f"sqlite:///{home}/results.db", runs)
    relay = Relay(planner.store.url, home, tracking_uri(home), planner.study_id)
    relay.start()
    engine = RayEngine(planner.spec.resources, None, planner.store.url)
    engine.worker = Idle
    times = []

    class TimingView(View):
        def epoch(self, *_: Any) -> None:
            times.append(time.time() - launched)

    with TimingView(planner, engine.workers, quiet=True) as view:
        engine.run(planner, home, view, lambda: None)
    print(json.dumps(times), flush=True)
    os._exit(0)  # the relay may still be drawing pictures
