"""Commands that messages suggest: they can be pasted where the user stands, and work."""

import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from click.testing import CliRunner
from helpers import specs
from helpers.launch import launch, query

from ressmooth.cli import main
from ressmooth.spec import load
from ressmooth.store import Holder, open_store

STUDY = """
name = "mine"
dataset = "digits"
fraction = 0.2
epochs = 2
[arms.sgd]
method = "mse"
[arms.bad]
method = "mse"
output = "identity"
lr = 1e5
"""
NO_MLFLOW = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """The user stands in another directory, and MLflow does not answer."""
    for name in ("RESSMOOTH_DATABASE_URL", "RESSMOOTH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A home with a complete and a failed run, and what the launcher said."""
    home = tmp_path_factory.mktemp("a home") / "with spaces"
    home.mkdir()
    (home / "mine.toml").write_text(STUDY)
    done = launch(home / "mine.toml", home, env=NO_MLFLOW)
    assert done.returncode == 0, done.stderr
    return home, done.stderr


def suggested(message):
    """Return the suggested commands, as a shell splits them."""
    lines = [line for line in message.splitlines() if "ressmooth " in line]
    return [shlex.split(line[line.index("ressmooth ") :]) for line in lines]


def paste(words):
    command = [sys.executable, "-m", "ressmooth.cli", *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_what_the_launcher_suggests_works(recorded):
    home, said = recorded
    sync, report, ui = suggested(said)
    assert sync == ["ressmooth", "sync", "--home", str(home)]
    assert paste(sync).returncode == 4  # MLflow does not answer
    assert report == ["ressmooth", "report", "mine", "--out", "report", "--home", str(home)]
    assert paste(report).returncode == 0
    assert os.listdir() == ["report"]
    assert ui == ["ressmooth", "ui", "--home", str(home)]


def test_show_and_retry_suggest_what_resumes_the_study_without_its_file(recorded):
    home, _ = recorded
    (home / "mine.toml").unlink(missing_ok=True)
    (retry,) = suggested(paste(["", "show", "mine", "--home", str(home)]).stderr)
    assert retry == ["ressmooth", "retry", "mine", "--failed", "--home", str(home)]
    (resume,) = suggested(paste(retry).stdout)
    assert resume == ["ressmooth", "study", "mine", "--home", str(home)]
    (also,) = suggested(paste(["", "show", "mine", "--home", str(home)]).stderr)
    assert also == resume
    done = paste(resume)
    assert done.returncode == 0, done.stderr
    runs = query(home, "SELECT state, attempt FROM run ORDER BY id")
    assert [state for state, _ in runs] == ["complete", "failed"] and runs[0][1] == 1 < runs[1][1]


def test_show_suggests_no_second_launcher(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/results.db")
    study_id = store.open_study(specs.study({"sgd": {"method": "mse"}}, name="mine"))
    store.acquire(study_id, Holder.here())
    said = CliRunner().invoke(main, ["show", "mine", "--home", str(tmp_path)])
    store.close()
    assert said.exit_code == 0 and "resume" not in said.output


def test_a_recorded_study_takes_overrides_and_is_found_beside_a_directory_of_its_name(recorded):
    home, _ = recorded
    os.mkdir("mine")
    plan = ["study", "mine", "--dry-run", "--home", str(home)]
    assert " 2 runs" in CliRunner().invoke(main, plan).output
    # the failed trial gets no second seed
    assert " 3 runs" in CliRunner().invoke(main, [*plan, "--set", "seeds=2"]).output
    changed = CliRunner().invoke(main, [*plan, "--set", "epochs=5"])
    assert changed.exit_code == 2 and "epochs was 2, is 5" in changed.stderr


def test_a_bundled_study_that_is_recorded_with_other_settings_resumes_as_recorded(tmp_path):
    home = ["--home", str(tmp_path)]
    store = open_store(f"sqlite:///{tmp_path}/results.db")
    store.open_study(load("quickstart", ["epochs=3"]))
    store.close()
    said = CliRunner().invoke(main, ["study", "quickstart", "--dry-run", *home])
    assert said.exit_code == 0, said.stderr
    assert "resuming quickstart as recorded (epochs was 3, is 12)" in said.stderr
    assert re.search(r"^all +6 +12 +36$", said.stdout, re.MULTILINE)
    (bundled,) = suggested(said.stderr)
    said = CliRunner().invoke(main, [*bundled[1:], "--dry-run"])
    assert said.exit_code == 0 and said.stderr == "" and "quickstart-2: grid" in said.stdout


@pytest.mark.parametrize("name", ["mime", "nowhere/my.toml"])
def test_an_unknown_study_lists_the_bundled_and_the_recorded_ones(recorded, name):
    home, _ = recorded
    said = CliRunner().invoke(main, ["study", name, "--home", str(home)])
    assert said.exit_code == 2
    assert f"{name!r}: neither a file nor a known study" in said.stderr
    assert "quickstart" in said.stderr and f"recorded in {home}: mine\n" in said.stderr
    assert ("did you mean 'mine'?" in said.stderr) == (name == "mime")
    said = CliRunner().invoke(main, ["study", name, "--home", "none"])
    assert said.exit_code == 2 and "none: none\n" in said.stderr and os.listdir() == []


def test_a_missing_database_and_an_old_one_suggest_commands_with_the_home(tmp_path):
    def said(*words):
        return suggested(CliRunner().invoke(main, [*words, "--home", str(tmp_path)]).stderr)

    assert said("list") == [["ressmooth", "study", "quickstart", "--home", str(tmp_path)]]
    with closing(sqlite3.connect(tmp_path / "results.db")) as connection:
        connection.execute("CREATE TABLE foreign_table (id)")
    assert said("list") == [["ressmooth", "db", "upgrade", "--home", str(tmp_path)]]
