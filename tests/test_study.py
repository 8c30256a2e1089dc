"""Studies as a user runs them: `python -m ressmooth.study`, real processes, real signals."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import psutil
import psycopg
import pytest

from ressmooth.checkpoint import sha256

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


@pytest.fixture(autouse=True)
def nothing_answers_at_mlflow(monkeypatch):
    """Tracking is down in all of these tests but the first ones: it must not matter."""
    for name in ("RESSMOOTH_DATABASE_URL", "RESSMOOTH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY.format(epochs=4))
    return file


def command(file, home, *options):
    return [sys.executable, "-m", "ressmooth.study", str(file), "--home", str(home), *options]


def launch(file, home, *options, env=None):
    return subprocess.run(command(file, home, *options), capture_output=True, text=True, env=env)


def query(home, sql):
    with closing(sqlite3.connect(f"file:{home}/results.db?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except sqlite3.OperationalError:
            pass  # not there yet
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def epochs_recorded(home, at_least):
    return wait_for(lambda: query(home, "SELECT count(*) FROM epoch")[0][0] >= at_least)


def workers_of(launcher):
    """Processes that train: the fork server's children."""
    servers = psutil.Process(launcher.pid).children()
    return [child for server in servers for child in server.children()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the tiny study gives when nobody touches it, with the embedded MLflow."""
    home = tmp_path_factory.mktemp("undisturbed")
    (home / "tiny.toml").write_text(TINY.format(epochs=4))
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    done = launch(home / "tiny.toml", home, "--workers", "2", env=environment)
    assert done.returncode == 0, done.stderr
    return home, done


def test_a_study_trains_every_cell_with_every_seed(undisturbed):
    home, done = undisturbed
    results = query(home, RESULTS)
    assert len(results) == 8
    assert {row[3] for row in results} == {"complete"}
    assert query(home, "SELECT count(*) FROM epoch") == [(32,)]
    assert query(home, "SELECT DISTINCT state FROM trial") == [("complete",)]
    assert "sgd" in done.stdout and "laplace" in done.stdout
    assert "next: ressmooth show tiny" in done.stdout
    assert query(home, "SELECT count(*) FROM outbox WHERE sent_at IS NULL") == [(0,)]


def test_weights_on_disk_are_the_ones_in_the_store(undisturbed):
    home, _ = undisturbed
    for uid, recorded in query(home, "SELECT uid, weights_sha256 FROM run"):
        assert sha256((home / "runs" / uid / "best.safetensors").read_bytes()) == recorded
    assert list(home.glob("runs/*/epoch-*")) == []


def test_launching_again_trains_nothing_and_prints_the_same(undisturbed):
    home, done = undisturbed
    before = query(home, RESULTS)
    again = launch(home / "tiny.toml", home)
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert query(home, RESULTS) == before
    assert query(home, "SELECT max(attempt) FROM run") == [(1,)]


def test_a_killed_worker_is_replaced_and_its_run_goes_on(study, tmp_path, undisturbed):
    launcher = subprocess.Popen(
        command(study, tmp_path, "--workers", "2"), stderr=subprocess.PIPE, text=True
    )
    epochs_recorded(tmp_path, 3)
    workers_of(launcher)[0].kill()
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors
    assert "worker killed by signal 9" in errors and "retry 1/3" in errors
    assert query(tmp_path, RESULTS) == query(undisturbed[0], RESULTS)
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)
    assert "tracking events not delivered" in errors and 'run "ressmooth sync"' in errors


def test_a_killed_launcher_takes_its_workers_along_and_can_be_resumed(study, tmp_path, undisturbed):
    launcher = subprocess.Popen(command(study, tmp_path, "--workers", "2", "--quiet"))
    epochs_recorded(tmp_path, 5)
    workers = workers_of(launcher)
    assert workers
    launcher.kill()
    launcher.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    resumed = launch(study, tmp_path, "--workers", "2")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == undisturbed[1].stdout
    assert query(tmp_path, RESULTS) == query(undisturbed[0], RESULTS)
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)


def test_on_postgresql_a_killed_launcher_resumes_to_the_same_rows(
    study, tmp_path, undisturbed, postgres, monkeypatch
):
    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE whole_study")
    url = postgres.get_uri("whole_study")
    monkeypatch.setenv("RESSMOOTH_DATABASE_URL", url)
    launcher = subprocess.Popen(command(study, tmp_path, "--workers", "2", "--quiet"))

    def asked(sql):
        with psycopg.connect(url) as connection:
            return connection.execute(sql.replace("params", "params::text")).fetchall()

    def five_epochs():
        try:
            return asked("SELECT count(*) FROM epoch")[0][0] >= 5
        except psycopg.Error:
            return False  # no tables yet

    wait_for(five_epochs)
    launcher.kill()
    launcher.wait()
    resumed = launch(study, tmp_path, "--workers", "2")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == undisturbed[1].stdout
    for sql in (RESULTS, CURVES):
        assert sorted(map(str, asked(sql))) == sorted(map(str, query(undisturbed[0], sql)))
    assert not (tmp_path / "results.db").exists()


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_study_says_how_to_resume(study, tmp_path, undisturbed, number, code):
    launcher = subprocess.Popen(
        command(study, tmp_path, "--workers", "2"), stderr=subprocess.PIPE, text=True
    )
    epochs_recorded(tmp_path, 3)
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == code
    resume = re.search(r"Resume with: (.+)", errors).group(1)
    assert resume == f"python -m ressmooth.study {study} --home {tmp_path}"
    assert query(tmp_path, "SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]
    assert query(tmp_path, "SELECT holder_pid FROM study") == [(None,)]
    assert launch(study, tmp_path).returncode == 0
    assert query(tmp_path, CURVES) == query(undisturbed[0], CURVES)


def test_a_busy_worker_dies_with_its_launcher_in_the_middle_of_an_epoch(study, tmp_path):
    """The synthetic images on ResNet56 take minutes an epoch: nobody waits for its end."""
    big = ["--set", "dataset=synthetic", "--set", "model=resnet56", "--set", "fraction=1.0"]
    launcher = subprocess.Popen(command(study, tmp_path, "--workers", "1", "--quiet", *big))
    wait_for(lambda: query(tmp_path, "SELECT 1 FROM run WHERE state = 'running'"))
    workers = workers_of(launcher)
    launcher.kill()
    launcher.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert workers and alive == []


def test_a_stop_that_reaches_the_workers_too_is_no_failure_of_theirs(study, tmp_path):
    """As from systemd, which signals the whole process group."""
    study.write_text(TINY.format(epochs=200))
    launcher = subprocess.Popen(
        command(study, tmp_path, "--quiet"), stderr=subprocess.DEVNULL, start_new_session=True
    )
    epochs_recorded(tmp_path, 3)
    os.killpg(launcher.pid, signal.SIGTERM)
    assert launcher.wait(timeout=60) == 143
    assert query(tmp_path, "SELECT max(failures) FROM run") == [(0,)]
    assert query(tmp_path, "SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]


def test_a_spent_time_budget_trains_nothing_more(tmp_path):
    file = tmp_path / "hours.toml"
    file.write_text(
        """
        name = "hours"
        dataset = "digits"
        fraction = 0.2
        epochs = 1
        search = { sampler = "random", hours = 1e-4 }
        [arms.smooth]
        b = { low = 0.1, high = 1.0 }
        """
    )
    assert launch(file, tmp_path, "--workers", "1").returncode == 0
    trained = query(tmp_path, "SELECT count(*) FROM run")
    assert launch(file, tmp_path, "--workers", "1").returncode == 0
    assert query(tmp_path, "SELECT count(*) FROM run") == trained


def test_a_home_that_cannot_be_made_is_named(study, tmp_path):
    (tmp_path / "file").write_text("")
    done = launch(study, tmp_path / "file" / "home")
    assert done.returncode == 6
    assert "Cannot create" in done.stderr and "Traceback" not in done.stderr


def test_a_second_launcher_is_refused_while_the_first_runs(study, tmp_path):
    study.write_text(TINY.format(epochs=200))
    first = subprocess.Popen(command(study, tmp_path, "--quiet"))
    epochs_recorded(tmp_path, 1)
    second = launch(study, tmp_path)
    first.send_signal(signal.SIGINT)
    first.wait(timeout=60)
    assert second.returncode == 3
    assert str(first.pid) in second.stderr


def test_more_seeds_and_arms_later_train_only_what_is_missing(study, tmp_path):
    assert launch(study, tmp_path, "--set", "seeds=1").returncode == 0
    assert query(tmp_path, "SELECT count(*) FROM run") == [(4,)]
    study.write_text(TINY.format(epochs=4) + '\n[arms.ce]\nmethod = "cross_entropy"\n')
    done = launch(study, tmp_path)
    assert done.returncode == 0, done.stderr
    assert query(tmp_path, "SELECT count(*), max(attempt) FROM run") == [(10, 1)]
    assert query(tmp_path, "SELECT DISTINCT state FROM trial") == [("complete",)]


def test_another_question_under_the_same_name_is_refused(study, tmp_path):
    launch(study, tmp_path)
    changed = launch(study, tmp_path, "--set", "epochs=5")
    assert changed.returncode == 2
    assert "epochs" in changed.stderr


def test_a_failing_run_does_not_end_the_study(study, tmp_path):
    text = TINY.format(epochs=4) + '\n[arms.bad]\nmethod = "mse"\noutput = "identity"\nlr = 1e5\n'
    study.write_text(text)
    done = launch(study, tmp_path)
    assert done.returncode == 0, done.stderr
    states = dict(query(tmp_path, "SELECT arm, state FROM trial"))
    assert states == {"sgd": "complete", "laplace": "complete", "bad": "failed"}
    errors = query(tmp_path, "SELECT DISTINCT error FROM run WHERE state = 'failed'")
    assert errors == [("diverged at epoch 1",)]
    assert "bad" not in done.stdout


def test_a_study_in_which_everything_fails_has_its_own_exit_code(study, tmp_path):
    overrides = ["--set", "output=identity", "--set", "lr=1e5", "--set", "epochs=2"]
    done = launch(study, tmp_path, *overrides)
    assert done.returncode == 7
    assert "no trial completed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pruned_search_keeps_its_epochs_and_resumes_to_the_same_rows(tmp_path):
    file = tmp_path / "search.toml"
    file.write_text(
        """
        name = "search"
        dataset = "digits"
        fraction = 0.2
        epochs = 9
        [search]
        sampler = "tpe"
        pruner = "asha"
        trials = 12
        [arms.smooth]
        b = { low = 0.05, high = 2.0, log = true }
        lr = { low = 1e-6, high = 0.5, log = true }
        """
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert launch(file, whole, "--workers", "1").returncode == 0
    launcher = subprocess.Popen(command(file, broken, "--workers", "1", "--quiet"))
    epochs_recorded(broken, 30)
    launcher.kill()
    launcher.wait()
    assert launch(file, broken, "--workers", "1").returncode == 0
    states = query(whole, "SELECT state, count(*) FROM trial GROUP BY state ORDER BY state")
    assert dict(states).keys() == {"complete", "pruned"} and sum(dict(states).values()) == 12
    pruned = query(whole, "SELECT min(last_epoch), max(last_epoch) FROM run WHERE state='pruned'")
    assert pruned[0][0] >= 1 and pruned[0][1] < 9
    trials = "SELECT number_in_branch, params, state, value FROM trial ORDER BY 1"
    assert query(broken, trials) == query(whole, trials)
    assert query(broken, CURVES) == query(whole, CURVES)


def test_dry_run_creates_nothing_and_counts(study, tmp_path):
    home = tmp_path / "home"
    done = launch(study, home, "--dry-run", "--workers", "2")
    assert done.returncode == 0
    assert not home.exists()
    assert "8 runs in about 4 rounds" in done.stdout
    assert "not known" in done.stdout


def test_dry_run_estimates_from_like_runs(study, undisturbed):
    done = launch(study, undisturbed[0], "--dry-run")
    assert "from recorded epochs of like runs" in done.stdout


@pytest.mark.parametrize(
    "options, words",
    [
        (["--workers", "0"], "--workers 0"),
        (["--workers", "many"], "--workers many"),
        (["--set", "device=cuda"], "resources.gpus_per_run"),
        (["--set", "epochz=3"], "did you mean 'epochs'"),
        (["--set", "arms.sgd.lr=-1"], "arms.sgd.lr"),
        (["--set", "nonsense"], "nonsense"),
    ],
)
def test_mistakes_exit_2_and_create_nothing(study, tmp_path, options, words):
    home = tmp_path / "home"
    done = launch(study, home, *options)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not home.exists()


def test_help_loads_next_to_nothing():
    heavy = "torch numpy scipy sklearn matplotlib mlflow optuna ray sqlalchemy pydantic rich"
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.study import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        f"print([m for m in {heavy.split()} if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_mistakes_are_found_without_torch(tmp_path):
    (tmp_path / "bad.toml").write_text("name = 3")
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.study import main\n"
        f"result = CliRunner().invoke(main, [{str(tmp_path / 'bad.toml')!r}])\n"
        "print(result.exit_code, [m for m in ('torch', 'optuna', 'mlflow') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.strip() == "2 []"
    assert os.listdir(tmp_path) == ["bad.toml"]
