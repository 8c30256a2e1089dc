"""A trained study that the tests of the commands share."""

import os
import shutil
import subprocess
import sys

import pytest

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


@pytest.fixture
def mlflow_is_unreachable(monkeypatch):
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A study with a complete and a failed run."""
    home = tmp_path_factory.mktemp("trained")
    (home / "tiny.toml").write_text(STUDY)
    no_mlflow = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "ressmooth.study", str(home / "tiny.toml"), "--quiet"]
    done = subprocess.run(
        [*command, "--home", str(home)], capture_output=True, text=True, env=no_mlflow
    )
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture(scope="module")
def home(trained, tmp_path_factory):
    """That study for the tests of one file, which may change it."""
    return shutil.copytree(trained, tmp_path_factory.mktemp("home"), dirs_exist_ok=True)
