"""Workers that are stopped for so long that others take their place."""

import os
import sqlite3
import subprocess
from contextlib import closing

import psutil
import pytest
from launching import CURVES, RESULTS, command, launch, query, wait_for, workers_of

NO_MLFLOW = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
HALFWAY = "SELECT 1 FROM run WHERE state = 'running' AND last_epoch BETWEEN 2 AND 6"


def freeze(workers, home):
    """Stop them, but not in the middle of a transaction: that would stop everybody."""

    def frozen():
        for worker in workers:
            worker.suspend()
        try:
            with closing(sqlite3.connect(home / "results.db", timeout=0)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                return True
        except sqlite3.OperationalError:
            for worker in workers:
                worker.resume()
            return False

    wait_for(frozen)


@pytest.mark.slow
def test_workers_that_wake_up_too_late_write_nothing(study, calm, tmp_path):
    launcher = subprocess.Popen(
        command(study, tmp_path, "--workers", "2"), env=NO_MLFLOW, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: query(tmp_path, HALFWAY))
    workers = workers_of(launcher)
    freeze(workers, tmp_path)
    launcher.kill()
    launcher.wait()
    assert launch(study, tmp_path, env=NO_MLFLOW).returncode == 0
    assert [query(tmp_path, sql) for sql in (RESULTS, CURVES)] == calm
    ended = query(tmp_path, "SELECT * FROM run")
    for worker in workers:
        assert worker.status() == psutil.STATUS_STOPPED
        worker.resume()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    assert query(tmp_path, "SELECT * FROM run") == ended
    assert [query(tmp_path, sql) for sql in (RESULTS, CURVES)] == calm
    assert not list(tmp_path.glob("runs/*/*.tmp"))
