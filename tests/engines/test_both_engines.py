"""One contract for both engines: workers of this machine, and Ray Tune on a real Ray."""

import os
import re
import signal
import subprocess

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
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
CONFIRM = ("--set", "confirm=2", "--set", "seeds=1")
TRIALS = "SELECT number_in_branch, params, state, value FROM trial ORDER BY 1"


class Engine:
    """Launches studies where no MLflow answers: it must not matter."""

    def __init__(self, name, **environment):
        self.options = ["--engine", name]
        self.environment = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
        self.environment |= environment

    def launch(self, file, home, *options, **changes):
        environment = {**self.environment, **changes}
        return launch(file, home, *self.options, *options, env=environment)

    def start(self, file, home, *options):
        return subprocess.Popen(
            command(file, home, *self.options, *options),
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )


@pytest.fixture(scope="module", params=["optuna", "ray"])
def engine(request):
    if request.param == "optuna":
        return Engine("optuna")
    return Engine("ray", RAY_ADDRESS=request.getfixturevalue("ray_address"))


@pytest.fixture(scope="module")
def whole(engine, undisturbed, tmp_path_factory):
    """The tiny study by this engine, with the embedded MLflow."""
    if "optuna" in engine.options:
        return undisturbed
    home = tmp_path_factory.mktemp("whole")
    (home / "tiny.toml").write_text(TINY.format(epochs=EPOCHS))
    done = engine.launch(home / "tiny.toml", home, "--workers", "2", MLFLOW_TRACKING_URI="")
    assert done.returncode == 0, done.stderr
    return home, done


def test_a_study_trains_every_cell_with_every_seed(whole):
    home, done = whole
    results = query(home, RESULTS)
    assert len(results) == 8
    assert {row[3] for row in results} == {"complete"}
    assert query(home, "SELECT count(*) FROM epoch") == [(8 * EPOCHS,)]
    assert query(home, "SELECT DISTINCT state FROM trial") == [("complete",)]
    assert "sgd" in done.stdout and "laplace" in done.stdout
    assert "next: ressmooth report tiny --out report" in done.stdout
    assert query(home, "SELECT count(*) FROM outbox WHERE sent_at IS NULL") == [(0,)]


def test_both_engines_leave_the_same_rows_curves_weights_and_table(whole, undisturbed):
    assert query(whole[0], RESULTS) == query(undisturbed[0], RESULTS)
    assert query(whole[0], CURVES) == query(undisturbed[0], CURVES)
    assert whole[1].stdout == undisturbed[1].stdout


def test_weights_on_disk_are_the_ones_in_the_store(whole):
    home, _ = whole
    for uid, recorded in query(home, "SELECT uid, weights_sha256 FROM run"):
        assert sha256((home / "runs" / uid / "best.safetensors").read_bytes()) == recorded
    assert list(home.glob("runs/*/epoch-*")) == []


def test_launching_again_trains_nothing_and_prints_the_same(whole, engine):
    home, done = whole
    before = query(home, RESULTS)
    again = engine.launch(home / "tiny.toml", home)
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert query(home, RESULTS) == before
    assert query(home, "SELECT max(attempt) FROM run") == [(1,)]


def test_a_killed_worker_is_replaced_and_its_run_goes_on(engine, study, tmp_path, undisturbed):
    launcher = engine.start(study, tmp_path, "--workers", "2")
    epochs_recorded(tmp_path, 3)
    workers_of(launcher)[0].kill()
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors
    assert "worker killed" in errors and "retry 1/3" in errors
    assert query(tmp_path, RESULTS) == query(undisturbed[0], RESULTS)
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)
    assert "tracking events not delivered" in errors and 'run "ressmooth sync"' in errors


def test_a_killed_launcher_takes_its_workers_along_and_can_be_resumed(
    engine, study, tmp_path, undisturbed
):
    launcher = engine.start(study, tmp_path, "--workers", "2", "--quiet")
    epochs_recorded(tmp_path, 5)
    workers = workers_of(launcher)
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


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_study_says_how_to_resume(engine, study, tmp_path, undisturbed, number, code):
    launcher = engine.start(study, tmp_path, "--workers", "2")
    epochs_recorded(tmp_path, 3)
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == code
    resume = re.search(r"Resume with: (.+)", errors).group(1)
    same_engine = " --engine ray" if "ray" in engine.options else ""
    assert resume == f"python -m ressmooth.study {study} --home {tmp_path}{same_engine}"
    assert query(tmp_path, "SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]
    assert query(tmp_path, "SELECT max(failures) FROM run") == [(0,)]
    assert query(tmp_path, "SELECT holder_pid FROM study") == [(None,)]
    assert engine.launch(study, tmp_path).returncode == 0
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)


def test_a_second_signal_does_not_wait_for_the_epoch(engine, study, tmp_path):
    """The synthetic images on ResNet56 take minutes an epoch."""
    big = ["--set", "dataset=synthetic", "--set", "model=resnet56", "--set", "fraction=1.0"]
    launcher = engine.start(study, tmp_path, "--workers", "1", *big)
    wait_for(lambda: query(tmp_path, "SELECT 1 FROM run WHERE state = 'running'"))
    workers = workers_of(launcher)
    launcher.send_signal(signal.SIGINT)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=20) == 130
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert workers and alive == []
    assert query(tmp_path, "SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]


def test_what_one_engine_began_the_other_goes_on_with(engine, study, tmp_path, undisturbed):
    launcher = engine.start(study, tmp_path, "--workers", "2", "--quiet")
    epochs_recorded(tmp_path, 5)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)
    other = Engine("optuna") if "ray" in engine.options else Engine("ray")  # a Ray of its own
    assert other.launch(study, tmp_path).returncode == 0
    assert query(tmp_path, RESULTS) == query(undisturbed[0], RESULTS)
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)


def test_more_seeds_and_arms_later_train_only_what_is_missing(engine, study, tmp_path):
    assert engine.launch(study, tmp_path, "--set", "seeds=1").returncode == 0
    assert query(tmp_path, "SELECT count(*) FROM run") == [(4,)]
    study.write_text(TINY.format(epochs=EPOCHS) + '\n[arms.ce]\nmethod = "cross_entropy"\n')
    done = engine.launch(study, tmp_path)
    assert done.returncode == 0, done.stderr
    assert query(tmp_path, "SELECT count(*), max(attempt) FROM run") == [(10, 1)]
    assert query(tmp_path, "SELECT DISTINCT state FROM trial") == [("complete",)]


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory):
    """What a study with fresh seeds gives on this machine."""
    home = tmp_path_factory.mktemp("confirmed")
    (home / "tiny.toml").write_text(TINY.format(epochs=3))
    assert Engine("optuna").launch(home / "tiny.toml", home, *CONFIRM).returncode == 0
    return home


def test_what_was_chosen_is_confirmed_alike(engine, study, tmp_path, confirmed):
    study.write_text(TINY.format(epochs=3))
    done = engine.launch(study, tmp_path, *CONFIRM)
    assert done.returncode == 0, done.stderr
    fresh = """
        SELECT t.arm, t.params, c.params, run.seed, run.state FROM trial t
        JOIN trial c ON c.id = t.confirms JOIN run ON run.trial_id = t.id ORDER BY t.arm, run.seed
    """
    rows = query(tmp_path, fresh)
    assert [(arm, seed, state) for arm, _, _, seed, state in rows] == [
        (arm, seed, "complete") for arm in ("laplace", "sgd") for seed in (10_000, 10_001)
    ]
    assert all(chosen == params for _, params, chosen, _, _ in rows)
    assert query(tmp_path, RESULTS) == query(confirmed, RESULTS)
    assert "The seeds shown are fresh" in done.stdout


def test_runs_that_raise_or_diverge_are_failed_and_the_study_goes_on(engine, study, tmp_path):
    study.write_text(
        TINY.format(epochs=EPOCHS)
        + '\n[arms.diverging]\nmethod = "mse"\noutput = "identity"\nlr = 1e5\n'
        + '\n[arms.raising]\nmethod = "mse"\ndataset = "cifar10"\n'
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar10-damaged.pt").touch()  # found to be so by the worker
    done = engine.launch(study, tmp_path, **NO_NETWORK)
    assert done.returncode == 0, done.stderr
    states = dict(query(tmp_path, "SELECT arm, state FROM trial"))
    assert states == {
        "sgd": "complete",
        "laplace": "complete",
        "diverging": "failed",
        "raising": "failed",
    }
    errors = "SELECT DISTINCT error FROM run JOIN trial ON trial.id = trial_id WHERE arm = '{}'"
    assert query(tmp_path, errors.format("diverging")) == [("diverged at epoch 1",)]
    ((raised,),) = query(tmp_path, errors.format("raising"))
    assert "CIFAR10 is not in" in raised and "cifar-10-python.tar.gz" in raised
    assert "diverging" not in done.stdout and "raising" not in done.stdout


def test_a_data_set_that_cannot_be_had_costs_no_run(engine, study, tmp_path):
    study.write_text(TINY.format(epochs=EPOCHS) + '\n[arms.cifar]\ndataset = "cifar10"\n')
    done = engine.launch(study, tmp_path, **NO_NETWORK)
    assert done.returncode == 2
    assert "error: CIFAR10 is not in" in done.stderr and "Traceback" not in done.stderr
    assert query(tmp_path, "SELECT count(*) FROM epoch") == [(0,)]
    assert query(tmp_path, "SELECT DISTINCT state, attempt FROM run") == [("waiting", 0)]


def test_a_study_in_which_everything_fails_has_its_own_exit_code(engine, study, tmp_path):
    overrides = ["--set", "output=identity", "--set", "lr=1e5", "--set", "epochs=2"]
    done = engine.launch(study, tmp_path, *overrides)
    assert done.returncode == 7
    assert "no trial completed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """What TPE with pruning gives, one run at a time, undisturbed on this machine."""

    def search(pruner):
        home = tmp_path_factory.mktemp(pruner)
        (home / "search.toml").write_text(SEARCH.format(pruner=pruner))
        done = Engine("optuna").launch(home / "search.toml", home, "--workers", "1")
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
