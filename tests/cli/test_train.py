import csv
import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ressmooth.cli import main
from ressmooth.config import COSTS
from ressmooth.training.checkpoint import sha256

TINY = ["train", "--dataset", "digits", "--fraction", "0.2", "--epochs", "3", "--threads", "1"]


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_train_writes_config_curves_figure_and_checkpoint(tmp_path):
    result = run(*TINY, "--out", tmp_path, "--b", "0.3")
    assert result.exit_code == 0, result.output
    assert "max accuracy" in result.output
    assert json.loads((tmp_path / "config.json").read_text())["b"] == 0.3
    rows = list(csv.DictReader((tmp_path / "curves.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    best = max(float(row["val_acc"]) for row in rows)
    assert f"max accuracy {best:.2f} %" in result.output
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (checkpoint,) = tmp_path.glob("checkpoint-*.pt")
    assert checkpoint.stem == f"checkpoint-{sha256(checkpoint.read_bytes())}"


def test_progress_is_one_line_per_epoch_on_stderr(tmp_path):
    result = run(*TINY, "--out", tmp_path)
    first, second, *lines = result.stderr.splitlines()
    assert first.split() == ["train", "train", "validation", "validation"]
    assert second.split() == "epoch loss accuracy loss accuracy scale time left".split()
    assert [line.split()[0] for line in lines] == ["1/3", "2/3", "3/3"]
    assert max(len(line) for line in (first, second, *lines)) <= 80
    (row, *_) = csv.DictReader((tmp_path / "curves.csv").open())
    shown = dict(zip(second.split()[1:3], lines[0].split()[1:3], strict=True))
    assert shown["loss"] == f"{float(row['train_loss']):.4f}"
    assert f"{float(row['val_acc']):.2f} %" in lines[0]
    assert "loss" not in result.stdout and "nothing is kept" not in result.stderr


def test_without_out_the_first_line_says_that_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*TINY)
    assert result.stderr.splitlines()[0] == "nothing is kept: no --out given"
    assert os.listdir(tmp_path) == []


def test_a_stopped_run_says_how_to_resume_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = ["--out", "two words", "--data", "my data"]
    command = [sys.executable, "-m", "ressmooth.cli", *TINY, "--epochs", "500", *out]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.lstrip().startswith("2/500 "):
            process.send_signal(signal.SIGINT)
            break
    said = process.stderr.read()
    assert process.wait() == 130
    hint = said.partition("resume with: ")[2].strip()
    assert hint == "ressmooth train --out 'two words' --resume --data 'my data'"


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_curve(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = [*TINY, "--epochs", "6"]
    run(*arguments, "--out", whole)
    command = [sys.executable, "-m", "ressmooth.cli", *arguments, "--out", str(killed)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.lstrip().startswith("2/"):
            process.kill()
    process.wait()
    result = run("train", "--out", killed, "--resume")
    assert result.exit_code == 0, result.output

    def curve(directory):
        rows = list(csv.DictReader((directory / "curves.csv").open()))
        return [{k: v for k, v in row.items() if k not in COSTS} for row in rows]

    assert curve(killed) == curve(whole)


def test_an_existing_run_is_not_overwritten(tmp_path):
    run(*TINY, "--out", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("checkpoint-*.pt")}
    result = run(*TINY, "--out", tmp_path)
    assert result.exit_code == 2
    assert "--resume" in result.stderr
    assert {path: path.read_bytes() for path in tmp_path.glob("checkpoint-*.pt")} == before


@pytest.mark.parametrize("name", ["config.json", "curves.csv", "curves.png"])
def test_train_never_replaces_what_ressmooth_did_not_write(tmp_path, name):
    (tmp_path / name).write_text("mine")
    result = run(*TINY, "--out", tmp_path)
    refused = f"error: --out {tmp_path / name}: exists and was not written by ressmooth"
    assert result.exit_code == 2 and result.stderr.startswith(refused)
    assert "epoch" not in result.stderr  # nothing was begun
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_force_replaces_them_and_a_run_killed_in_its_first_epoch_needs_no_force(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    assert run(*TINY, "--out", tmp_path, "--force").exit_code == 0
    for path in tmp_path.glob("checkpoint-*"):
        path.unlink()
    assert run(*TINY, "--out", tmp_path).exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("place", ["a file", "home/runs"])
def test_train_writes_neither_over_a_file_nor_among_the_files_of_the_home(
    tmp_path, monkeypatch, place
):
    monkeypatch.setenv("RESSMOOTH_HOME", str(tmp_path / "home"))
    (tmp_path / "a file").write_text("mine")
    result = run(*TINY, "--out", tmp_path / place, "--force")
    assert result.exit_code == 2 and result.stderr.startswith(f"error: --out {tmp_path / place}")
    assert result.stderr.count("\n") == 1 and os.listdir(tmp_path) == ["a file"]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty"])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    run(*TINY, "--out", tmp_path)
    (checkpoint,) = tmp_path.glob("checkpoint-*.pt")
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    contents = {"flipped": bytes(content), "truncated": bytes(content[:-1]), "empty": b""}
    checkpoint.write_bytes(contents[damage])
    result = run("train", "--out", tmp_path, "--resume")
    assert result.exit_code == 5
    assert f"Checkpoint {checkpoint} is damaged" in result.stderr
    assert checkpoint.read_bytes() == contents[damage]


def test_the_intact_one_of_two_checkpoints_is_resumed(tmp_path):
    run(*TINY, "--out", tmp_path)
    (tmp_path / f"checkpoint-{'0' * 64}.pt").write_bytes(b"killed between write and unlink")
    result = run("train", "--out", tmp_path, "--resume")
    assert result.exit_code == 0, result.stderr


def test_resuming_needs_a_checkpoint(tmp_path):
    run(*TINY, "--out", tmp_path)
    for path in tmp_path.glob("checkpoint-*.pt"):
        path.unlink()
    result = run("train", "--out", tmp_path, "--resume")
    assert result.exit_code == 2 and "holds no checkpoint" in result.stderr


def test_resuming_with_other_settings_is_refused(tmp_path):
    run(*TINY, "--out", tmp_path)
    result = run("train", "--out", tmp_path, "--resume", "--lr", "0.3")
    assert result.exit_code == 2
    assert "lr is 0.1, not 0.3" in result.stderr


def test_resuming_with_other_threads_warns(tmp_path):
    run(*TINY, "--out", tmp_path)
    result = run("train", "--out", tmp_path, "--resume", "--threads", "2")
    assert "resumed with 2 threads (was 1)" in result.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--resume"], ["--resume needs --out"]),
        (["--resume", "--out", "nowhere"], ["nowhere holds no run to resume"]),
        (["--lr", "-1", "--fraction", "2"], ["lr = -1.0", "fraction = 2.0"]),
        (["--method", "mze"], ["'mse'", "'smoothing'", "'adaptive_decay'"]),
        (["--optimizer", "sdg"], ["'sgd'", "'adam'", "'adagrad'"]),
    ],
)
def test_errors_are_named_and_nothing_is_created(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = run("train", *arguments)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_diverged_run_names_the_epoch_and_a_remedy(tmp_path):
    result = run(*TINY, "--method", "mse", "--output", "identity", "--lr", "100000")
    assert result.exit_code == 7
    assert result.stderr.splitlines()[-1].startswith("error: diverged at epoch 1")
    assert "--lr" in result.stderr


def test_help_loads_no_heavy_library():
    heavy = "torch numpy scipy sklearn matplotlib mlflow optuna ray sqlalchemy"
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.cli import main\n"
        "for a in (['--help'], ['train', '--help'], ['bench', '--help']):\n"
        "    assert CliRunner().invoke(main, a).exit_code == 0\n"
        f"print([m for m in {heavy.split()} if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.strip() == "[]"
