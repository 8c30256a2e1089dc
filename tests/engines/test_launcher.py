"""`python -m ressmooth.study`: real processes and signals, dry runs and errors."""

import os
import signal
import subprocess
import sys

import psutil
import psycopg
import pytest
from helpers.launch import (
    CURVES,
    RESULTS,
    TINY,
    command,
    epochs_recorded,
    invoke,
    launch,
    query,
    wait_for,
    workers_of,
)

from ressmooth.formatting import count

CORES = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def no_mlflow(monkeypatch):
    """MLflow is down in all of these tests, which must not matter."""
    for name in ("RESSMOOTH_DATABASE_URL", "RESSMOOTH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_ctrl_c_while_workers_start_is_acknowledged_and_interrupts_no_import(study, tmp_path):
    """A terminal sends it to the launcher and to all that it has started."""
    launcher = subprocess.Popen(
        command(study, tmp_path, "--workers", "2"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert launcher.stderr.readline() == "starting 2 workers\n"
    wait_for(lambda: len(psutil.Process(launcher.pid).children()) == 2)  # with the fork server
    os.killpg(launcher.pid, signal.SIGINT)
    assert launcher.stderr.readline().startswith("stopping after this epoch")
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 130 and "Traceback" not in errors
    assert "Resume with: " in errors


@pytest.mark.slow
def test_a_spent_time_budget_trains_nothing_more(tmp_path):
    file = tmp_path / "hours.toml"
    file.write_text(
        """
        name = "hours"
        dataset = "digits"
        fraction = 0.2
        epochs = 1
        search = { sampler = "random", hours = 1e-3 }
        [arms.smooth]
        b = { low = 0.1, high = 1.0 }
        """
    )
    assert launch(file, tmp_path, "--workers", "1").returncode == 0
    trained = query(tmp_path, "SELECT count(*) FROM run")
    assert launch(file, tmp_path, "--workers", "1").returncode == 0
    assert query(tmp_path, "SELECT count(*) FROM run") == trained


@pytest.mark.slow
def test_a_second_launcher_is_refused_while_the_first_runs(study, tmp_path):
    study.write_text(TINY.format(epochs=200))
    first = subprocess.Popen(command(study, tmp_path, "--quiet"))
    epochs_recorded(tmp_path, 1)
    second = launch(study, tmp_path)
    first.send_signal(signal.SIGINT)
    first.wait(timeout=60)
    assert second.returncode == 3
    assert str(first.pid) in second.stderr


def test_a_home_that_cannot_be_made_is_named(study, tmp_path):
    (tmp_path / "file").write_text("")
    done = invoke(study, tmp_path / "file" / "home")
    assert done.exit_code == 2
    assert f"{tmp_path / 'file'} is a file" in done.stderr


@pytest.mark.parametrize("name", ["results.db", "mlflow.db"])
def test_the_databases_are_their_owners_only(undisturbed, name):
    assert (undisturbed[0] / name).stat().st_mode & 0o777 == 0o600


def test_another_question_under_the_same_name_is_refused(study, undisturbed):
    before = query(undisturbed[0], "SELECT spec, file_text, held_at FROM study")
    changed = invoke(study, undisturbed[0], "--set", "epochs=5")
    assert changed.exit_code == 2
    assert "epochs was 12, is 5" in changed.stderr
    assert query(undisturbed[0], "SELECT spec, file_text, held_at FROM study") == before


def test_dry_run_creates_nothing_and_counts(study, tmp_path):
    home = tmp_path / "home"
    done = invoke(study, home, "--dry-run", "--workers", "2")
    assert done.exit_code == 0
    assert not home.exists()
    assert "8 runs in about 4 rounds" in done.stdout
    assert "The time is unknown" in done.stdout


def test_dry_run_estimates_from_similar_runs(study, undisturbed):
    done = invoke(study, undisturbed[0], "--dry-run", "--set", "seeds=3")
    assert (
        "8 of them done" in done.stdout
        and "of training, from recorded epochs of similar runs" in done.stdout
    )


@pytest.mark.parametrize(
    "options, words",
    [
        (["--workers", "0"], "--workers 0"),
        (["--workers", "many"], "--workers many"),
        (["--set", "precision=tf32"], "precision = 'tf32': only GPUs have it, and this would be "),
        (["--set", "device=cuda"], "resources.gpus_per_run = 'auto', and there are 0 GPUs"),
        (
            ["--set", "device=cuda", "--set", "resources.gpus_per_run=0"],
            "resources.gpus_per_run = 0.0, and there are",
        ),
        (["--set", "epochz=3"], "did you mean 'epochs'"),
        (["--set", "arms.sgd.lr=-1"], "arms.sgd.lr"),
        (["--set", "nonsense"], "nonsense"),
        (["--engine", "rya"], "'rya'"),
    ],
)
def test_errors_exit_2_and_create_nothing(study, tmp_path, options, words):
    home = tmp_path / "home"
    done = invoke(study, home, *options)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not home.exists()


def test_without_ray_its_engine_says_how_to_install_it(study, tmp_path):
    code = (
        "import sys; sys.modules['ray'] = None; from ressmooth.study import main\n"
        "main(sys.argv[1:])"
    )
    options = [str(study), "--engine", "ray", "--home", str(tmp_path / "home")]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'ressmooth[ray]'" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_warning_names_gpus_that_stay_idle(study, engine, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    options = ["--dry-run", "--engine", engine, "--set"]
    warned = invoke(study, tmp_path, *options, "resources.gpus_per_run=0")
    assert warned.exit_code == 0 and "2 GPUs stay idle" in warned.stderr
    for setting in ("resources.gpus_per_run=1", "resources.gpus_per_run=auto", "device=cpu"):
        quiet = invoke(study, tmp_path, *options, setting)
        assert (quiet.exit_code, quiet.stderr) == (0, "")


@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize(
    "visible, options, workers, meaning",
    [
        ("0,1", [], 2, "is 1 here: a GPU for each run"),
        ("0,1", ["--set", "device=cuda"], 2, "is 1 here: a GPU for each run"),
        ("", [], CORES, "is 0 here: runs train on CPUs"),
        ("0,1", ["--set", "device=cpu"], CORES, "is 0 here: runs train on CPUs"),
        ("0,1", ["--set", "resources.gpus_per_run=0.5"], 4, None),
    ],
)
def test_the_plan_says_what_auto_means(
    study, engine, visible, options, workers, meaning, tmp_path, monkeypatch
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    done = invoke(study, tmp_path, "--dry-run", "--engine", engine, *options)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.count('resources.gpus_per_run = "auto"') == (meaning is not None)
    text = " ".join(done.stdout.split())
    assert f"{count(workers, 'worker')} " in text and (meaning or "") in text


@pytest.mark.parametrize("engine", ["local", "optuna", "ray"])
def test_the_plan_for_this_machine_starts_nothing(study, tmp_path, engine, monkeypatch):
    """optuna is the old name of the local engine."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = invoke(study, tmp_path / "home", "--engine", engine, "--dry-run", "--workers", "3")
    assert done.exit_code == 0, done.stderr
    assert "3 workers" in done.stdout and "8 runs in about 3 rounds" in done.stdout
    assert not (tmp_path / "home").exists()


def test_help_loads_no_heavy_module():
    heavy = "torch numpy scipy sklearn matplotlib mlflow optuna ray sqlalchemy pydantic rich"
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.study import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        f"print([m for m in {heavy.split()} if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.strip() == "[]"


def test_errors_are_found_without_torch(tmp_path):
    (tmp_path / "bad.toml").write_text("name = 3")
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.study import main\n"
        f"result = CliRunner().invoke(main, [{str(tmp_path / 'bad.toml')!r}])\n"
        "print(result.exit_code, [m for m in ('torch', 'optuna', 'mlflow') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.strip() == "2 []"
    assert os.listdir(tmp_path) == ["bad.toml"]
