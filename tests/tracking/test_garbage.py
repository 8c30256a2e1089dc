"""Runs that are deleted in MLflow go for good; all others stay."""

import os
import sqlite3
import time
from contextlib import closing

import pytest
from click.testing import CliRunner
from helpers import records, specs
from mlflow import MlflowClient
from mlflow.entities import ViewType

from ressmooth.cli import main
from ressmooth.engines import cleaning
from ressmooth.store import StudyState, default_url, open_store
from ressmooth.tracking import garbage, relay
from ressmooth.tracking.server import tracking_uri

KEPT = b"x" * 100_000


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with an ended study in its MLflow."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    with closing(open_store(default_url(home))) as store:
        spec = specs.study({"sgd": {"method": "mse"}}, name="old", seeds=2)
        study = records.simulate(store, spec, lambda config: 90.0)
        store.end(study.id, StudyState.ENDED, None)
        store.announce_study(study.id)
        relay.sync(store, home, tracking_uri(home))
    return home


@pytest.fixture
def client(home):
    return MlflowClient(tracking_uri(home))


def runs_of(client, view=ViewType.ACTIVE_ONLY):
    experiments = client.search_experiments(ViewType.ALL)
    return client.search_runs([e.experiment_id for e in experiments], run_view_type=view)


def files(home):
    return {path for path in (home / "artifacts").rglob("*") if path.is_file()}


def clean(home, *options):
    done = CliRunner().invoke(main, ["clean", *options, "--home", str(home)])
    assert done.exit_code == 0, done.output
    return done.output


def delete_one(home, client):
    """Delete a run that has an artifact. Return its id."""
    run = runs_of(client)[0].info.run_id
    own = home / "weights.bin"
    own.write_bytes(KEPT)
    client.log_artifact(run, str(own))
    own.unlink()
    client.delete_run(run)
    return run


def test_deleted_runs_go_with_their_artifacts_and_others_stay(home, client, tmp_path):
    before = {run.info.run_id for run in runs_of(client)}
    artifacts = files(home)
    deleted = delete_one(home, client)
    (large,) = files(home) - artifacts
    shown = clean(home, "--yes")
    assert "  1 deleted runs and experiments of MLflow: 0." in shown and "freed 0." in shown
    assert not large.exists()
    assert {run.info.run_id for run in runs_of(client, ViewType.ALL)} == before - {deleted}
    others = {path for path in artifacts if deleted not in path.parts}
    assert others and files(home) == others
    assert clean(home, "--yes") == f"nothing to free in {home}\n"
    assert sorted(os.listdir(tmp_path)) == ["home"]  # no ./mlruns


@pytest.mark.slow
def test_a_deleted_study_goes_with_its_experiment(home, client):
    done = CliRunner().invoke(main, ["delete", "old", "--yes", "--home", str(home)])
    assert done.exit_code == 0, done.output
    assert garbage.find(home).number == 4  # two runs, the study's own, and the experiment
    clean(home, "--yes")
    assert garbage.find(home).number == 0
    names = [e.name for e in client.search_experiments(ViewType.ALL)]
    assert names == ["Default"] and not runs_of(client, ViewType.ALL)


@pytest.mark.slow
def test_the_service_removes_what_was_deleted_long_ago(home, client):
    deleted = delete_one(home, client)
    lines = []
    cleaning.clean_old(default_url(home), home, 2, lines.append)
    assert lines == []
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        three_days_ago = (time.time() - 3 * 86400) * 1000
        database.execute(
            "UPDATE runs SET deleted_time = ? WHERE run_uuid = ?", (three_days_ago, deleted)
        )
        database.commit()
    cleaning.clean_old(default_url(home), home, 2, lines.append)
    assert len(lines) == 1 and lines[0].startswith("removed 1 deleted runs and experiments")
    assert deleted not in {run.info.run_id for run in runs_of(client, ViewType.ALL)}


@pytest.mark.parametrize(
    ("uri", "command"),
    [
        (
            "http://user:secret@mlflow:5000",
            "mlflow gc --backend-store-uri DATABASE_URI --tracking-uri 'http://***@mlflow:5000'",
        ),
        (
            "sqlite:////srv/mlflow.db",
            "mlflow gc --backend-store-uri sqlite:////srv/mlflow.db --tracking-uri "
            "sqlite:////srv/mlflow.db",
        ),
    ],
)
def test_another_mlflow_is_left_alone_and_its_command_shown(tmp_path, monkeypatch, uri, command):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    open_store(default_url(tmp_path)).close()
    (tmp_path / "mlflow.db").write_bytes(b"an old one")
    assert clean(tmp_path, "--yes") == (
        f"note: to remove runs that are deleted in MLflow, run there: {command}\n"
        f"nothing to free in {tmp_path}\n"
    )


def test_in_the_deployment_the_note_is_the_command_of_its_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    monkeypatch.setenv("RESSMOOTH_CLEAN_MLFLOW", "docker compose exec mlflow clean-mlflow")
    open_store(default_url(tmp_path)).close()
    assert clean(tmp_path, "--yes") == (
        "note: to remove what is deleted in MLflow: docker compose exec mlflow clean-mlflow\n"
        f"nothing to free in {tmp_path}\n"
    )


def test_an_unreadable_mlflow_does_not_keep_the_rest_from_being_cleaned(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    open_store(default_url(tmp_path)).close()
    (tmp_path / "mlflow.db").write_bytes(b"no database")
    assert "note: MLflow at " in clean(tmp_path, "--yes")
