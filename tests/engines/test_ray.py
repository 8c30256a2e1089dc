"""The Ray engine on a real cluster: several nodes on this machine, logical GPUs, a token."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import psycopg
import pytest
from helpers.launch import command, invoke, launch, query, wait_for

from ressmooth.errors import ConfigError
from ressmooth.spec import Resources

STUDY = """
name = "cluster"
dataset = "digits"
fraction = 0.2
epochs = {epochs}
seeds = 4
device = "cpu"
[arms.sgd]
method = "mse"
[arms.smooth]
method = "smoothing"
[resources]
gpus_per_run = 0.5
"""
EPOCHS = 15
RESULTS = """
    SELECT arm, seed, run.state, max_acc, mean_acc, weights_sha256, last_epoch
    FROM run JOIN trial ON trial.id = trial_id ORDER BY arm, seed
"""

SIGNALS_AROUND_RAY = """
import os, signal
from pathlib import Path
from ressmooth.engines import new_engine
from ressmooth.engines.signals import on_signal
from ressmooth.spec import Resources

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)

def terminate_once():
    if not received:
        terminate()

received = []
engine = new_engine("ray", Resources(), 1, Path("none"))
from ray._private.worker import _post_init_hooks
from ressmooth.engines.ray import _shut_down
_post_init_hooks.append(terminate_once)  # the last that ray.init calls
with on_signal(lambda number, frame: received.append(number)):
    engine.cluster.connect()
    print(len(received), flush=True)
    terminate()
    print(len(received), flush=True)
    _shut_down()
    terminate()
    print(len(received), flush=True)
"""


LISTENING = """
import os
from pathlib import Path
import psutil
from ressmooth.engines import new_engine
from ressmooth.spec import Resources

new_engine("ray", Resources(), 1, Path("none")).cluster.connect()
import ray
print(ray.get(ray.remote(lambda: 1).remote()))  # starts a worker
me = psutil.Process()
for process in (me, *me.children(recursive=True)):
    for each in process.net_connections("inet"):
        if each.status == psutil.CONN_LISTEN:
            print("listens", each.laddr.ip)
"""

KILLED_RAYLET = """
from pathlib import Path
import psutil
from ressmooth.engines import new_engine
from ressmooth.spec import Resources

engine = new_engine("ray", Resources(), 1, Path("none"))
engine.cluster.connect()
(raylet,) = [child for child in psutil.Process().children() if child.name() == "raylet"]
raylet.terminate()
raylet.wait()
engine.cluster.refresh()
"""


@pytest.fixture(scope="module")
def nodes():
    """A head without room for runs, and two nodes with a logical GPU each.

    The tests share it. Those that kill a node or the head come last.
    """
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=4, num_gpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def cluster(nodes, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    return nodes


@pytest.fixture
def database(postgres_url, monkeypatch):
    """Query the PostgreSQL that launcher and workers write to."""
    monkeypatch.setenv("RESSMOOTH_DATABASE_URL", postgres_url)

    def ask(sql):
        with psycopg.connect(postgres_url) as connection:
            return connection.execute(sql).fetchall()

    return ask


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(STUDY.format(epochs=EPOCHS))
    return file


@pytest.mark.slow
def test_other_users_and_machines_do_not_reach_a_ray_of_our_own(tmp_path):
    """It listens on loopback only, and what it asks for is in no file that others can read."""
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("ab" * 32)
    token.chmod(0o644)  # as `ray get-auth-token --generate` leaves it
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_A")}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING],
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    places = re.findall("^listens (.+)$", done.stdout, re.MULTILINE)
    assert len(places) >= 5 and {*places} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text() == "ab" * 32


@pytest.mark.slow
def test_a_sigterm_while_ray_starts_or_after_it_has_ended_stops_in_order(monkeypatch):
    """Ray's C++ code would replace the handler by one that ends the process."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = [sys.executable, "-c", SIGNALS_AROUND_RAY]
    done = subprocess.run(code, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "2", "3"]), done.stderr


@pytest.mark.slow
def test_a_launcher_whose_node_of_ray_ends_stops():
    """Ray starts nothing more for a launcher without its node, which would wait without an end."""
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    code = [sys.executable, "-c", KILLED_RAYLET]
    done = subprocess.run(code, env=environment, capture_output=True, text=True)
    assert "ClusterUnreachable: Ray has ended on this machine" in done.stderr, done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same study on this machine without a cluster: rows, comparison."""
    home = tmp_path_factory.mktemp("alone")
    (home / "cluster.toml").write_text(STUDY.format(epochs=EPOCHS))
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    done = launch(home / "cluster.toml", home, "--set", "resources.gpus_per_run=0", env=environment)
    assert done.returncode == 0, done.stderr
    return query(home, RESULTS), done.stdout


def concurrent(times):
    """Return the largest number of [start, end] intervals that overlap."""
    events = sorted([(start, 1) for start, _ in times] + [(end, -1) for _, end in times])
    running = [0]
    for _, change in events:
        running.append(running[-1] + change)
    return max(running)


@pytest.mark.slow
def test_half_a_gpu_per_run_lets_four_of_eight_run_at_once(
    cluster, database, study, tmp_path, alone
):
    done = launch(study, tmp_path, "--engine", "ray")
    assert done.returncode == 0, done.stderr
    assert 1 < concurrent(database("SELECT started_at, finished_at FROM run")) <= 4
    assert (database(RESULTS), done.stdout) == alone


@pytest.mark.slow
def test_a_killed_launcher_resumes_without_training_twice(
    cluster, database, study, tmp_path, alone
):
    launcher = subprocess.Popen(command(study, tmp_path, "--engine", "ray", "--quiet"))
    wait_for(lambda: database("SELECT count(*) FROM run WHERE state = 'complete'")[0][0] >= 2)
    launcher.kill()
    launcher.wait()
    attempts = "SELECT id, attempt FROM run WHERE state = 'complete'"
    finished = database(attempts)
    done = launch(study, tmp_path, "--engine", "ray")
    assert done.returncode == 0, done.stderr
    assert set(finished) <= set(database(attempts)) and len(database(attempts)) == 8
    assert (database(RESULTS), done.stdout) == alone


@pytest.mark.slow
def test_the_plan_says_what_the_cluster_has_room_for(cluster, study, tmp_path):
    home = tmp_path / "home"
    done = launch(study, home, "--engine", "ray", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "4 workers on 3 Ray nodes with 8 CPUs and 2 GPUs: 8 runs in about 2 rounds" in (
        done.stdout
    )
    assert not home.exists()


@pytest.mark.slow
def test_auto_is_a_gpu_for_each_run_if_the_cluster_has_any(cluster, study, tmp_path):
    options = ["--engine", "ray", "--dry-run", "--set", "resources.gpus_per_run=auto", "--set"]
    done = launch(study, tmp_path, *options, "device=auto")
    assert done.returncode == 0, done.stderr
    assert "2 workers on 3 Ray nodes with 8 CPUs and 2 GPUs" in done.stdout
    assert "is 1 here: a GPU for each run" in done.stdout
    done = launch(study, tmp_path, *options, "device=cpu")
    assert "8 workers" in done.stdout and "is 0 here: runs train on CPUs" in done.stdout


@pytest.mark.slow
def test_without_gpus_in_the_cluster_auto_is_the_cpu(ray_cluster, study, tmp_path):
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster.address}
    options = ["--engine", "ray", "--dry-run", "--set", "resources.gpus_per_run=auto"]
    done = launch(study, tmp_path, *options, env=environment)
    assert done.returncode == 0 and "is 0 here: runs train on CPUs" in done.stdout, done.stderr
    refused = launch(study, tmp_path, *options, "--set", "device=cuda", env=environment)
    assert refused.returncode == 2
    assert "resources.gpus_per_run = 'auto', and there are 0 GPUs" in refused.stderr


@pytest.mark.slow
def test_a_run_that_fits_no_node_is_refused(cluster, study, tmp_path):
    home = tmp_path / "home"
    done = launch(study, home, "--engine", "ray", "--set", "resources.cpus_per_run=900")
    assert done.returncode == 2
    assert "cpus_per_run = 900" in done.stderr and "2 GPUs" in done.stderr
    assert "Traceback" not in done.stderr and not home.exists()


@pytest.mark.slow
def test_a_killed_node_loses_nothing(cluster, database, study, tmp_path, alone):
    launcher = subprocess.Popen(
        command(study, tmp_path, "--engine", "ray"), stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: database("SELECT count(*) FROM epoch")[0][0] >= 5)
    cluster.remove_node(list(cluster.worker_nodes)[0], allow_graceful=False)
    _, errors = launcher.communicate(timeout=180)
    assert launcher.returncode == 0, errors
    assert "worker lost with its node, retry 1/3" in errors
    assert database(RESULTS) == alone[0]
    assert database("SELECT run_id, epoch FROM epoch GROUP BY 1, 2 HAVING count(*) > 1") == []
    assert database("SELECT count(*) FROM epoch") == [(8 * EPOCHS,)]


@pytest.mark.slow
def test_sqlite_is_refused_where_a_node_is_another_machine(cluster, study, tmp_path, monkeypatch):
    join = ["ray", "start", "--address", cluster.address, "--node-ip-address", "127.0.0.2"]
    subprocess.run([*join, "--num-cpus", "1"], check=True, capture_output=True)
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    home = tmp_path / "home"
    done = launch(study, home, "--engine", "ray")
    assert done.returncode == 2
    assert "SQLite" in done.stderr and "RESSMOOTH_DATABASE_URL" in done.stderr
    assert not home.exists()


@pytest.mark.slow
def test_a_study_whose_head_dies_ends_with_the_reason_and_can_be_resumed(
    cluster, database, study, tmp_path
):
    launcher = subprocess.Popen(
        command(study, tmp_path, "--engine", "ray", "--set", "epochs=100000"),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: database("SELECT count(*) FROM epoch")[0][0] >= 5)
    cluster.head_node.all_processes["gcs_server"][0].process.kill()
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 4, errors
    assert f"Ray at {cluster.address} does not answer" in errors and "Traceback" not in errors
    assert database("SELECT holder_pid FROM study") == [(None,)]


def test_an_address_where_no_ray_answers_is_named(study, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    done = invoke(study, tmp_path / "home", "--engine", "ray")
    assert done.exit_code == 4
    assert "Ray at 127.0.0.1:9 does not answer" in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_ray_of_our_own_that_does_not_start_is_not_taken_for_a_cluster(monkeypatch):
    """On a machine that is too busy, Ray gives up after 30 seconds."""
    from ressmooth.engines.ray_cluster import RayCluster

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    error = RayCluster(Resources(), 1, "sqlite:///x")._unreachable(Exception("timed out"))
    assert str(error) == "Ray cannot start on this machine: timed out"


@pytest.mark.slow
def test_a_worker_that_ray_kills_for_memory_is_a_failure_of_its_run(tmp_path, monkeypatch):
    """Ray's monitor allows 1 % of the memory here, and checks every 15 seconds."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "15000")
    file = tmp_path / "memory.toml"
    file.write_text(
        """
        name = "memory"
        dataset = "synthetic"
        model = "resnet56"
        resources = { retries = 0 }
        [arms.sgd]
        method = "mse"
        """
    )
    done = launch(file, tmp_path, "--engine", "ray", "--workers", "1")
    assert done.returncode == 7, done.stderr
    assert "worker killed: its node is out of memory" in done.stderr
    ((state, error),) = query(tmp_path, "SELECT state, error FROM run")
    assert state == "failed" and "gave up after 0 retries" in error


def test_a_worker_that_cannot_start_ends_the_study_with_the_reason(tmp_path):
    """The text is what Ray 2.60 reports for a node without the package."""
    from ressmooth.engines.ray_tune import LeaveTune, PlannerScheduler

    trial = SimpleNamespace(trial_id="t", error_file=str(tmp_path / "error.txt"))
    (tmp_path / "error.txt").write_text(
        "Failure # 1\nThe actor died because of an error raised in its creation task, "
        "ray::ResourceTrainable.__init__()\nModuleNotFoundError: No module named 'ressmooth'\n"
    )
    with pytest.raises(LeaveTune) as leave:
        PlannerScheduler(engine=None).on_trial_error(None, trial)
    assert isinstance(leave.value.error, ConfigError)
    assert "No module named 'ressmooth'" in str(leave.value.error)


def test_a_home_that_a_node_does_not_see_ends_the_study_with_the_reason(tmp_path):
    from ressmooth.engines.ray import Worker

    worker = Worker.__new__(Worker)  # as on a node without the launcher's directories
    worker.url, worker.home, worker.store = "sqlite:///none", tmp_path, None
    worker.reset_config({"run": 1, "uid": "u"})
    result = worker.step()
    assert result["done"] and "path that all nodes share" in str(result["error"])
