"""`ressmooth rerun` and `retry`."""

import sqlite3
from contextlib import closing

import pytest
from helpers.commands import run

from ressmooth.store import Holder, default_url, open_store

pytestmark = pytest.mark.usefixtures("mlflow_is_unreachable")


def test_rerun_says_identical_or_what_differs(home):
    assert "identical" in run("rerun", "1", home=home).output
    with closing(sqlite3.connect(home / "results.db")) as connection:
        connection.execute("UPDATE epoch SET train_loss = train_loss + 1 WHERE epoch = 2")
        connection.commit()
        result = run("rerun", "1", home=home)
        connection.execute("UPDATE epoch SET train_loss = train_loss - 1 WHERE epoch = 2")
        connection.commit()
    assert result.exit_code == 1
    assert "differs: epoch 2: train_loss was" in result.output


def test_what_an_earlier_version_did_not_measure_makes_no_difference(home):
    unmeasured = "val_nll = NULL, val_ece = NULL, val_macro_f1 = NULL"
    with closing(sqlite3.connect(home / "results.db")) as database, database:
        database.execute(f"UPDATE epoch SET {unmeasured}")
    assert "identical" in run("rerun", "1", home=home).output


def test_what_a_run_cost_makes_no_difference(home):
    with closing(sqlite3.connect(home / "results.db")) as database, database:
        database.execute("UPDATE epoch SET seconds = 9, gpu_memory_mib = 9, gpu_power_watts = 9")
    assert "identical" in run("rerun", "1", home=home).output


def test_only_a_complete_run_can_be_rerun(home):
    result = run("rerun", "2", home=home)
    assert result.exit_code == 2 and "run 2 is failed" in result.stderr
    assert result.stderr.endswith(f"see: ressmooth show tiny --home {home}\n")


def test_retry_is_refused_while_a_launcher_runs_the_study(home):
    store = open_store(default_url(home))
    study_id, launcher = store.study("tiny").id, Holder.here()
    store.acquire(study_id, launcher)
    result = run("retry", "tiny", "--failed", home=home)
    store.release(study_id, launcher)
    assert store.run(2).state == "failed"
    store.close()
    assert result.exit_code == 3 and "is being run by" in result.stderr


def test_retry_puts_failed_runs_back_and_no_others(home):
    result = run("retry", "tiny", "--failed", home=home)
    assert result.output == f"queued 1 run again; run: ressmooth study tiny --home {home}\n"
    store = open_store(default_url(home))
    assert [store.run(number).state for number in (1, 2)] == ["complete", "waiting"]
    store.close()
