"""Hostile text stays text where it is shown. Passwords are never shown."""

import os
import time

import pytest
from click.testing import CliRunner
from helpers import specs
from helpers.launch import launch, query
from helpers.records import ENVIRONMENT, epoch, open_study, runs_of, simulate

from ressmooth.cli import main
from ressmooth.store import default_url, open_store

HOSTILE = (
    "RuntimeError: \x1b[2J\x1b]0;owned\x07\r<script>alert(1)</script>\u202e[bold red]%s{{7*7}}"
)
ADDRESSES = {
    "RESSMOOTH_DATABASE_URL": "postgresql://me:sekret@127.0.0.1:1/results",
    "MLFLOW_TRACKING_URI": "http://me:sekret@127.0.0.1:9",
}


@pytest.fixture
def failed(tmp_path, monkeypatch):
    """The home of a study with a complete run and one that failed with a hostile text."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    store = open_store(default_url(tmp_path))
    study_id = open_study(store, "hostile", {"sgd": {"method": "mse"}}, seeds=2)
    good, bad = runs_of(store, study_id)
    attempt = store.claim(good.id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), None)
    store.finish_run(attempt, "complete", max_acc=50.0, mean_acc=50.0, seconds=1.0)
    store.finish_run(store.claim(bad.id, ENVIRONMENT), "failed", error=f"Traceback\n{HOSTILE}")
    store.finish_trial(good.trial_id, "complete", 50.0)
    store.close()
    return tmp_path


def run(home, *arguments):
    done = CliRunner().invoke(main, [*arguments, "--home", str(home)], color=True)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_hostile_error_cannot_write_to_the_terminal(failed):
    shown = run(failed, "show", "hostile")
    assert r"RuntimeError: \x1b[2J\x1b]0;owned\x07" in shown
    assert not set(shown) & set("\x1b\x07\r\u202e")


def test_a_hostile_error_is_text_in_a_report(failed, tmp_path):
    run(failed, "report", "hostile", "--out", str(tmp_path / "report"))
    for file in (tmp_path / "report").glob("*.*"):
        assert b"<script>alert" not in file.read_bytes(), file


def test_a_hostile_description_is_text_in_a_report(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    store = open_store(default_url(tmp_path))
    images = "![x](http://evil/)\n![y]\n\n[y]: http://evil/"
    spec = specs.study({"sgd": {"method": "mse"}}, name="hostile", description=HOSTILE + images)
    simulate(store, spec, lambda config: 50.0)
    store.close()
    run(tmp_path, "report", "hostile", "--out", str(tmp_path / "report"))
    for name in ("report.md", "index.html"):
        shown = (tmp_path / "report" / name).read_text()
        assert "alert(1)" in shown and "<script>alert" not in shown
    markdown = (tmp_path / "report" / "report.md").read_text()
    assert r"RuntimeError: \x1b[2J" in markdown and not set(markdown) & set("\x1b\x07\r\u202e")
    assert "](http:" not in markdown and "]: http" not in markdown
    assert "](figures/" in markdown  # our own


@pytest.mark.slow
def test_no_password_is_printed_or_kept(study, tmp_path):
    began = time.monotonic()
    refused = launch(study, tmp_path / "home", env={**os.environ, **ADDRESSES})
    assert refused.returncode == 4 and time.monotonic() - began < 60
    assert "postgresql://me:***@127.0.0.1:1/results" in refused.stderr
    del (environment := {**os.environ, **ADDRESSES})["RESSMOOTH_DATABASE_URL"]
    done = launch(study, tmp_path / "home", "--set", "epochs=1", env=environment)
    assert done.returncode == 0 and "tracking events not delivered" in done.stderr
    assert query(tmp_path / "home", "SELECT count(*) FROM run") == [(8,)]
    for said in (refused.stdout, refused.stderr, done.stdout, done.stderr):
        assert "sekret" not in said
    for file in (tmp_path / "home").rglob("*"):
        assert not file.is_file() or b"sekret" not in file.read_bytes(), file


def test_a_database_without_an_encoding_is_read(postgres):
    """SQL_ASCII, which initdb chooses where there is no locale."""
    import psycopg

    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0")
    store = open_store(postgres.get_uri("plain"))
    open_study(store, "plain", {"sgd": {"method": "mse"}}, seeds=1)
    assert [row.name for row in store.studies()] == ["plain"]
    store.close()
