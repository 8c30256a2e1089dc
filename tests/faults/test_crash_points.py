"""Every step of a run at which a process may die: what follows is as if it had not."""

import os
import runpy
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from helpers.launch import CURVES, RESULTS, launch, query

CRASHING = Path(__file__).parent / "crashing"
POINTS = runpy.run_path(str(CRASHING / "sitecustomize.py"))
STUDY = """
name = "small"
dataset = "digits"
fraction = 0.2
epochs = 4
seeds = 2
[arms.sgd]
method = "mse"
[arms.laplace]
b = 0.5
"""
SHOWN = """
    SELECT run_uuid, key, step, count(*) FROM metrics WHERE key = 'val_acc' GROUP BY 1, 2, 3
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(STUDY)
    return file


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """What the study gives when nobody dies."""
    home = tmp_path_factory.mktemp("calm")
    (home / "small.toml").write_text(STUDY)
    done = launch(home / "small.toml", home, env=environment(mlflow=False))
    assert done.returncode == 0, done.stderr
    return home


def environment(*, mlflow, **more):
    kept = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    return {**kept, **({} if mlflow else {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}), **more}


def crashing(point, home, *, mlflow=False):
    marker = str(home / "crashed")
    return environment(
        mlflow=mlflow, PYTHONPATH=str(CRASHING), CRASH_POINT=point, CRASH_FILE=marker
    )


def assert_same(home, calm):
    assert (home / "crashed").exists(), "the point was never reached"
    assert query(home, RESULTS) == query(calm, RESULTS)
    assert query(home, CURVES) == query(calm, CURVES)
    assert query(home, "PRAGMA quick_check") == [("ok",)]
    assert not list(home.glob("runs/*/epoch-*"))


@pytest.mark.parametrize("point", POINTS["WORKER"])
def test_a_worker_that_dies_is_replaced(point, study, calm, tmp_path):
    done = launch(study, tmp_path, "--workers", "1", env=crashing(point, tmp_path))
    assert done.returncode == 0, done.stderr
    assert "worker killed by signal 9" in done.stderr
    assert_same(tmp_path, calm)


@pytest.mark.parametrize("point", POINTS["LAUNCHER"])
def test_a_launcher_that_dies_is_followed(point, study, calm, tmp_path):
    mlflow = "MLflow" in point
    killed = launch(study, tmp_path, env=crashing(point, tmp_path, mlflow=mlflow))
    assert killed.returncode == -9, killed.stderr
    done = launch(study, tmp_path, env=environment(mlflow=mlflow))
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path, calm)
    if mlflow:
        with closing(sqlite3.connect(tmp_path / "mlflow.db")) as shown:
            points = shown.execute(SHOWN).fetchall()
        assert len(points) == 4 * 4 and {count for *_, count in points} == {1}
