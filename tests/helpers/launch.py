"""Launch studies as a user does, and read the database that they write."""

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import psutil
from click.testing import CliRunner

from ressmooth.study import main

EPOCHS = 12  # enough to interrupt a run in the middle
TINY = """
name = "tiny"
dataset = "digits"
fraction = 0.2
epochs = {epochs}
seeds = 2

[arms.sgd]
method = "mse"
weight_decay = {{ grid = [1e-3, 1e-4] }}

[arms.laplace]
method = "smoothing"
b = {{ grid = [0.3, 0.5] }}
"""
RESULTS = """
    SELECT arm, params, seed, run.state, max_acc, mean_acc, weights_sha256
    FROM run JOIN trial ON trial.id = run.trial_id ORDER BY arm, params, seed
"""
CURVES = """
    SELECT arm, params, seed, epoch, train_loss, train_acc, val_loss, val_acc, lr, scale,
           diffusivity
    FROM epoch JOIN run ON run.id = epoch.run_id JOIN trial ON trial.id = run.trial_id
    ORDER BY arm, params, seed, epoch
"""
OF_RAY = ("ray::ResourceTrainable", "ray::Worker")  # titles of its processes that train
PLACINGS = """
    SELECT trial.arm, trial.params, result, seeds, rival.arm, chance, e_value
    FROM race JOIN trial ON trial.id = trial_id LEFT JOIN trial AS rival ON rival.id = rival_id
    ORDER BY trial.arm, trial.params
"""


def command(file, home, *options):
    return [sys.executable, "-m", "ressmooth.study", str(file), "--home", str(home), *options]


def launch(file, home, *options, env=None):
    return subprocess.run(command(file, home, *options), capture_output=True, text=True, env=env)


def invoke(file, home, *options, env=None):
    """Run the command in this process: for dry runs and errors, which train nothing."""
    arguments = [str(file), "--home", str(home), *options]
    return CliRunner().invoke(main, arguments, prog_name="study", env=env)


def answer_on_terminal(answer, *words):
    """Run a command of `ressmooth` on a terminal where somebody types `answer`."""
    terminal, theirs = os.openpty()
    os.write(terminal, answer)
    arguments = [sys.executable, "-m", "ressmooth.cli", *words]
    done = subprocess.run(arguments, stdin=theirs, capture_output=True, text=True, timeout=60)
    os.close(terminal)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    return done


def query(home, sql):
    # rw: after a kill -9 the first reader recovers the log, which mode=ro may not
    with closing(sqlite3.connect(f"file:{home}/results.db?mode=rw", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except sqlite3.OperationalError:
            pass  # not there yet
        time.sleep(0.02)
    raise AssertionError(f"not true after {seconds} s")


def freeze(processes, database):
    """Stop them outside a transaction, because one would block everybody."""

    def frozen():
        for process in processes:
            process.suspend()
        try:
            with closing(sqlite3.connect(database, timeout=0)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                return True
        except sqlite3.OperationalError:
            for process in processes:
                process.resume()
            return False

    wait_for(frozen)


def epochs_recorded(home, at_least):
    return wait_for(lambda: query(home, "SELECT count(*) FROM epoch")[0][0] >= at_least)


def workers_of(launcher):
    """Return the processes that train: children of the launcher's fork server or of its Ray."""
    return [
        worker
        for child in psutil.Process(launcher.pid).children()
        for worker in child.children(recursive=True)
        if "raylet" not in _title(child) or _title(worker).startswith(OF_RAY)
    ]


def _title(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
