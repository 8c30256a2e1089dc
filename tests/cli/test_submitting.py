"""Submitting to a service: where studies may only be submitted, and whether one is alive."""

import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner
from helpers import records, specs

from ressmooth import __version__
from ressmooth.cli import main as ressmooth
from ressmooth.store import Holder, StudyState, default_url, open_store
from ressmooth.study import main as study

NODES = [{"node": "a", "workers": 3, "gpus": 0}, {"node": "b", "workers": 1, "gpus": 0}]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    monkeypatch.setenv("RESSMOOTH_HOME", str(tmp_path))
    monkeypatch.setenv("RESSMOOTH_USER", "anna")
    return tmp_path


@pytest.fixture
def container(home, monkeypatch):
    """The environment of a command in the deployment."""
    monkeypatch.setenv("RESSMOOTH_SERVE", "docker compose up -d")
    return home


@pytest.fixture
def service(home):
    with closing(open_store(default_url(home))) as store:
        holder = Holder.here()
        assert store.acquire_service(holder, "ray")
        store.service_heartbeat(holder, "4 workers on 2 Ray nodes", NODES, {})
        yield holder


def run(command, *words):
    return CliRunner().invoke(command, words)


def test_where_studies_are_only_submitted_a_study_waits_for_the_service(container, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "ressmooth.engines.watching.watch", lambda store, row, *_, **__: seen.append(row) or 0
    )
    done = run(study, "quickstart", "--engine", "ray")
    assert done.exit_code == 0, done.output
    assert "quickstart waits, because no service is running; start one: docker compose up -d" in (
        " ".join(done.output.split())
    )
    assert [(row.name, row.state) for row in seen] == [("quickstart", StudyState.QUEUED)]
    with closing(open_store(default_url(container))) as store:
        assert [row.owner for row in store.submissions()] == ["anna"]
        assert not store.trials(seen[0].id)  # nothing has been planned or run here


def test_resuming_there_does_not_offer_to_run_the_study(container):
    assert run(study, "quickstart", "--detach").exit_code == 0
    assert run(ressmooth, "stop", "quickstart").exit_code == 0
    resumed = run(ressmooth, "resume", "quickstart").output
    assert "start one: docker compose up -d" in resumed and "run it here" not in resumed


def test_an_ended_study_is_not_queued_again(home):
    with closing(open_store(default_url(home))) as store:
        spec = specs.study({"sgd": {"method": "mse"}}, name="done")
        study_id = records.simulate(store, spec, lambda config: 90.0).id
        store.end(study_id, StudyState.ENDED, store.begin(study_id, "mia@box"))
    resumed = run(ressmooth, "resume", "done")
    assert (resumed.exit_code, resumed.output) == (0, "done has ended already\n")
    with closing(open_store(default_url(home))) as store:
        assert store.study("done").state == StudyState.ENDED


def test_watching_a_study_that_waits_names_the_missing_service(home, monkeypatch):
    monkeypatch.setattr("ressmooth.engines.watching.watch", lambda *_, **__: 0)
    with closing(open_store(default_url(home))) as store:
        store.submit(specs.study({"sgd": {"method": "mse"}}, name="waits"), "mia@box", None)
    assert (
        "no service is running; start one: ressmooth serve"
        in run(ressmooth, "watch", "waits").stderr
    )


@pytest.mark.parametrize("typo, meant", [("compair", "compare"), ("studi", "study")])
def test_a_mistyped_command_gets_a_suggestion(typo, meant):
    done = run(ressmooth, typo)
    assert done.exit_code == 2 and f"did you mean {meant!r}?" in done.stderr


def test_a_dry_run_counts_the_workers_of_the_service(container, service):
    plan = run(study, "quickstart", "--dry-run")
    assert "4 workers on 2 Ray nodes: 12 runs in about 3 rounds." in " ".join(plan.output.split())


def test_a_dry_run_without_a_service_says_how_to_start_one(container):
    refused = run(study, "quickstart", "--dry-run")
    assert refused.exit_code == 2
    assert "no service is running; start one: docker compose up -d" in refused.output


def test_a_monitor_learns_whether_the_service_is_alive(home, service):
    alive = run(ressmooth, "serve", "--check")
    assert alive.exit_code == 0 and str(service) in alive.output
    with closing(open_store(default_url(home))) as store:
        store.release_service(service)
    gone = run(ressmooth, "serve", "--check")
    assert gone.exit_code == 4 and "no service is running" in gone.output


def test_a_monitor_learns_that_the_service_is_silent(home, service, monkeypatch):
    monkeypatch.setattr(Holder, "is_dead", lambda self: True)
    silent = run(ressmooth, "serve", "--check")
    assert silent.exit_code == 4 and "sent its last heartbeat" in silent.output


@pytest.fixture
def other_version(home):
    """A home whose service is of another version, with a study that was stopped."""
    with closing(open_store(default_url(home))) as store:
        assert store.acquire_service(Holder.here(), "local")
        store.submit(specs.study({"sgd": {"method": "mse"}}, name="old"), "mia@box", None)
        store.stop_study(store.study("old").id)
    with closing(sqlite3.connect(home / "results.db")) as connection, connection:
        connection.execute("UPDATE service SET build = '99.0'")
    return home


def rows(home):
    with closing(sqlite3.connect(home / "results.db")) as connection:
        return connection.execute("SELECT name, state FROM study").fetchall()


@pytest.mark.parametrize(
    "words",
    [
        ("study", "quickstart"),
        ("study", "quickstart", "--detach"),
        ("resume", "old"),
    ],
)
def test_nothing_is_submitted_to_a_service_of_another_version(other_version, words):
    done = run(ressmooth, *words)
    assert done.exit_code == 2
    service = f"the service {Holder.here()} is ressmooth 99.0"
    assert f"error: this is ressmooth {__version__}, but {service}; restart it" in done.stderr
    assert rows(other_version) == [("old", "stopped")]


@pytest.mark.parametrize("words", [("list",), ("show", "old"), ("queue",), ("workers",)])
def test_who_only_looks_may_have_another_version(other_version, words):
    done = run(ressmooth, *words)
    assert done.exit_code == 0, done.output
    assert f"warning: this is ressmooth {__version__}, but the service" in done.stderr


def test_two_images_of_one_version_differ_in_their_source(home, service, monkeypatch):
    monkeypatch.setenv("RESSMOOTH_BUILD", "bbbb1111")
    refused = run(study, "quickstart", "--detach")
    assert refused.exit_code == 2
    assert f"this is ressmooth {__version__}+bbbb1111, but the service" in refused.stderr
