"""What all commands have in common: --home, quick starts, the study command among them."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from click.testing import CliRunner
from helpers.commands import run

from ressmooth.cli import main

pytestmark = pytest.mark.usefixtures("mlflow_is_unreachable")


@pytest.mark.parametrize("command", [["list"], ["study", "quickstart"]])
def test_ctrl_c_before_anything_began_is_acknowledged(tmp_path, monkeypatch, command):
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("ressmooth.store.default_url", interrupt)
    result = run(*command, home=tmp_path)
    assert (result.exit_code, result.stderr) == (130, "stopped\n")


HOMELY = [  # every command that takes --home
    ["study", "quickstart"],
    ["study", "quickstart", "--dry-run"],
    ["list"],
    ["show", "tiny"],
    ["compare", "tiny"],
    ["report", "tiny", "--out", "out"],
    ["export", "tiny"],
    ["retry", "tiny", "--failed"],
    ["rerun", "1"],
    ["rename", "tiny", "other"],
    ["delete", "tiny", "--yes"],
    ["clean", "--yes"],
    ["import", "--bundled"],
    ["serve"],
    ["queue"],
    ["workers"],
    ["watch", "tiny"],
    ["logs", "tiny"],
    ["stop", "tiny"],
    ["resume", "tiny"],
    ["priority", "tiny", "high"],
    ["fetch", "digits"],
    ["sync"],
    ["ui"],
    ["db", "upgrade"],
    ["doctor"],
]


@pytest.mark.parametrize("words", [[], ["db"]])
def test_help_is_cut_off_nowhere_in_80_columns(words):
    output = CliRunner().invoke(main, [*words, "--help"], terminal_width=80).output
    listed = output.partition("Commands:\n")[2]
    assert listed and "..." not in listed and max(map(len, output.splitlines())) <= 80


def test_every_command_with_a_home_is_known():
    from test_docs import COMMANDS

    with_home = {
        name.removeprefix("ressmooth ")
        for name, command in COMMANDS.items()
        if any("--home" in option.opts for option in command.params)
    }
    assert with_home - {"python -m ressmooth.study"} == {" ".join(_words(each)) for each in HOMELY}


def _words(arguments):
    return arguments[: 2 if arguments[0] == "db" else 1]


@pytest.mark.parametrize("arguments", HOMELY, ids=" ".join)
@pytest.mark.parametrize("below", ["", "home"])
def test_a_home_on_a_file_is_refused_by_every_command(tmp_path, arguments, below, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    result = run(*arguments, home=tmp_path / "file" / below)
    assert result.exit_code == 2, result.output
    assert f"{tmp_path / 'file'} is a file" in result.stderr
    assert (tmp_path / "file").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_a_home_with_special_characters_of_urls_is_refused(tmp_path):
    result = run("list", home=tmp_path / "100%")
    assert result.exit_code == 2 and "without % ? #" in result.stderr


HEAVY = ("torch", "mlflow", "optuna", "ray", "rich", "sklearn", "matplotlib", "scipy.stats")


@pytest.mark.parametrize(
    "words, code, loaded",
    [
        (["list"], 0, []),
        (["show", "tiny"], 0, []),
        (["compare", "tiny"], 0, []),
        (["doctor"], 0, []),
        (["rerun", "999"], 2, []),
        (["rerun", "2"], 2, []),
        (["report", "tiny", "--out", "out"], 0, ["optuna", "matplotlib"]),
    ],
    ids=str,
)
def test_quick_commands_load_no_heavy_package(home, words, code, loaded, tmp_path):
    script = (
        "import sys; from click.testing import CliRunner; from ressmooth.cli import main\n"
        f"result = CliRunner().invoke(main, {[*words, '--home', str(home)]!r})\n"
        f"print(result.exit_code, [m for m in {HEAVY} if m in sys.modules])"
    )
    embedded = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=embedded)
    assert done.stdout == f"{code} {loaded}\n", done.stderr


def test_study_is_a_command_like_the_others(home):
    listed = CliRunner().invoke(main, ["--help"]).output
    assert listed.index("  study ") < listed.index("  train ")
    done = run("study", str(home / "tiny.toml"), "--dry-run", home=home)
    assert done.exit_code == 0 and "worker" in done.output and "2 runs" in done.output


def test_a_dry_run_counts_finished_runs_and_refuses_a_changed_study(home):
    command = [sys.executable, "-m", "ressmooth.study", str(home / "tiny.toml"), "--dry-run"]

    def plan(*options):
        arguments = [*command, "--home", str(home), *options]
        return subprocess.run(arguments, capture_output=True, text=True)

    with closing(sqlite3.connect(home / "results.db")) as connection:
        (done,) = connection.execute(
            "SELECT count(*) FROM run WHERE state IN ('complete', 'failed')"
        ).fetchone()
    assert f": 2 runs, {done} of them done, in about {2 - done} round" in plan().stdout
    other = plan("--set", "epochs=5")
    assert other.returncode == 2 and "epochs was 2, is 5" in other.stderr
