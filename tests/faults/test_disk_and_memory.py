"""A full disk, damaged files, too little memory: nothing recorded is lost."""

import os
import shutil
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from helpers.launch import (
    CURVES,
    EPOCHS,
    RESULTS,
    TINY,
    command,
    epochs_recorded,
    launch,
    query,
    wait_for,
    workers_of,
)

from ressmooth.training.checkpoint import sha256

NO_MLFLOW = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
CHECKPOINTS = """
    SELECT uid, epoch, checkpoint_sha256 FROM run JOIN epoch ON run.id = run_id ORDER BY 1, 2
"""
HALFWAY = "SELECT 1 FROM run WHERE state = 'running' AND last_epoch BETWEEN 2 AND 9"
pytestmark = pytest.mark.slow


def fill(place):
    """Fill a disk. Return the file to remove again."""
    with open(place / "ballast", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return place / "ballast"


def test_a_disk_that_fills_up_under_checkpoints(small_disk, study, calm, tmp_path):
    (tmp_path / "runs").symlink_to(small_disk)
    launcher = subprocess.Popen(
        command(study, tmp_path), env=NO_MLFLOW, stderr=subprocess.PIPE, text=True
    )
    epochs_recorded(tmp_path, 3)
    ballast = fill(small_disk)
    said = launcher.communicate(timeout=60)[1]
    assert launcher.returncode == 6, said
    assert "No space left on device" in said and "The previous file is unchanged" in said
    assert "Traceback" not in said
    newest = {uid: (epoch, digest) for uid, epoch, digest in query(tmp_path, CHECKPOINTS)}
    for uid, (epoch, digest) in newest.items():
        path = tmp_path / "runs" / uid / f"epoch-{epoch:06d}.pt"
        assert not path.exists() or sha256(path.read_bytes()) == digest
    assert not list(small_disk.glob("*/*.tmp"))
    ballast.unlink()
    assert launch(study, tmp_path, env=NO_MLFLOW).returncode == 0
    assert [query(tmp_path, sql) for sql in (RESULTS, CURVES)] == calm


def test_a_disk_that_fills_up_under_the_database(small_disk, study, calm, tmp_path):
    url = f"sqlite:///{small_disk}/results.db"
    environment = {**NO_MLFLOW, "RESSMOOTH_DATABASE_URL": url}
    launcher = subprocess.Popen(
        command(study, tmp_path), env=environment, stderr=subprocess.PIPE, text=True
    )
    epochs_recorded(small_disk, 3)
    ballast = fill(small_disk)
    said = launcher.communicate(timeout=120)[1]
    assert launcher.returncode == 6, said
    assert "database or disk is full" in said and "Recorded results are kept" in said
    assert "Traceback" not in said
    ballast.unlink()
    assert query(small_disk, "PRAGMA quick_check") == [("ok",)]
    assert query(small_disk, "SELECT count(*) FROM epoch")[0][0] >= 3
    assert launch(study, tmp_path, env=environment).returncode == 0
    assert [query(small_disk, sql) for sql in (RESULTS, CURVES)] == calm


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "a bit flipped": flip_a_bit,
    "text": lambda path: path.write_text("not a checkpoint"),
    "another's": lambda path: shutil.copy(
        next(p for p in path.parent.parent.glob("*/epoch-*.pt") if p.parent != path.parent), path
    ),
    "gone": lambda path: path.unlink(),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A home whose launcher was killed in the middle of two runs."""
    home = tmp_path_factory.mktemp("stopped")
    (home / "tiny.toml").write_text(TINY.format(epochs=EPOCHS))
    launcher = subprocess.Popen(
        command(home / "tiny.toml", home, "--workers", "2"),
        env=NO_MLFLOW,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: len(query(home, HALFWAY)) == 2)
    launcher.kill()
    launcher.wait()
    return home


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoints_are_found_and_cost_an_epoch(damage, stopped, calm, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(stopped, home)
    before = query(home, CURVES)
    newest = {path.parent: path for path in sorted(home.glob("runs/*/epoch-*.pt"))}
    assert len(newest) == 2
    for path in newest.values():
        DAMAGE[damage](path)
    done = launch(home / "tiny.toml", home, env=NO_MLFLOW)
    assert done.returncode == 0, done.stderr
    assert set(before) <= set(query(home, CURVES))
    assert [query(home, sql) for sql in (RESULTS, CURVES)] == calm


@pytest.fixture
def short_memory():
    """A new memory cgroup, and the file that limits its memory."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")  # versions of cgroups
    group = (first if first.is_dir() else second) / f"ressmooth-{uuid.uuid4().hex}"
    limit = "memory.limit_in_bytes" if first.is_dir() else "memory.max"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("cgroups cannot be created here")
    if not (group / limit).exists():
        group.rmdir()
        pytest.skip("cgroups here have no memory limit")
    yield group, group / limit
    # workers end a moment after their launcher
    wait_for(lambda: not (group / "cgroup.procs").read_text(), seconds=30)
    group.rmdir()


def test_a_run_for_which_the_kernel_has_no_memory(short_memory, study, calm, tmp_path):
    group, limit = short_memory
    limit.write_text(str(300 * 2**20))
    for name, most in (("memory.memsw.limit_in_bytes", 300 * 2**20), ("memory.swap.max", 0)):
        if (group / name).exists():
            (group / name).write_text(str(most))
    big = '[arms.big]\nmodel = "resnet20"\ndataset = "synthetic"\nbatch_size = 1280\n'
    study.write_text(f"{study.read_text()}\n{big}")
    launcher = subprocess.Popen(
        command(study, tmp_path, "--workers", "1"), env=NO_MLFLOW, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: workers_of(launcher))
    for process in psutil.Process(launcher.pid).children(recursive=True):
        (group / "cgroup.procs").write_text(str(process.pid))
    said = launcher.communicate(timeout=300)[1]
    assert launcher.returncode == 0, said
    assert "worker killed by signal 9, possibly out of memory, retry 3/3 from epoch 0" in said
    failed = "SELECT DISTINCT run.state, error FROM run JOIN trial ON trial.id = trial_id "
    assert query(tmp_path, f"{failed} WHERE arm = 'big'") == [
        ("failed", "worker killed by signal 9, possibly out of memory; gave up after 3 retries")
    ]
    others = RESULTS.replace("ORDER BY", "WHERE arm != 'big' ORDER BY")
    assert query(tmp_path, others) == calm[0]
