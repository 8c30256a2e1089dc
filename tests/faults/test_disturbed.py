"""A disk with errors, a clock that jumps, planted data: the study ends with the same rows."""

import os
import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.launch import CURVES, RESULTS, command, epochs_recorded, launch, query

from ressmooth.training.checkpoint import sha256
from ressmooth.training.data import Images
from ressmooth.training.datasets import load

NO_MLFLOW = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
SOURCE = Path(__file__).parent.parent / "helpers" / "disturbed.c"
CHECKPOINTS = "SELECT uid, epoch FROM run JOIN epoch ON run.id = run_id"
OWN = """
name = "own"
dataset = "npz:{path}"
epochs = 3
seeds = 2
batch_size = 16
[arms.sgd]
method = "mse"
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """What is preloaded into processes whose disk or clock is disturbed."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler here: apt-get install gcc")
    library = tmp_path_factory.mktemp("preloaded") / "disturbed.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


def start(file, home, **environment):
    return subprocess.Popen(
        command(file, home, "--workers", "2"),
        env=NO_MLFLOW | {name: str(value) for name, value in environment.items()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("below", "writes"),
    [
        pytest.param("runs", False, id="checkpoints cannot be synced"),
        pytest.param(
            "results.db", False, id="the database cannot be synced", marks=pytest.mark.chaos
        ),
        pytest.param("", True, id="nothing can be written"),
    ],
)
def test_input_output_errors_stop_the_study_and_lose_nothing(
    library, study, tmp_path, calm, below, writes
):
    home, log, switch = tmp_path / "home", tmp_path / "failed", tmp_path / "switch"
    failing = {"FAIL_IF": switch, "FAIL_BELOW": home / below, "FAIL_LOG": log}
    launcher = start(study, home, LD_PRELOAD=library, **failing)
    epochs_recorded(home, 3)
    switch.write_text("writes" if writes else "")
    _, said = launcher.communicate(timeout=300)
    assert launcher.returncode == 6, said
    assert "Traceback" not in said
    failed = [Path(line) for line in log.read_text().splitlines()]
    assert failed
    # an epoch is recorded only if its checkpoint is on the disk
    unsynced = {(p.parent.name, p.name.partition(".")[0]) for p in failed if ".pt." in p.name}
    recorded = {(uid, f"epoch-{epoch:06d}") for uid, epoch in query(home, CHECKPOINTS)}
    assert not unsynced & recorded
    assert query(home, "PRAGMA quick_check") == [("ok",)]
    assert set(query(home, CURVES)) <= set(calm[1])
    done = launch(study, home, "--workers", "2", env=NO_MLFLOW)
    assert done.returncode == 0, done.stderr
    assert [query(home, sql) for sql in (RESULTS, CURVES)] == calm


@pytest.mark.chaos
def test_a_clock_that_jumps_by_an_hour_changes_nothing(library, study, tmp_path, calm):
    """Also for a second launcher, which must not take the study from the living one."""
    home, clock = tmp_path / "home", tmp_path / "clock"
    clock.write_text("0")
    launcher = start(study, home, LD_PRELOAD=library, CLOCK_OFFSET=clock)
    for epochs, seconds in ((2, 3600), (20, -3600)):
        epochs_recorded(home, epochs)
        clock.write_text(str(seconds))
        second = start(study, home, LD_PRELOAD=library, CLOCK_OFFSET=clock)
        _, said = second.communicate(timeout=300)
        assert second.returncode == 3, said
    _, said = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    assert query(home, "SELECT max(failures), max(attempt) FROM run") == [(0, 1)]
    assert [query(home, sql) for sql in (RESULTS, CURVES)] == calm


class Planted:
    """Runs code when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def other_content(path, marker):
    parts = torch.load(path, weights_only=True)
    parts["train"]["labels"] = 1 - parts["train"]["labels"]
    torch.save(parts, path)


def other_shape(path, marker):
    parts = torch.load(path, weights_only=True)
    parts["train"]["pixels"] = parts["train"]["pixels"][:5, :4]
    torch.save(parts, path)


PLANTED = {
    "other content": other_content,
    "another shape": other_shape,
    "truncated": lambda path, marker: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path, marker: path.write_bytes(b""),
    "a pickle": lambda path, marker: path.write_bytes(pickle.dumps(Planted(marker))),
    "torch's pickle": lambda path, marker: torch.save({"train": Planted(marker)}, path),
}


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """A home with an ended study of the user's own data, which was decoded."""
    directory = tmp_path_factory.mktemp("decoded")
    draw = np.random.default_rng(0)
    arrays = {
        f"{name}_{part}": values
        for part, number in (("train", 64), ("test", 20))
        for name, values in (
            ("x", draw.integers(0, 256, (number, 8, 8), dtype=np.uint8)),
            ("y", np.arange(number) % 2),
        )
    }
    np.savez(directory / "own.npz", **arrays)
    file = directory / "own.toml"
    file.write_text(OWN.format(path=directory / "own.npz"))
    done = launch(file, directory / "home", env=NO_MLFLOW)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize("renamed", [False, True], ids=["", "named after its hash"])
def test_planted_data_is_never_executed_nor_trained_on(decoded, tmp_path, renamed):
    expected = load(f"npz:{decoded}/own.npz", decoded / "home" / "data")
    for what, plant in PLANTED.items():
        root = tmp_path / what.replace(" ", "-").replace("'", "")
        shutil.copytree(decoded / "home" / "data", root)
        (path,) = root.glob("*.pt")
        plant(path, tmp_path / "owned")
        if renamed:
            path.rename(path.with_stem(f"{path.stem[:-64]}{sha256(path.read_bytes())}"))
        found = load(f"npz:{decoded}/own.npz", root)
        assert found.sha256 == expected.sha256, what
        assert torch.equal(found.train.labels, expected.train.labels), what
        assert found.train.pixels.shape == expected.train.pixels.shape, what
    assert not (tmp_path / "owned").exists()


def test_a_study_refuses_planted_data_that_has_a_right_hash_of_its_own(decoded, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(decoded / "home", home)
    (path,) = (home / "data").glob("*.pt")
    parts = torch.load(path, weights_only=True)
    parts["train"]["labels"] = 1 - parts["train"]["labels"]
    images = [Images(**parts[name]).sha256() for name in ("train", "test")]
    parts["sha256"] = sha256("".join(images).encode())
    torch.save(parts, path)
    path.rename(path.with_stem(f"{path.stem[:-64]}{sha256(path.read_bytes())}"))
    before = query(home, CURVES)
    done = launch(decoded / "own.toml", home, "--set", "seeds=3", env=NO_MLFLOW)
    assert done.returncode == 2 and "content has changed" in done.stderr, done.stderr
    assert query(home, CURVES) == before
