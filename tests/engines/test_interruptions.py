"""Studies that are killed, stopped and resumed, on both engines."""

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from helpers.launch import CURVES, RESULTS, TINY, command, epochs_recorded, query, wait_for
from helpers.servers import answering

SEARCH = """
name = "search"
dataset = "digits"
fraction = 0.2
epochs = 9
[search]
sampler = "tpe"
pruner = "{pruner}"
trials = 12
[arms.smooth]
b = {{ low = 0.05, high = 2.0, log = true }}
lr = {{ low = 1e-6, high = 0.5, log = true }}
"""
TRIALS = "SELECT number_in_branch, params, state, value FROM trial ORDER BY 1"
pytestmark = pytest.mark.slow


@pytest.fixture
def hanging_mlflow():
    with answering(200, hangs=True) as address:
        yield {"MLFLOW_TRACKING_URI": f"http://{address}"}


def test_a_killed_worker_is_replaced_and_its_run_resumes(engine, study, tmp_path, undisturbed):
    launcher = engine.start(study, tmp_path, "--workers", "2")
    epochs_recorded(tmp_path, 3)
    engine.workers(launcher)[0].kill()
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors
    assert "worker killed" in errors and "retry 1/3" in errors
    assert query(tmp_path, RESULTS) == query(undisturbed[0], RESULTS)
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)
    assert "not delivered" in errors and f"with: ressmooth sync --home {tmp_path}" in errors


def test_workers_die_with_a_killed_launcher_and_the_study_resumes(
    engine, study, tmp_path, undisturbed
):
    launcher = engine.start(study, tmp_path, "--workers", "2", "--quiet")
    epochs_recorded(tmp_path, 5)
    workers = engine.workers(launcher)
    assert workers
    launcher.kill()
    launcher.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    finished = query(tmp_path, "SELECT id, attempt FROM run WHERE state = 'complete'")
    resumed = engine.launch(study, tmp_path, "--workers", "2")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == undisturbed[1].stdout
    assert query(tmp_path, RESULTS) == query(undisturbed[0], RESULTS)
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)
    assert set(finished) <= set(query(tmp_path, "SELECT id, attempt FROM run"))


@pytest.mark.parametrize(
    ("number", "code", "resumes_on"),
    [
        (signal.SIGINT, 130, "same engine"),
        (signal.SIGTERM, 143, "other engine"),
        (signal.SIGHUP, 129, "same engine"),
    ],
)
def test_a_stopped_study_says_how_to_resume_and_either_engine_resumes_it(
    engine, local_engine, ray_engine, study, tmp_path, undisturbed, number, code, resumes_on
):
    launcher = engine.start(study, tmp_path, "--workers", "2")
    epochs_recorded(tmp_path, 3)
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == code
    assert errors.startswith("starting ") and "\nstopping after this epoch" in errors
    resume = re.search(r"Resume with: (.+)", errors).group(1)
    option = " --engine ray" if engine.name == "ray" else ""
    assert resume == f"ressmooth study {study}{option} --workers 2 --home {tmp_path}"
    assert query(tmp_path, "SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]
    assert query(tmp_path, "SELECT max(failures) FROM run") == [(0,)]
    assert query(tmp_path, "SELECT holder_pid FROM study") == [(None,)]
    other = local_engine if engine is ray_engine else ray_engine
    resuming = engine if resumes_on == "same engine" else other
    assert resuming.launch(study, tmp_path).returncode == 0
    assert query(tmp_path, RESULTS) == query(undisturbed[0], RESULTS)
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)


def test_a_study_ends_in_order_when_its_terminal_is_closed(study, tmp_path):
    """The kernel sends SIGHUP to all its processes, and writing to the terminal fails."""
    home = tmp_path / "home"
    pid, terminal = os.forkpty()
    if pid == 0:
        os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"
        os.execv(sys.executable, command(study, home, "--workers", "2"))
    epochs_recorded(home, 3)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
    assert query(home, "SELECT DISTINCT state FROM study") == [("stopped",)]
    assert query(home, "SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]
    assert query(home, "SELECT max(failures) FROM run") == [(0,)]


def test_nohup_ignores_that_the_terminal_is_closed(study, tmp_path, undisturbed):
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    launcher = subprocess.Popen(
        ["nohup", *command(study, tmp_path, "--workers", "2")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    epochs_recorded(tmp_path, 3)
    os.killpg(launcher.pid, signal.SIGHUP)
    assert launcher.communicate(timeout=120)[0] == undisturbed[1].stdout
    assert launcher.returncode == 0
    assert query(tmp_path, "SELECT max(attempt) FROM run") == [(1,)]


def test_a_second_signal_waits_neither_for_the_epoch_nor_for_mlflow(
    engine, study, tmp_path, hanging_mlflow
):
    """An epoch of ResNet56 on the synthetic images takes minutes."""
    big = ["--set", "dataset=synthetic", "--set", "model=resnet56", "--set", "fraction=1.0"]
    launcher = engine.start(study, tmp_path, "--workers", "1", *big, **hanging_mlflow)
    wait_for(lambda: query(tmp_path, "SELECT 1 FROM run WHERE state = 'running'"))
    workers = engine.workers(launcher)
    launcher.send_signal(signal.SIGINT)
    next(line for line in launcher.stderr if "Ctrl-C again to stop now" in line)
    launcher.send_signal(signal.SIGINT)  # only now: two that wait are one for Linux
    _, errors = launcher.communicate(timeout=20)
    assert launcher.returncode == 130 and "not delivered (stopped); send them later" in errors
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert workers and alive == []
    assert query(tmp_path, "SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]


@pytest.mark.parametrize("deleted", ["results.db", "the home"])
def test_a_database_deleted_under_a_study_is_said_to_be_gone(engine, study, tmp_path, deleted):
    study.write_text(TINY.format(epochs=1000))
    home = tmp_path / "home"
    launcher = engine.start(study, home, "--workers", "2")
    epochs_recorded(home, 3)
    if deleted == "the home":
        home.rename(tmp_path / "elsewhere")  # at once, while workers write
    else:
        (home / "results.db").unlink()
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 6
    assert "results.db is gone" in errors and "is lost unless you move it back" in errors
    assert "nothing is lost" not in errors and "kept" not in errors and "Traceback" not in errors
    assert home.exists() == (deleted == "results.db") and not (home / "results.db").exists()


@pytest.fixture(scope="module")
def searched(tmp_path_factory, local_engine):
    """TPE with each pruner, one run at a time, undisturbed on this machine."""

    def search(pruner):
        home = tmp_path_factory.mktemp(pruner)
        (home / "search.toml").write_text(SEARCH.format(pruner=pruner))
        done = local_engine.launch(home / "search.toml", home, "--workers", "1")
        assert done.returncode == 0, done.stderr
        return home

    return {pruner: search(pruner) for pruner in ("asha", "median")}


@pytest.mark.parametrize("pruner", ["asha", "median"])
def test_a_pruned_search_keeps_its_epochs_and_resumes_to_the_same_rows(
    engine, searched, pruner, tmp_path
):
    file, whole = tmp_path / "search.toml", searched[pruner]
    file.write_text(SEARCH.format(pruner=pruner))
    launcher = engine.start(file, tmp_path, "--workers", "1", "--quiet")
    epochs_recorded(tmp_path, 30)
    launcher.kill()
    launcher.wait()
    assert engine.launch(file, tmp_path, "--workers", "1").returncode == 0
    states = dict(query(tmp_path, "SELECT state, count(*) FROM trial GROUP BY state"))
    assert states.keys() == {"complete", "pruned"} and sum(states.values()) == 12
    pruned = "SELECT last_epoch, (SELECT count(*) FROM epoch WHERE run_id = run.id) FROM run "
    for last, recorded in query(tmp_path, pruned + "WHERE state = 'pruned'"):
        assert 1 <= last == recorded < 9
    assert query(tmp_path, TRIALS) == query(whole, TRIALS)
    assert query(tmp_path, RESULTS) == query(whole, RESULTS)
    assert query(tmp_path, CURVES) == query(whole, CURVES)
    assert list(tmp_path.glob("runs/*/epoch-*")) == []
