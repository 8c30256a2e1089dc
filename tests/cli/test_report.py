"""`ressmooth report`: what it writes, replaces and leaves alone."""

import os

import pytest
from click.testing import CliRunner
from helpers.commands import run

from ressmooth.cli import main

pytestmark = pytest.mark.usefixtures("mlflow_is_unreachable")


def test_report_is_written_also_when_mlflow_does_not_answer(home, tmp_path):
    result = run("report", "tiny", "--out", str(tmp_path / "out"), home=home)
    assert result.exit_code == 0, result.output
    assert "warning: not in MLflow yet" in result.stderr
    assert f"deliver it later with: ressmooth sync --home {home}" in result.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"index.html", "report.md", "comparison.csv", "comparison.json", "figures"}


def test_other_files_of_the_output_directory_are_neither_changed_nor_logged(
    home, tmp_path, monkeypatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (tmp_path / "secret.env").write_text("password")
    assert run("report", "tiny", "--out", str(tmp_path), home=home).exit_code == 0
    assert (tmp_path / "secret.env").read_text() == "password"
    assert run("sync", home=home).exit_code == 0
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
    (tmp_path / "figures" / "98-old.svg").write_bytes(b"old")
    (tmp_path / "figures" / "mine.png").write_bytes(b"mine")
    assert run("report", "tiny", "--out", str(tmp_path), home=home).exit_code == 0
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert not names & {"99-old.png", "98-old.svg"} and "mine.png" in names


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
