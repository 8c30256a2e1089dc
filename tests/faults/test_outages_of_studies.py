"""PostgreSQL or MLflow fails in the middle of a study, which ends with the same rows."""

import os
import subprocess
import sys
import time

import psycopg
import pytest
from helpers.launch import CURVES, EPOCHS, RESULTS, command, query, wait_for
from helpers.records import free_port
from helpers.servers import Server, answering, forwarding, nothing

from ressmooth.store import upgrade

RUNS = 8
COMPLETE = "SELECT count(*) FROM run WHERE state = 'complete'"
SENT = "SELECT count(*) FROM outbox WHERE sent_at IS NOT NULL"


def start(study, home, **environment):
    return subprocess.Popen(
        command(study, home, "--workers", "2"),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_of(url, sql):
    with psycopg.connect(url) as connection:
        return connection.execute(sql.partition("ORDER BY")[0]).fetchall()


def alike(rows):
    """Sort rows from either kind of database alike."""
    return sorted((arm, str(params).replace("'", '"'), *rest) for arm, params, *rest in rows)


@pytest.mark.parametrize(
    ("mode", "seconds"),
    [
        pytest.param("fast", 0, marks=pytest.mark.slow),
        pytest.param("immediate", 10, marks=pytest.mark.slow),
        pytest.param("fast", 60, marks=pytest.mark.chaos),
        pytest.param("immediate", 60, marks=pytest.mark.chaos),
    ],
)
def test_a_study_outlives_its_database(
    own_postgres, stop_postgres, mode, seconds, study, calm, tmp_path
):
    url = own_postgres.get_uri()
    addresses = {"RESSMOOTH_DATABASE_URL": url, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    upgrade(url)
    launcher = start(study, tmp_path, **addresses)
    wait_for(lambda: rows_of(url, "SELECT count(*) FROM epoch") >= [(10,)])
    stop_postgres(mode)
    time.sleep(seconds)
    own_postgres.ensure_postgres_running()
    said = launcher.communicate(timeout=300)[1]
    assert launcher.returncode == 0, said
    assert "Traceback" not in said and "retry" not in said
    assert [alike(rows_of(url, sql)) for sql in (RESULTS, CURVES)] == [alike(rows) for rows in calm]
    assert rows_of(url, "SELECT max(failures), max(attempt) FROM run") == [(0, 1)]


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """A server that is well. The tests reach it at an address that is unwell at first."""
    server = Server(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["down", "hanging", "500", "401"])
def test_mlflow_gets_every_point_once_when_it_is_well_again(mlflow, fault, study, calm, tmp_path):
    port, name = free_port(), f"tiny-{fault}"
    uri = f"http://127.0.0.1:{port}"
    study.write_text(study.read_text().replace('"tiny"', f'"{name}"'))
    unwell = {
        "down": nothing,
        "hanging": lambda: answering(200, hangs=True, port=port),
        "500": lambda: answering(500, port=port),
        "401": lambda: answering(401, port=port),
    }
    with unwell[fault]():
        launcher = start(study, tmp_path, MLFLOW_TRACKING_URI=uri)
        wait_for(lambda: query(tmp_path, COMPLETE) == [(RUNS,)])  # it did not wait for MLflow
        assert query(tmp_path, SENT) == [(0,)]
        said = launcher.communicate(timeout=200)[1]
    assert launcher.returncode == 0, said
    assert "tracking events not delivered" in said
    assert f"with: ressmooth sync --home {tmp_path}" in said
    sync = [sys.executable, "-m", "ressmooth.cli", "sync", "--home", str(tmp_path)]
    with forwarding(port, to=mlflow.port):
        subprocess.run(sync, env={**os.environ, "MLFLOW_TRACKING_URI": uri}, check=True)
    assert [query(tmp_path, sql) for sql in (RESULTS, CURVES)] == calm
    from mlflow import MlflowClient

    client = MlflowClient(mlflow.uri)
    experiment = client.get_experiment_by_name(name).experiment_id
    shown = [r for r in client.search_runs([experiment]) if "ressmooth.run_uid" in r.data.tags]
    assert len(shown) == RUNS
    for run in shown:
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "train_loss")]
        assert steps == list(range(1, EPOCHS + 1))
