"""`ressmooth rename` and `ressmooth delete`, with a real MLflow and without one."""

import os
import re
import shlex
import shutil

import pytest
from click.testing import CliRunner
from helpers import records
from helpers.launch import answer_on_terminal, query

from ressmooth.cli import main
from ressmooth.spec import load
from ressmooth.store import Holder, default_url, open_store
from ressmooth.tracking.mirror import Mirror
from ressmooth.tracking.relay import sync
from ressmooth.tracking.server import tracking_uri

NO_MLFLOW = "http://127.0.0.1:9"  # nothing listens there
TABLES = ("study", "trial", "run", "epoch", "outbox")
STUDY = """
# a comment
name = "{name}"   # the name
dataset = "digits"
epochs = 3
[arms.sgd]
method = "mse"
"""


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RESSMOOTH_DATABASE_URL", "RESSMOOTH_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A home with the studies old and other, both in MLflow."""
    home = tmp_path_factory.mktemp("recorded")
    for name in ("old", "other"):
        record(home, name)
    return home


def record(home, name):
    (home / "x.toml").write_text(STUDY.format(name=name))
    store = open_store(default_url(home))
    records.simulate(store, load(str(home / "x.toml")), lambda config: 90.0)
    for run in records.runs_of(store, store.study(name).id):
        (home / "runs" / run.uid).mkdir(parents=True)
        (home / "runs" / run.uid / "best.safetensors").write_bytes(bytes(2_000_000))
    sync(store, home, f"sqlite:///{home}/mlflow.db")
    store.close()


@pytest.fixture
def home(recorded, tmp_path):
    shutil.copytree(recorded, tmp_path / "home")
    return tmp_path / "home"


def run(*arguments, home):
    return CliRunner().invoke(main, [*arguments, "--home", str(home)])


def experiments(home):
    return set(Mirror(tracking_uri(home), home).studies())


def counts(home):
    return {table: query(home, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def contents(home):
    return query(home, "SELECT * FROM study"), counts(home), sorted(os.listdir(home / "runs"))


def test_a_renamed_study_has_its_new_name_everywhere_and_resumes_by_it(home, tmp_path):
    done = run("rename", "old", "new", home=home)
    assert done.exit_code == 0, done.output
    assert shlex.join(["ressmooth", "study", "new", "--home", str(home)]) in done.output
    ((text,),) = query(home, "SELECT file_text FROM study WHERE name = 'new'")
    assert text == STUDY.format(name="new")
    assert experiments(home) == {"new", "other"}
    for study in ("new", str(tmp_path / "x.toml")):
        (tmp_path / "x.toml").write_text(STUDY.format(name="new"))
        plan = run("study", study, "--dry-run", home=home)
        assert "1 run, 1 of them done" in plan.output, plan.output
    assert query(home, "SELECT holder_token FROM study WHERE name = 'new'") == [(None,)]


def test_a_rename_that_mlflow_did_not_hear_of_is_delivered_by_sync(home, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NO_MLFLOW)
    done = run("rename", "old", "new", home=home)
    assert done.exit_code == 0 and "warning: not yet renamed in MLflow" in done.stderr
    assert f"later: ressmooth sync --home {home}" in done.stderr
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert experiments(home) == {"old", "other"}
    assert run("sync", home=home).exit_code == 0
    assert experiments(home) == {"new", "other"}


@pytest.mark.parametrize(
    "new, words",
    [
        ("other", "there is a study 'other' already"),
        ("Upper", "'Upper': a name has 1 to 64 of a-z 0-9"),
        ("a/b", "'a/b': a name has"),
    ],
)
def test_a_taken_or_wrong_name_is_refused(home, new, words):
    before = contents(home)
    done = run("rename", "old", new, home=home)
    assert done.exit_code == 2 and words in done.stderr
    assert contents(home) == before


@pytest.mark.parametrize("command", [["rename", "old", "new"], ["delete", "old", "--yes"]])
def test_a_running_study_is_neither_renamed_nor_deleted(home, command):
    store = open_store(default_url(home))
    store.acquire(store.study("old").id, Holder.here())
    before = contents(home)
    done = run(*command, home=home)
    store.close()
    assert done.exit_code == 3 and "is being run by" in done.stderr
    assert contents(home) == before


@pytest.mark.parametrize("command", [["rename", "none", "new"], ["delete", "none", "--yes"]])
def test_an_unknown_study_is_named(home, command):
    done = run(*command, home=home)
    assert done.exit_code == 2 and "no study 'none' here; known: old, other" in done.stderr


def test_delete_removes_rows_files_and_the_experiment_of_this_study_only(home):
    store = open_store(default_url(home))
    keep = [run.uid for run in records.runs_of(store, store.study("other").id)]
    uid = store.study("old").uid
    store.close()
    before = counts(home)
    assert (home / "artifacts" / uid).is_dir()
    assert run("report", "old", "--out", str(home / "out"), home=home).exit_code == 0
    assert (home / "reports" / uid).is_dir()
    done = run("delete", "old", "--yes", home=home)
    assert done.exit_code == 0, done.output
    assert "This deletes old: 1 run with all results" in done.output
    assert re.search(r"\(2\.\d MB in", done.output)
    assert done.output.endswith("deleted old\n")
    assert counts(home) == {table: number // 2 for table, number in before.items()}
    assert query(home, "SELECT name FROM study") == [("other",)]
    assert os.listdir(home / "runs") == keep
    assert not (home / "artifacts" / uid).exists() and not (home / "reports" / uid).exists()
    assert (home / "out" / "index.html").exists()  # the user's own copy
    assert experiments(home) == {"other"}


def test_a_new_study_with_a_deleted_name_shows_only_its_own_runs(home):
    from mlflow import MlflowClient

    run("delete", "old", "--yes", home=home)
    record(home, "old")
    assert experiments(home) == {"old", "other"}
    client = MlflowClient(tracking_uri(home))
    found = client.search_runs([client.get_experiment_by_name("old").experiment_id])
    ((uid,),) = query(home, "SELECT uid FROM study WHERE name = 'old'")
    assert len(found) == 2  # the study and its run
    assert uid in {each.data.tags.get("ressmooth.study_uid") for each in found}


def test_without_mlflow_the_rest_is_deleted_and_a_warning_says_what_is_left(home, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NO_MLFLOW)
    done = run("delete", "old", "--yes", home=home)
    assert done.exit_code == 0
    assert "warning: MLflow still shows the study" in done.stderr
    assert "delete the experiment 'old' there" in done.stderr
    assert query(home, "SELECT name FROM study") == [("other",)]
    assert len(os.listdir(home / "runs")) == 1


def test_delete_creates_no_mlflow(home):
    (home / "mlflow.db").unlink()
    assert run("delete", "old", "--yes", home=home).exit_code == 0
    assert not (home / "mlflow.db").exists()


def test_without_a_terminal_delete_needs_yes(home):
    before = contents(home)
    done = run("delete", "old", home=home)
    assert done.exit_code == 2
    assert f"ressmooth delete old --yes --home {home}" in done.stderr
    assert contents(home) == before


@pytest.mark.parametrize("answer, is_deleted", [(b"n\n", False), (b"\n", False), (b"y\n", True)])
def test_on_a_terminal_delete_asks(home, answer, is_deleted):
    done = answer_on_terminal(answer, "delete", "old", "--home", str(home))
    assert "Delete it? [y/N]" in done.stdout
    assert (query(home, "SELECT name FROM study") == [("other",)]) == is_deleted
    assert ("nothing was deleted" in done.stdout) != is_deleted
    assert query(home, "SELECT DISTINCT holder_token FROM study") == [(None,)]
