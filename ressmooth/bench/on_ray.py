"""The two sides of bench/cluster.py; each is the only thing that its process does."""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ressmooth.bench.idle import FACTS, METRICS, SPACE, epoch_fields, new_dispatcher
from ressmooth.curves import Epoch
from ressmooth.engines.cluster import Cluster
from ressmooth.engines.ray import Worker
from ressmooth.store import Store
from ressmooth.tracking import Relay, tracking_uri
from ressmooth.view import View


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


def _idle(store: Store, run_id: int) -> Generator[tuple[Epoch, float], Any, str]:
    attempt = store.claim(run_id, FACTS)
    store.record_epoch(attempt, epoch_fields(1), None)
    yield Epoch(**epoch_fields(1)), 50.0
    store.finish_run(attempt, "complete", max_acc=50.0, mean_acc=50.0)
    return "complete"


def ours(directory: str, runs: int, launched: float) -> None:
    home = Path(directory)
    study = new_dispatcher(f"sqlite:///{home}/results.db", runs)
    relay = Relay(study.store.url, home, tracking_uri(home), study.study_id)
    relay.start()
    cluster = Cluster(study.spec.resources, None, study.store.url)
    times = []

    class Watch(View):
        def epoch(self, *_: Any) -> None:
            times.append(time.time() - launched)

    with Watch(study, cluster.workers, quiet=True) as watch:
        engine = cluster.engine(study, home, watch)
        engine.worker = Idle
        engine.run(lambda: None)
    print(json.dumps(times), flush=True)
    os._exit(0)  # the relay has pictures to draw still
