"""The commands around studies, on a real store with a trained study."""

import csv
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import optuna
import pytest
from click.testing import CliRunner
from helpers import records, specs

from ressmooth.cli import main
from ressmooth.store import Holder, default_url, open_store
from ressmooth.training.data import DEBIAN_FASHION_MNIST

STUDY = """
name = "tiny"
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


@pytest.fixture(autouse=True)
def mlflow_is_unreachable(monkeypatch):
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A study with a complete and a failed run."""
    home = tmp_path_factory.mktemp("home")
    (home / "tiny.toml").write_text(STUDY)
    no_mlflow = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "ressmooth.study", str(home / "tiny.toml"), "--quiet"]
    done = subprocess.run(
        [*command, "--home", str(home)], capture_output=True, text=True, env=no_mlflow
    )
    assert done.returncode == 0, done.stderr
    return home


def run(*arguments, home):
    return CliRunner().invoke(main, [*arguments, "--home", str(home)])


def test_list_shows_the_study_and_its_best_arm(home):
    output = run("list", home=home).output
    assert "tiny" in output and "1 complete, 1 failed" in output and "sgd" in output


def test_show_lists_every_run_and_why_one_failed(home):
    output = run("show", "tiny", home=home).output
    assert "run 2 (bad, seed 0): diverged at epoch 1" in output
    assert "2/2" in output and "accuracy in %" in output


def test_an_unknown_study_names_the_known_ones(home):
    result = run("show", "tyni", home=home)
    assert result.exit_code == 2
    assert result.stderr == "error: no study 'tyni' here; known: tiny\n"


def test_list_creates_nothing(tmp_path):
    result = run("list", home=tmp_path / "none")
    assert result.exit_code != 0 and "launch a study to create it" in result.stderr
    assert not (tmp_path / "none").exists()


def test_export_writes_every_epoch_as_csv_and_as_json(home):
    rows = list(csv.DictReader(run("export", "tiny", home=home).output.splitlines()))
    assert [(row["arm"], row["epoch"]) for row in rows] == [("sgd", "1"), ("sgd", "2")]
    same = json.loads(run("export", "tiny", "--format", "json", home=home).output)
    assert [row["val_acc"] for row in same] == [float(row["val_acc"]) for row in rows]


def test_export_to_optuna_has_a_study_per_arm_with_every_finished_trial(home, tmp_path):
    done = run("export", "tiny", "--format", "optuna", "--out", str(tmp_path / "o.db"), home=home)
    assert done.exit_code == 0, done.stderr
    storage = f"sqlite:///{tmp_path}/o.db"
    (good,) = optuna.load_study(study_name="tiny sgd", storage=storage).trials
    (bad,) = optuna.load_study(study_name="tiny bad", storage=storage).trials
    rows = list(csv.DictReader(run("export", "tiny", home=home).output.splitlines()))
    curve = {int(row["epoch"]): float(row["val_acc"]) for row in rows}
    assert good.intermediate_values == curve and good.value == max(curve.values())
    assert bad.state.name == "FAIL" and bad.value is None


def test_an_export_replaces_an_earlier_one_and_leaves_no_other_file(home, tmp_path):
    for _ in range(2):
        run("export", "tiny", "--format", "optuna", "--out", str(tmp_path / "o.db"), home=home)
    assert [path.name for path in tmp_path.iterdir()] == ["o.db"]
    assert len(optuna.get_all_study_summaries(f"sqlite:///{tmp_path}/o.db")) == 2


@pytest.mark.parametrize("options", [("--format", "optuna"), ("--format", "csv", "--out", "x")])
def test_out_is_required_for_optuna_and_for_no_other_format(home, options):
    result = run("export", "tiny", *options, home=home)
    assert (
        result.exit_code == 2
        and "optuna needs --out FILE; csv and json are printed" in result.stderr
    )


def test_fetch_decodes_a_data_set_once(tmp_path):
    assert "1,437 training images" in run("fetch", "digits", home=tmp_path).output
    if DEBIAN_FASHION_MNIST.is_dir():
        assert "60,000 training images" in run("fetch", "fashion_mnist", home=tmp_path).output
        assert len(list(tmp_path.glob("data/fashion_mnist-*.pt"))) == 1


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


def test_only_a_complete_run_can_be_rerun(home):
    result = run("rerun", "2", home=home)
    assert result.exit_code == 2 and "run 2 is failed" in result.stderr


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
    assert result.output.startswith("queued 1 run again; run: python -m ressmooth.study tiny")
    store = open_store(default_url(home))
    assert [store.run(number).state for number in (1, 2)] == ["complete", "waiting"]
    store.close()


def test_sync_without_mlflow_names_its_address(home):
    result = run("sync", home=home)
    assert result.exit_code == 4 and "http://127.0.0.1:9" in result.stderr


def test_db_upgrade_reports_the_revision(home, tmp_path):
    assert "is already at 0002" in run("db", "upgrade", home=home).output
    assert "upgraded from nothing to 0002" in run("db", "upgrade", home=tmp_path / "new").output


def test_doctor_finds_what_is_missing(home, monkeypatch):
    result = run("doctor", home=home)
    assert result.exit_code == 1
    assert "BAD  MLflow" in result.output and "ok   database" in result.output
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    result = run("doctor", home=home)
    assert result.exit_code == 0, result.output


def test_a_home_with_special_characters_of_urls_is_refused(tmp_path):
    result = run("list", home=tmp_path / "100%")
    assert result.exit_code == 2 and "without % ? #" in result.stderr


def test_list_show_and_compare_load_no_heavy_package(home):
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.cli import main\n"
        f"for a in (['list'], ['show', 'tiny'], ['compare', 'tiny']):\n"
        f"    assert CliRunner().invoke(main, [*a, '--home', {str(home)!r}]).exit_code == 0\n"
        "heavy = ('torch', 'mlflow', 'optuna', 'ray', 'matplotlib', 'scipy.stats')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.strip() == "[]"


@pytest.mark.parametrize(
    "form, begins", [("table", " "), ("markdown", "**tiny"), ("csv", "study,"), ("json", "[")]
)
def test_compare_writes_several_formats(home, form, begins):
    result = run("compare", "tiny", "--format", form, home=home)
    assert result.exit_code == 0 and result.output.startswith(begins)
    assert "sgd" in result.output and "bad" not in result.output  # which never completed


def test_compare_says_when_the_paper_has_no_figures(home):
    output = run("compare", "tiny", "--against", "paper", home=home).output
    assert "The paper has no figures for this comparison." in output


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["compare", "nope"], "no study 'nope' here; known: tiny"),
        (["compare", "tiny", "--arm", "adam"], "--arm adam: no such arm here; known: sgd"),
        (["compare", "tiny", "--fraction", "0.5"], "--fraction 0.5: no such fraction here"),
        (["report", "nope", "--out", "out"], "no study 'nope' here; known: tiny"),
    ],
)
def test_an_error_prints_one_line_and_creates_nothing(home, arguments, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, home=home)
    assert result.exit_code == 2 and line in result.output
    assert list(tmp_path.iterdir()) == []


def test_report_is_written_also_when_mlflow_does_not_answer(home, tmp_path):
    result = run("report", "tiny", "--out", str(tmp_path / "out"), home=home)
    assert result.exit_code == 0, result.output
    assert "warning: not logged to MLflow" in result.output
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"index.html", "report.md", "comparison.csv", "comparison.json", "figures"}


@pytest.mark.parametrize("what", ["annealing", "sigmoid"])
@pytest.mark.parametrize(
    "name, magic", [("x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("x.pdf", b"%PDF")]
)
def test_plot_draws_the_method(what, name, magic, tmp_path):
    out = tmp_path / "new" / name
    result = CliRunner().invoke(main, ["plot", what, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(magic)


def test_other_files_of_the_output_directory_are_neither_changed_nor_logged(
    home, tmp_path, monkeypatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (tmp_path / "secret.env").write_text("password")
    assert run("report", "tiny", "--out", str(tmp_path), home=home).exit_code == 0
    assert (tmp_path / "secret.env").read_text() == "password"
    logged = {path.name for path in (home / "artifacts").rglob("*")}
    assert "index.html" in logged and "secret.env" not in logged


@pytest.mark.parametrize("command", [["report", "tiny"], ["plot", "sigmoid"]])
def test_an_output_path_that_cannot_be_written_is_an_error(home, tmp_path, command):
    """Exit 2 if a file is in the place of a directory or the reverse; 6 is for full disks."""
    (tmp_path / "x.png").mkdir()
    (tmp_path / "out").write_text("a file")
    out = tmp_path / ("out" if command[0] == "report" else "x.png")
    options = ["--home", str(home)] if command[0] == "report" else []
    result = CliRunner().invoke(main, [*command, "--out", str(out), *options])
    assert result.exit_code == 2, result.output
    assert f"error: --out {out}: " in result.output


def test_a_report_replaces_the_figures_of_an_older_one(home, tmp_path):
    assert run("report", "tiny", "--out", str(tmp_path), home=home).exit_code == 0
    (tmp_path / "figures" / "99-old.png").write_bytes(b"old")
    (tmp_path / "figures" / "mine.png").write_bytes(b"mine")
    assert run("report", "tiny", "--out", str(tmp_path), home=home).exit_code == 0
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert "99-old.png" not in names and "mine.png" in names


def test_a_study_with_nothing_to_compare_is_named(home):
    store = open_store(default_url(home))
    store.open_study(specs.study({"sgd": {"method": "mse"}}, name="never"))
    store.close()
    result = run("compare", "never", "tiny", home=home)
    assert result.exit_code == 0 and "sgd" in result.output
    assert "warning: never: left out, no trial is complete yet" in result.output
    result = run("compare", "never", home=home)
    assert result.exit_code == 2 and "never: nothing to compare yet" in result.output


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


def test_plot_refuses_an_unknown_file_type(tmp_path):
    result = CliRunner().invoke(main, ["plot", "sigmoid", "--out", str(tmp_path / "x.gif")])
    assert result.exit_code == 2 and "the file name must end in .png, .svg or .pdf" in result.output
    assert list(tmp_path.iterdir()) == []


EXPORT = ("export", "tiny", "--format", "optuna", "--out")


@pytest.mark.parametrize("foreign", ["text", "Optuna database"])
def test_export_never_replaces_what_ressmooth_did_not_write(home, tmp_path, foreign):
    out = tmp_path / "o.db"
    out.write_text("mine")
    if foreign != "text":
        out.unlink()
        optuna.create_study(storage=f"sqlite:///{out}")
    before = out.read_bytes()
    refused = run(*EXPORT, str(out), home=home)
    assert refused.exit_code == 2
    assert (
        "exists and was not written by ressmooth" in refused.stderr and "--force" in refused.stderr
    )
    assert out.read_bytes() == before
    assert run(*EXPORT, str(out), "--force", home=home).exit_code == 0
    assert run(*EXPORT, str(out), home=home).exit_code == 0  # now it is ours


@pytest.mark.parametrize("name", ["results.db", "runs/o.db"])
def test_no_command_replaces_files_of_the_home(home, name):
    before = (home / "results.db").read_bytes()
    refused = run(*EXPORT, str(home / name), "--force", home=home)
    assert refused.exit_code == 2 and "belongs to the home" in refused.stderr
    assert (home / "results.db").read_bytes() == before and not (home / "runs/o.db").exists()


@pytest.mark.parametrize("name", ["index.html", "report.md", "comparison.csv", "figures"])
def test_report_never_replaces_what_ressmooth_did_not_write(home, tmp_path, name):
    (tmp_path / name).write_text("mine")
    refused = run("report", "tiny", "--out", str(tmp_path), home=home)
    assert refused.exit_code == 2
    assert f"{name}: exists and was not written by ressmooth" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_the_modes_of_a_report_follow_the_umask(home, tmp_path):
    out = tmp_path / "report"
    (tmp_path / "report").mkdir(mode=0o750)
    before = os.umask(0o022)
    try:
        assert run("report", "tiny", "--out", str(out), home=home).exit_code == 0
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [out, *out.iterdir()]}
    assert modes["report"] == 0o750 and modes["figures"] == 0o755 and modes["index.html"] == 0o644


def test_plot_never_replaces_what_ressmooth_did_not_write(tmp_path):
    for suffix in ("png", "svg", "pdf"):
        out = tmp_path / f"x.{suffix}"
        out.write_text("mine")
        plot = ["plot", "sigmoid", "--out", str(out)]
        assert CliRunner().invoke(main, plot).exit_code == 2 and out.read_text() == "mine"
        assert CliRunner().invoke(main, [*plot, "--force"]).exit_code == 0
        assert CliRunner().invoke(main, plot).exit_code == 0


def test_study_is_a_command_like_the_others(home):
    listed = CliRunner().invoke(main, ["--help"]).output
    assert listed.index("  study ") < listed.index("  train ")
    done = run("study", str(home / "tiny.toml"), "--dry-run", home=home)
    assert done.exit_code == 0 and "worker" in done.output and "2 runs" in done.output


def test_list_names_no_best_arm_in_a_tie_and_no_dead_launcher(tmp_path):
    store = open_store(default_url(tmp_path))
    arms = {"sgd": {"method": "mse"}, "laplace": {"b": 0.5}}
    study = records.simulate(store, specs.study(arms, name="tied"), lambda config: 90.0)
    dead = subprocess.Popen(["true"])
    dead.wait()
    store.acquire(study.id, replace(Holder.here(), pid=dead.pid, token="dead"))
    store.close()
    output = run("list", home=tmp_path).output
    assert "2 arms tie at 90.00 %" in output and f"/{dead.pid}" not in output
