"""Attacks on whole studies: limits of the system, PostgreSQL that refuses, planted files.

Each study must end as an undisturbed one, or stop with an exit code and resume to the same rows.
The chaos tier has those that take longer.
"""

import os
import pickle
import random
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from helpers.commands import run
from helpers.launch import (
    CURVES,
    EPOCHS,
    RESULTS,
    TINY,
    command,
    epochs_recorded,
    launch,
    query,
)
from helpers.serving import alike

from ressmooth.store import open_store

ASSETS = Path(__file__).parent.parent / "store" / "assets"
NO_MLFLOW = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}


def start(file, home, environment=NO_MLFLOW, **options):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = command(file, home, "--workers", "2")
    return subprocess.Popen(words, env=environment, **pipes, **options)


def resumes(study, home, calm):
    """Launch again, and tell whether the rows are those of the undisturbed study."""
    done = launch(study, home, "--workers", "2", env=NO_MLFLOW)
    assert done.returncode == 0, done.stderr
    return [query(home, sql) for sql in (RESULTS, CURVES)] == calm


@pytest.mark.chaos
def test_a_home_that_has_become_read_only(small_disk, study, calm):
    """As after a crash on a disk with errors."""
    home = small_disk / "home"
    launcher = start(study, home)
    epochs_recorded(home, 3)
    launcher.kill()
    launcher.communicate()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        refused = launch(study, home, "--workers", "2", env=NO_MLFLOW)
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert refused.returncode in (2, 6), refused.stderr
    assert "error: " in refused.stderr and "Traceback" not in refused.stderr
    assert query(home, "PRAGMA quick_check") == [("ok",)]
    assert resumes(study, home, calm)


@pytest.mark.slow
def test_few_open_files(study, tmp_path, calm):

    def set_limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    launcher = start(study, tmp_path, preexec_fn=set_limit)
    _, said = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    assert [query(tmp_path, sql) for sql in (RESULTS, CURVES)] == calm


@pytest.mark.chaos
def test_too_little_address_space_is_an_error_and_loses_nothing(study, tmp_path, calm):
    """As with `ulimit -v`: torch cannot be loaded."""

    def set_limit():
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))

    launcher = start(study, tmp_path / "home", preexec_fn=set_limit)
    _, said = launcher.communicate(timeout=300)
    assert launcher.returncode not in (0, -6, -11), said
    assert "error: " in said and "Traceback" not in said.partition("error: ")[2]
    assert resumes(study, tmp_path / "home", calm)


def cut_connections(connection):
    """Cut every connection of the study now and then."""
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    connection.execute(cut, ["ressmooth"])
    time.sleep(1.0)


def fill_connections(connection):
    """Leave no free connection for some seconds: new ones are refused."""
    held = []
    with suppress(psycopg.OperationalError):
        while True:
            held.append(psycopg.connect(connection.info.dsn, application_name="greedy"))
    cut_connections(connection)
    time.sleep(3.0)
    for each in held:
        each.close()
    time.sleep(2.0)


def fail_over(connection):
    """Be read-only for some seconds, as a standby before it is promoted."""
    for mode, seconds in (("on", 3.0), ("off", 2.0)):
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {mode}")
        cut_connections(connection)
        time.sleep(seconds)


def limit_statements(connection):
    """Cancel every statement that waits, while tables are locked for longer."""
    name = connection.info.dbname
    connection.execute(f"ALTER DATABASE {name} SET statement_timeout = 100")
    cut_connections(connection)
    with psycopg.connect(connection.info.dsn) as other:
        other.execute("LOCK TABLE run, epoch IN EXCLUSIVE MODE")
        time.sleep(1.0)
    time.sleep(1.0)


@contextmanager
def attacked(url, attack):
    """Repeat an attack from another thread, then put things right."""
    over = threading.Event()

    def repeat():
        with psycopg.connect(url, autocommit=True, application_name="attacker") as connection:
            connection.execute("SET default_transaction_read_only = off")
            while not over.is_set():
                attack(connection)

    thread = threading.Thread(target=repeat)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.chaos
@pytest.mark.parametrize("attack", [cut_connections, fill_connections, fail_over, limit_statements])
def test_a_study_outlives_a_postgresql_that_refuses(own_postgres, study, tmp_path, calm, attack):
    url = own_postgres.get_uri()
    open_store(url).close()
    launcher = start(study, tmp_path, {**NO_MLFLOW, "RESSMOOTH_DATABASE_URL": url})
    with attacked(url, attack):
        time.sleep(15.0)
    _, said = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    with psycopg.connect(url) as connection:
        rows = [
            connection.execute(sql.partition("ORDER BY")[0]).fetchall() for sql in (RESULTS, CURVES)
        ]
        assert connection.execute("SELECT max(failures) FROM run").fetchone() == (0,)
    assert [alike(found) for found in rows] == [alike(found) for found in calm]


class Planted:
    """Runs code when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.slow
def test_planted_pickles_are_never_executed(study, tmp_path, calm):
    """In place of checkpoints, whose hashes are recorded."""
    study.write_text(TINY.format(epochs=EPOCHS))
    launcher = start(study, tmp_path)
    epochs_recorded(tmp_path, 3)
    launcher.kill()
    launcher.communicate()
    planted = pickle.dumps(Planted(tmp_path / "owned"))
    places = [*tmp_path.glob("runs/*/epoch-*.pt")]
    assert places
    for path in places:
        path.write_bytes(planted)
    assert resumes(study, tmp_path, calm)
    assert not (tmp_path / "owned").exists()


COMMANDS = (
    ("list",),
    ("show", "tiny"),
    ("compare", "tiny"),
    ("queue",),
    ("workers",),
    ("logs", "tiny"),
    ("export", "tiny"),
    ("sync",),
    ("doctor",),
    ("clean", "--yes"),
    ("db", "upgrade"),
    ("retry", "tiny", "--failed"),
    ("rename", "tiny", "other"),
    ("delete", "tiny", "--yes"),
    ("study", "tiny"),
)


@pytest.mark.slow
def test_every_command_beside_a_running_launcher_leaves_it_alone(study, tmp_path, calm):
    launcher = start(study, tmp_path)
    epochs_recorded(tmp_path, 2)
    codes = {}
    for words in COMMANDS:
        if launcher.poll() is None:
            done = run(*words, home=tmp_path)
            codes[words[0]] = done.exit_code
            assert done.exception is None or isinstance(done.exception, SystemExit), words
    _, said = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, said
    refused = {"retry", "rename", "delete", "study"} & codes.keys()
    assert {codes[name] for name in refused} <= {3}, codes
    assert [query(tmp_path, sql) for sql in (RESULTS, CURVES)] == calm


@pytest.mark.chaos
def test_a_study_without_room_for_a_commit_of_sqlite(small_disk, study, calm):
    """The pages run out inside a commit, again and again, at random places."""
    home, chance = small_disk / "home", random.Random(0)
    for _ in range(3):
        launcher = start(study, home)
        epochs = query(home, "SELECT count(*) FROM epoch")[0][0] if home.exists() else 0
        epochs_recorded(home, epochs + chance.randrange(1, 6))
        ballast = small_disk / "ballast"
        with open(ballast, "wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"\0" * chance.choice((512, 4096)))
        _, said = launcher.communicate(timeout=120)
        assert launcher.returncode == 6, said
        ballast.unlink()
        assert query(home, "PRAGMA quick_check") == [("ok",)]
    assert resumes(study, home, calm)


@pytest.mark.slow
def test_a_kill_in_the_middle_of_an_upgrade_changes_nothing_or_everything(tmp_path):
    old = ASSETS / "store_0001.db"
    home, chance = tmp_path / "home", random.Random(0)
    home.mkdir()
    (home / "results.db").write_bytes(old.read_bytes())
    upgrade = [sys.executable, "-m", "ressmooth.cli", "db", "upgrade", "--home", str(home)]
    began = time.monotonic()
    subprocess.run([*upgrade[:-1], str(tmp_path / "timed")], check=True, capture_output=True)
    seconds = time.monotonic() - began
    for _ in range(6):
        process = subprocess.Popen(upgrade, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.5, 1.0) * seconds)
        process.kill()
        process.wait()
        assert query(home, "PRAGMA quick_check") == [("ok",)]
        versions = {row[0] for row in query(home, "SELECT version_num FROM ressmooth_version")}
        assert len(versions) == 1
    done = subprocess.run(upgrade, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(f"file:{old}?mode=ro", uri=True)) as connection:
        runs = connection.execute("SELECT count(*) FROM run").fetchall()
    assert query(home, "SELECT count(*) FROM run") == runs
