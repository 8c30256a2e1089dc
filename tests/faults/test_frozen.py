"""Workers that freeze until others have taken their place."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from helpers import specs
from helpers.launch import (
    CURVES,
    RESULTS,
    command,
    freeze,
    launch,
    query,
    wait_for,
    workers_of,
)

from ressmooth.engines import Decision
from ressmooth.engines.runner import execute
from ressmooth.search.planner import Planner

WORKER = """
import sys
from pathlib import Path
from ressmooth.errors import StaleAttempt
from ressmooth.engines.runner import execute
from ressmooth.store import Store

def report(epoch, best):
    print(epoch.epoch, flush=True)
    sys.stdin.readline()
    return "continue"

try:
    execute(Store(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), report)
except StaleAttempt as error:
    sys.exit(error.exit_code)
"""
NO_MLFLOW = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
HALFWAY = "SELECT 1 FROM run WHERE state = 'running' AND last_epoch BETWEEN 2 AND 6"


@pytest.mark.slow
def test_workers_that_wake_up_too_late_write_nothing(study, calm, tmp_path):
    launcher = subprocess.Popen(
        command(study, tmp_path, "--workers", "2"), env=NO_MLFLOW, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: query(tmp_path, HALFWAY))
    workers = workers_of(launcher)
    freeze(workers, tmp_path / "results.db")
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


@pytest.mark.slow
def test_a_worker_that_wakes_up_after_a_takeover_is_refused(store, tmp_path):
    """As on a node that was cut off while another worker took over its run."""
    spec = specs.study({"smooth": {"method": "smoothing"}})
    run = Planner(store, store.open_study(spec), spec).next()
    frozen = subprocess.Popen(
        [sys.executable, "-c", WORKER, store.url, str(run.id), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert frozen.stdout.readline() == "1\n"
    frozen.send_signal(signal.SIGSTOP)
    store.fail_worker(run.id, "its node does not answer")
    assert execute(store, run.id, tmp_path, lambda epoch, best: Decision.CONTINUE) == "complete"
    ended = store.run(run.id), store.curve(run.id)
    frozen.send_signal(signal.SIGCONT)
    frozen.communicate("\n" * 10, timeout=60)
    assert frozen.returncode == 9
    assert (store.run(run.id), store.curve(run.id)) == ended
