"""Processes killed at named points: the study ends as if nothing had happened."""

import os
import sqlite3
from contextlib import closing

import pytest
from helpers import specs
from helpers.crashes import CRASHING, POINTS, execute_in_child
from helpers.launch import CURVES, RESULTS, launch, query

from ressmooth.engines import worker_died
from ressmooth.engines.scheduler import ActiveStudy, Scheduler
from ressmooth.search.planner import Planner
from ressmooth.store import open_store

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
    SELECT run_uuid, key, step, count(*) FROM metrics WHERE key = 'val_acc_percent' GROUP BY 1, 2, 3
"""
pytestmark = pytest.mark.slow


def train(home, point=None):
    """Train a study of one run as an engine does, in workers of which the first may die."""
    home.mkdir()
    spec = specs.study({"laplace": {"b": 0.5}}, epochs=4)
    store = open_store(f"sqlite:///{home}/results.db")
    scheduler = Scheduler()
    scheduler.add(ActiveStudy(Planner(store, store.open_study(spec), spec)))
    while (run := scheduler.next()) is not None:
        if execute_in_child(store.url, run.id, home, point) == 0:
            scheduler.ended(run)
        else:
            worker_died(scheduler, store, home, run, "killed")
    store.close()


@pytest.fixture(scope="module")
def calm_run(tmp_path_factory):
    home = tmp_path_factory.mktemp("calm") / "home"
    train(home)
    return home


@pytest.mark.parametrize("point", POINTS["WORKER"])
def test_a_run_survives_the_death_of_its_worker(point, calm_run, tmp_path):
    home = tmp_path / "home"
    train(home, point)
    assert query(home, "SELECT failures FROM run") == [(0 if point == "after the result" else 1,)]
    assert_same(home, calm_run)


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(STUDY)
    return file


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The home of the study when nothing is killed."""
    home = tmp_path_factory.mktemp("calm")
    (home / "small.toml").write_text(STUDY)
    done = launch(home / "small.toml", home, env=environment(mlflow=False))
    assert done.returncode == 0, done.stderr
    return home


def environment(*, mlflow, **more):
    kept = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    return {**kept, **({} if mlflow else {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}), **more}


def assert_same(home, calm):
    assert (home / "crashed").exists(), "the point was never reached"
    assert query(home, RESULTS) == query(calm, RESULTS)
    assert query(home, CURVES) == query(calm, CURVES)
    assert query(home, "PRAGMA quick_check") == [("ok",)]
    assert not list(home.glob("runs/*/epoch-*"))


@pytest.mark.parametrize("point", POINTS["LAUNCHER"])
def test_a_study_survives_the_death_of_its_launcher(point, study, calm, tmp_path):
    mlflow = "MLflow" in point
    crashing = {"CRASH_POINT": point, "CRASH_FILE": str(tmp_path / "crashed")}
    crashing["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(CRASHING), os.environ.get("PYTHONPATH")])
    )
    killed = launch(study, tmp_path, env=environment(mlflow=mlflow, **crashing))
    assert killed.returncode == -9, killed.stderr
    done = launch(study, tmp_path, env=environment(mlflow=mlflow))
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path, calm)
    if mlflow:
        with closing(sqlite3.connect(tmp_path / "mlflow.db")) as shown:
            points = shown.execute(SHOWN).fetchall()
        assert len(points) == 4 * 4 and {count for *_, count in points} == {1}
