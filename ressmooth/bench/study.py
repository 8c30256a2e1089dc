"""What a study costs beside its training: `ressmooth bench --study`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import optuna

from ressmooth.bench import comparing
from ressmooth.bench.idle import FACTS, METRICS, SPACE, epoch_fields, new_dispatcher
from ressmooth.bench.timing import Bench, Row


def measure(*, quick: bool) -> list[Row]:
    bench = Bench(quick, "cpu")
    with tempfile.TemporaryDirectory() as directory:  # the same disk for both sides
        overhead(bench, Path(directory))
        storing(bench, Path(directory))
        comparing.measure(bench, Path(directory))
        on_ray(bench, Path(directory))
    starting(bench)
    return bench.rows


def overhead(bench: Bench, directory: Path) -> None:
    """A run that trains nothing: asked, recorded with one epoch, told."""
    dispatcher = new_dispatcher(f"sqlite:///{directory}/overhead.db", 100_000)
    store = dispatcher.store

    def ours() -> None:
        run = dispatcher.next()
        assert run is not None
        attempt = store.claim(run.id, FACTS)
        store.record_epoch(attempt, epoch_fields(1), None)
        store.finish_run(attempt, "complete", max_acc=90.0, mean_acc=90.0)
        dispatcher.ended(run)

    study = optuna.create_study(
        storage=f"sqlite:///{directory}/optuna.db", sampler=optuna.samplers.RandomSampler(0)
    )

    def bare() -> None:
        trial = study.ask()
        for name, space in SPACE.items():
            trial.suggest_float(name, space["low"], space["high"], log="log" in space)
        trial.report(0.5, 1)
        study.tell(trial, 0.5)

    bench.compare(
        "G6", "a run that trains nothing: ours / bare Optuna on SQLite", ours, bare, must=1
    )
    store.close()


def storing(bench: Bench, directory: Path) -> None:
    """A curve of many epochs and seven figures: each epoch its own durable transaction."""
    from ressmooth.tracking.mirror import Mirror

    epochs = 20 if bench.quick else 200
    dispatcher = new_dispatcher(f"sqlite:///{directory}/storing.db", 100_000)
    store = dispatcher.store

    def ours() -> None:
        run = dispatcher.next()
        assert run is not None
        attempt = store.claim(run.id, FACTS)
        for number in range(1, epochs + 1):
            store.record_epoch(attempt, epoch_fields(number), None)

    client = Mirror(f"sqlite:///{directory}/mlflow.db", directory).client
    experiment = client.create_experiment("bench", artifact_location=f"file://{directory}/a")

    def one_by_one() -> None:
        run_id = client.create_run(experiment).info.run_id
        for step in range(epochs):
            for metric in METRICS:
                client.log_metric(run_id, metric, 0.5, step=step)

    def batched() -> None:
        from mlflow.entities import Metric

        run_id = client.create_run(experiment).info.run_id
        for step in range(epochs):
            client.log_batch(run_id, [Metric(metric, 0.5, step, step) for metric in METRICS])

    what = f"a curve of {epochs} epochs: MLflow"
    compare = partial(bench.compare, "G8", at_most=False)
    compare(f"{what} log_metric / ours", one_by_one, ours, must=100)
    compare(f"{what} log_batch per epoch / ours", batched, ours, must=5)
    store.close()


def on_ray(bench: Bench, directory: Path) -> None:
    if find_spec("ray") is not None:  # an extra
        from ressmooth.bench import cluster

        cluster.measure(bench, directory / "ray")


def starting(bench: Bench) -> None:
    def python(*arguments: str) -> Callable[[], object]:
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        return lambda: subprocess.run(command, stdout=subprocess.DEVNULL, env=environment)

    bench.compare(
        "G10",
        "python -m ressmooth.study --help / python -c pass",
        python("-m", "ressmooth.study", "--help"),
        python("-c", "pass"),
        must=4,
    )
