"""Run the deployment for real: build the image, start services, run studies, faults, backups.

Run it with `pytest -m deployment` where Docker answers. COMPOSE sets a command other than
`docker compose` or `docker-compose`. The tests depend on each other and run in order.
"""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[2]
STUDY = """
name = "{name}"
dataset = "digits"
epochs = 60
seeds = 2
[arms.sgd]
method = "mse"
weight_decay = {{ grid = [1e-3, 1e-4] }}
[arms.laplace]
method = "smoothing"
b = {{ grid = [0.3, 0.5] }}
"""
RESULTS = """
    SELECT arm, trial.params::text, seed, run.state, max_acc, weights_sha256, count(epoch.epoch)
    FROM study JOIN trial ON study_id = study.id JOIN run ON trial_id = trial.id
    JOIN epoch ON run_id = run.id WHERE study.name = '{}'
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3
"""
EPOCHS = """
    SELECT count(*) FROM epoch JOIN run ON run_id = run.id JOIN trial ON trial_id = trial.id
    JOIN study ON study_id = study.id WHERE study.name = '{}'
"""
ATTEMPTS = """
    SELECT max(attempt) FROM run JOIN trial ON trial_id = trial.id
    JOIN study ON study_id = study.id WHERE study.name = '{}'
"""
ROWS = """
    SELECT table_name, (xpath('/row/c/text()', query_to_xml(
        format('SELECT count(*) AS c FROM %I', table_name), false, true, '')))[1]::text::int
    FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1
"""
LISTEN = """
import socket, sys
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("0.0.0.0", 8001))
with open(sys.argv[1], "wb", 0) as heard:
    while True:
        heard.write(listener.recv(100))
"""
PROJECT = "com.docker.compose.project=ressmooth-test"
DATABASES = ("results", "mlflow", "mlflow_auth")
pytestmark = pytest.mark.deployment


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def compose_command():
    if given := os.environ.get("COMPOSE"):
        return given.split()
    plugin = run("docker", "compose", "version").returncode == 0
    return ["docker", "compose"] if plugin else ["docker-compose"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_dockers(pid):
    """Whether a process is Docker's or in a container, as far as this user may see."""
    try:
        own, its = (os.readlink(f"/proc/{each}/ns/pid") for each in ("self", pid))
        return its != own or psutil.Process(pid).name().startswith("docker")
    except (OSError, psutil.Error):
        return True


def listening():
    """The addresses on which Docker listens. Other programs open ports here meanwhile."""
    found = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return {c.laddr for c in found if is_dockers(c.pid)}


class Deployment:
    """A checkout of its own, with its own secrets, ports and volumes."""

    def __init__(self, directory):
        self.directory, self.port, self.dashboard = directory, free_port(), free_port()
        self.compose_command = compose_command()
        files = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).stdout.splitlines()
        for name in files:
            if (ROOT / name).exists():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, directory / name, follow_symlinks=False)
        for name in ("calm", "disturbed", "rebooted", "killed", "stopped"):
            (directory / "studies" / f"{name}.toml").write_text(STUDY.format(name=name))
        self.environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": "ressmooth-test",
            "MLFLOW_PORT": str(self.port),
            "DASHBOARD_PORT": str(self.dashboard),
            "USER": "anna",
        }

    def compose(self, *arguments, check=True):
        command = [*self.compose_command, *arguments]
        done = run(*command, cwd=self.directory, env=self.environment)
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def study(self, *command):
        return self.compose("run", "--rm", "-T", "study", *command)

    def submit(self, study):
        """Submit a study and leave. Return what was printed."""
        return self.study("python", "-m", "ressmooth.study", study, "--detach").stdout

    def start(self, *command):
        """A command that goes on meanwhile."""
        return subprocess.Popen(
            [*self.compose_command, "run", "--rm", "-T", "study", *command],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start_exec(self, service, script):
        command = [*self.compose_command, "exec", "-T", service, "sh", "-c", script]
        return subprocess.Popen(command, cwd=self.directory, env=self.environment)

    def init_secrets(self):
        return run("docker/init-secrets", cwd=self.directory, env=self.environment, check=True)

    def secret(self, name):
        return (self.directory / "secrets" / name).read_text()

    def query(self, sql, database="results"):
        psql = ["psql", "-U", "postgres", "-d", database, "-At", "-c", sql]
        return self.compose("exec", "-T", "db", *psql).stdout.splitlines()

    def rows(self):
        return {name: self.query(ROWS, name) for name in DATABASES}

    def results(self, study):
        return self.query(RESULTS.format(study))

    def state(self, study):
        return self.query(f"SELECT state FROM study WHERE name = '{study}'")[0]

    def epochs(self, study):
        """How many epochs of a study are recorded."""
        return int(self.query(EPOCHS.format(study))[0])

    def attempts(self, study):
        """How often the run that was interrupted most has started."""
        return int(self.query(ATTEMPTS.format(study))[0])

    def logs(self):
        return self.compose("logs", "--no-color", "scheduler").stdout

    def containers(self, *services):
        """What Docker knows of the containers of these services, or of all, stopped ones too."""
        ids = run("docker", "ps", "-aq", "--filter", f"label={PROJECT}").stdout.split()
        found = json.loads(run("docker", "inspect", *ids).stdout)
        named = [(c["Config"]["Labels"]["com.docker.compose.service"], c) for c in found]
        return [(name, c) for name, c in named if not services or name in services]

    def wait_until_healthy(self, seconds=180):
        def unwell():
            return {
                name: state
                for name, container in self.containers()
                if (state := container["State"].get("Health", {}).get("Status")) != "healthy"
                and name != "migrate"
            }

        wait_for(lambda: not unwell(), seconds, unwell)

    def get(self, path="/", host=None, password=None, user="admin", forwarded=None):
        headers = {"Host": host or f"localhost:{self.port}"}
        if forwarded is not None:
            headers["X-Forwarded-For"] = forwarded
        if password is not None:
            login = base64.b64encode(f"{user}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


def wait_for(condition, seconds, explain=str):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(1)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    if shutil.which("docker") is None or run("docker", "info").returncode:
        pytest.skip("no Docker engine answers here")
    engine = run("docker", "version", "--format", "{{.Server.Version}}").stdout
    version = run(*compose_command(), "version", "--short").stdout
    if version.startswith("1.") and int(engine.partition(".")[0]) >= 26:
        pytest.skip(f"docker-compose {version.strip()} cannot recreate containers on {engine}")
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    deployment.refused = deployment.compose("up", "-d", check=False)
    deployment.init_secrets()
    deployment.compose("build")
    yield deployment
    deployment.compose("--profile", "*", "down", "-v", "-t", "10")


def test_without_secrets_it_says_what_to_run(deployment):
    assert deployment.refused.returncode != 0
    assert "run docker/init-secrets first" in deployment.refused.stderr


def test_secrets_are_strong_and_stay(deployment):
    names = [path.name for path in (deployment.directory / "secrets").iterdir()]
    before = {name: deployment.secret(name) for name in names}
    assert before.pop("webhook") == ""
    names.remove("webhook")
    assert len(set(before.values())) == 11 and all(len(value) == 64 for value in before.values())
    deployment.init_secrets()
    assert {name: deployment.secret(name) for name in names} == before
    directory = deployment.directory / "secrets"
    assert directory.stat().st_mode & 0o777 == 0o700
    modes = {path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes == {0o644}  # passwords are changed by writing to their files


def test_all_services_come_up_healthy(deployment):
    before = listening()
    deployment.compose("up", "-d")
    deployment.wait_until_healthy()
    deployment.opened = {tuple(address) for address in listening() - before}
    names = {name for name, _ in deployment.containers()}
    services = {"db", "migrate", "mlflow", "ray-head", "ray-worker", "scheduler", "backup"}
    assert names == services | {"gate", "alarm"}
    mounts = [mount for _, c in deployment.containers() for mount in c["Mounts"]]
    volumes = {mount["Name"] for mount in mounts if mount["Type"] == "volume"}
    assert all(name.startswith("ressmooth-test_") for name in volumes)  # or `down` leaves it behind


def test_a_study_is_submitted_shown_and_in_postgresql(deployment):
    done = deployment.study("python", "-m", "ressmooth.study", "quickstart")
    assert "laplace" in done.stdout and "seed 0 on " in done.stderr
    assert deployment.query("SELECT state, count(*) FROM run GROUP BY 1") == ["complete|12"]
    assert deployment.query("SELECT owner, state FROM study") == ["anna|ended"]
    assert "quickstart: ended" in deployment.logs()


def test_studies_and_runs_are_shown_after_the_log_in(deployment, browser):
    browser.get(
        f"http://admin:{deployment.secret('mlflow_admin_password')}@localhost:{deployment.port}"
    )
    wait = WebDriverWait(browser, 60)
    wait.until(lambda b: "Queue" in b.page_source and "quickstart" in b.page_source)
    if directory := os.environ.get("RESSMOOTH_SCREENSHOTS"):
        browser.save_screenshot(f"{directory}/deployment-studies.png")
    browser.get(f"http://localhost:{deployment.port}/mlflow/#/experiments")
    link = wait.until(lambda b: b.find_elements(By.LINK_TEXT, "quickstart"))[0]
    browser.get(link.get_attribute("href").partition("?")[0] + "/runs")
    wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, "[role=gridcell] button"))[0].click()
    wait.until(lambda b: "laplace b=0.3 seed 0" in b.page_source)
    if directory := os.environ.get("RESSMOOTH_SCREENSHOTS"):
        browser.save_screenshot(f"{directory}/deployment.png")


def test_strangers_are_not_let_in(deployment):
    password = deployment.secret("mlflow_admin_password")
    assert deployment.get("/health") == 200
    assert deployment.get() == 401
    assert deployment.get(password="password1234") == 401
    assert deployment.get(password=password) == 200
    for host in ("evil.com", "10.evil.com", f"localhost:{deployment.port}.evil.com", "mlflow"):
        assert deployment.get(host=host, password=password) == 403, host


def test_only_mlflow_listens_on_the_host(deployment):
    assert deployment.opened == {("127.0.0.1", deployment.port)}


def test_no_service_has_more_rights_than_it_needs(deployment):
    for name, container in deployment.containers():
        if name == "migrate":
            continue
        inside = run(
            "docker", "exec", container["Id"], "sh", "-c",
            "id -u; grep CapEff /proc/self/status; touch /x 2>&1; touch /usr/x 2>&1",
        ).stdout  # fmt: skip
        user, capabilities, *refusals = inside.splitlines()
        assert len(refusals) == 2 and all("Read-only" in line for line in refusals), name
        if name != "db":
            assert user == "61000" and int(capabilities.split()[1], 16) == 0, name
    processes = "for p in /proc/[0-9]*; do echo $(cat $p/comm) $(grep ^Uid $p/status); done"
    database = deployment.compose("exec", "-T", "db", "sh", "-c", processes).stdout
    users = [line.split()[2] for line in database.splitlines() if line.startswith("postgres")]
    assert users and "0" not in users


def test_passwords_are_in_no_command_line(deployment):
    secrets = [path.read_text() for path in (deployment.directory / "secrets").iterdir()]
    secrets.remove("")  # the webhook
    running = [c["Id"] for _, c in deployment.containers() if c["State"]["Running"]]
    lines = [line for id in running for line in run("docker", "top", id).stdout.splitlines()]
    assert len(lines) > 2 * len(running)  # a header and at least a process each
    assert not [line for line in lines if any(secret in line for secret in secrets)]


@pytest.fixture
def world(tmp_path):
    """A machine beyond this one, which like the internet knows no way back to a container."""
    if os.geteuid() != 0:
        pytest.skip("making a network needs root")
    for command in (
        "netns add world",
        "link add world0 type veth peer name eth0 netns world",
        "addr add 198.51.100.1/24 dev world0",
        "link set world0 up",
        "-n world addr add 198.51.100.2/24 dev eth0",
        "-n world link set eth0 up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    inside = ["ip", "netns", "exec", "world", sys.executable]
    serve = [*inside, "-m", "http.server", "8000"]
    heard = tmp_path / "heard"
    listen = [*inside, "-c", LISTEN, heard]
    with (
        subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server,
        subprocess.Popen(listen) as listener,
    ):
        wait_for(heard.exists, 30)
        yield heard
        server.kill()
        listener.kill()
    run("ip", "netns", "delete", "world")


def test_only_the_scheduler_reaches_the_world(deployment, world):
    tcp = "timeout", "5", "bash", "-c", "< /dev/tcp/198.51.100.2/8000"
    shut = ("db", "mlflow", "ray-head", "ray-worker", "backup")
    commands = {name: ["exec", "-T", name] for name in (*shut, "gate", "alarm", "scheduler")}
    commands["study"] = ["run", "--rm", "-T", "study"]
    reached = {
        name
        for name, command in commands.items()
        if deployment.compose(*command, *tcp, check=False).returncode == 0
    }
    assert reached == {"scheduler", "alarm"}
    for name, command in commands.items():
        udp = "timeout", "5", "bash", "-c", f"echo {name} > /dev/udp/198.51.100.2/8001"
        deployment.compose(*command, *udp, check=False)
    wait_for(lambda: "scheduler" in world.read_text(), 10)
    assert set(world.read_text().split()) <= {"scheduler", "alarm", "gate"}  # gate only forwards


def reaches(address, port):
    """Whether this host reaches a container, and not a machine elsewhere with that address."""
    route = run("ip", "route", "get", address).stdout
    try:
        socket.create_connection((address, port), 3).close()
    except OSError:
        return False
    return " dev br-" in route


def test_users_of_the_host_reach_no_service_past_its_gate(deployment):
    ports = {"db": 5432, "ray-head": 6379, "ray-worker": 6380, "mlflow": 5000, "scheduler": 9464}
    ports["gate"] = 8000
    reached = {
        (name, network.rpartition("_")[2])
        for name, port in ports.items()
        for _, container in deployment.containers(name)
        for network, where in container["NetworkSettings"]["Networks"].items()
        if reaches(where["IPAddress"], port)
    }
    assert reached == {("gate", "edge")}


def test_launchers_have_no_more_rights_than_they_need(deployment):
    tries = """
import os, psycopg, mlflow
from mlflow.server.auth.client import AuthServiceClient
connection = psycopg.connect(os.environ["RESSMOOTH_DATABASE_URL"], autocommit=True)
for sql in ("DROP TABLE epoch", "TRUNCATE epoch", "ALTER TABLE epoch ADD x int",
            "CREATE TABLE x (y int)", "UPDATE ressmooth_version SET version_num = '0'"):
    try:
        connection.execute(sql)
        print("allowed", sql)
    except psycopg.errors.InsufficientPrivilege:
        print("refused")
print(connection.execute("SELECT count(*) > 0 FROM epoch").fetchone())
print(len(mlflow.search_experiments()) > 1)
try:
    AuthServiceClient(mlflow.get_tracking_uri()).create_user("eve", "long enough to be one")
    print("allowed")
except mlflow.MlflowException:
    print("refused")
"""
    for command in (["exec", "-T", "scheduler", "entrypoint"], ["run", "--rm", "-T", "study"]):
        done = deployment.compose(*command, "python", "-W", "ignore", "-c", tries)
        assert done.stdout.split("\n")[-9:-1] == ["refused"] * 5 + ["(True,)", "True", "refused"]


def test_a_command_starts_and_changes_no_service(deployment):
    def containers():
        return {(name, c["Id"], c["State"]["StartedAt"]) for name, c in deployment.containers()}

    before = containers()
    environment = deployment.directory / ".env"
    settings = environment.read_text()
    changed = re.sub(r"^RAY_WORKER_MEMORY=.*", "RAY_WORKER_MEMORY=9g", settings, flags=re.MULTILINE)
    assert changed != settings
    environment.write_text(changed)
    assert "quickstart" in deployment.study("ressmooth", "list").stdout
    environment.write_text(settings)
    assert containers() == before


def test_a_service_of_another_build_gets_no_work(deployment):
    old = "RESSMOOTH_BUILD=00000000 ressmooth "
    looked = deployment.study("sh", "-c", old + "list")
    assert "quickstart" in looked.stdout and "warning: this is ressmooth" in looked.stderr
    resume = ["run", "--rm", "-T", "study", "sh", "-c", old + "resume quickstart"]
    refused = deployment.compose(*resume, check=False)
    assert refused.returncode == 2 and "+00000000, but the service" in refused.stderr
    assert deployment.state("quickstart") == "ended"


def test_every_member_of_the_group_docker_can_use_it(deployment, tmp_path, tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    config = tmp_path / "docker"
    config.mkdir()
    if (own := Path.home() / ".docker").exists():
        shutil.copytree(own, config, dirs_exist_ok=True)
    base = tmp_path_factory.getbasetemp()
    for place in (config, *config.parents, deployment.directory, *deployment.directory.parents):
        if place.is_relative_to(base) or "pytest-of" in str(place):
            place.chmod(0o755)
    another = {"user": 54321, "group": Path("/var/run/docker.sock").stat().st_gid}
    options = another | {"extra_groups": [], "cwd": deployment.directory}
    environment = deployment.environment | {"DOCKER_CONFIG": str(config), "HOME": str(tmp_path)}
    shut = run("cat", "secrets/db_password", **options)
    assert "Permission denied" in shut.stderr
    listed = [*deployment.compose_command, "run", "--rm", "-T", "study", "ressmooth", "list"]
    done = run(*listed, env=environment, **options)
    assert "quickstart" in done.stdout, done.stderr


def test_another_clone_is_another_installation(deployment, tmp_path):
    clone = tmp_path / deployment.directory.name  # a directory of the same name
    shutil.copytree(deployment.directory, clone, ignore=shutil.ignore_patterns("secrets", ".env"))
    before = {(name, c["Id"]) for name, c in deployment.containers()}
    foreign = run("docker/init-secrets", cwd=clone, env=deployment.environment)
    assert foreign.returncode == 2 and not (clone / "secrets").exists()
    assert f"belongs to another installation, in {deployment.directory}" in foreign.stderr
    own = {k: v for k, v in deployment.environment.items() if k != "COMPOSE_PROJECT_NAME"}
    run("docker/init-secrets", cwd=clone, env=own, check=True)
    config = run(*deployment.compose_command, "config", cwd=clone, env=own).stdout
    (image,) = set(re.findall(r"image: (ressmooth\S*)", config))
    assert re.fullmatch("ressmooth-[0-9a-f]{8}:latest", image)
    assert {(name, c["Id"]) for name, c in deployment.containers()} == before


def test_what_hangs_is_restarted_and_nobody_waits_for_mlflow(deployment):
    raylet = "kill -STOP $(grep -lx raylet /proc/[0-9]*/comm | cut -d/ -f3)"
    before = {name: c["RestartCount"] for name, c in deployment.containers("mlflow", "ray-worker")}
    freeze = deployment.start_exec("mlflow", "kill -STOP -1")
    deployment.compose("exec", "-T", "ray-worker", "sh", "-c", raylet)
    assert "quickstart" in deployment.study("ressmooth", "list").stdout

    def restarted():
        now = dict(deployment.containers("mlflow", "ray-worker"))
        return all(now[name]["RestartCount"] > count for name, count in before.items())

    wait_for(restarted, 240)
    freeze.kill()
    deployment.wait_until_healthy()
    assert "does not answer" in deployment.compose("logs", "mlflow").stdout


def test_a_calm_study(deployment):
    deployment.study("python", "-m", "ressmooth.study", "calm.toml")
    assert [row.split("|")[3] for row in deployment.results("calm")] == ["complete"] * 8


def test_workers_compile_networks(deployment):
    header = "import os, sysconfig as s; print(os.path.exists(s.get_config_h_filename()))"
    if "True" not in deployment.study("python", "-c", header).stdout:
        pytest.skip("this stand-in for Python's image lacks its headers")
    settings = [f"--set={s}" for s in ("name=compiled", "compile=true", "epochs=2", "seeds=1")]
    deployment.study("python", "-m", "ressmooth.study", "quickstart", *settings)
    assert [row.split("|")[3] for row in deployment.results("compiled")] == ["complete"] * 6
    find = ["exec", "-T", "ray-worker", "find", "/cache/inductor", "-name", "*.so"]
    assert deployment.compose(*find).stdout


def test_killed_workers_and_a_restarted_database_cost_nothing(deployment):
    study = deployment.start("python", "-m", "ressmooth.study", "disturbed.toml")
    recorded = "SELECT count(*) FROM run JOIN trial ON trial.id = trial_id JOIN study ON "
    recorded += "study.id = study_id WHERE name = 'disturbed' AND {}"

    def reached(condition):
        return lambda: int(deployment.query(recorded.format(condition))[0]) >= 1

    wait_for(reached("last_epoch > 5"), 120)
    deployment.compose("kill", "-s", "KILL", "ray-worker")
    deployment.compose("up", "-d", "ray-worker")
    wait_for(reached("run.state = 'complete' AND attempt > 1"), 120)
    deployment.compose("restart", "db")
    output, _ = study.communicate(timeout=300)
    assert study.returncode == 0, output
    logs = deployment.logs()
    assert "worker lost with its node" in logs and "Traceback" not in output + logs
    assert deployment.results("disturbed") == deployment.results("calm")


def test_a_study_goes_on_after_a_reboot(deployment):
    told = deployment.submit("rebooted.toml")
    assert "docker compose run --rm study ressmooth watch rebooted" in told
    assert not deployment.containers("study")
    wait_for(lambda: deployment.epochs("rebooted") > 20, 120)
    deployment.compose("down")
    deployment.compose("up", "-d")
    watched = deployment.study("ressmooth", "watch", "rebooted")
    assert "laplace" in watched.stdout
    assert deployment.state("rebooted") == "ended"
    assert deployment.results("rebooted") == deployment.results("calm")
    assert deployment.attempts("rebooted") > 1  # it was interrupted


def test_a_study_goes_on_after_the_scheduler_was_killed(deployment):
    ((_, before),) = deployment.containers("scheduler")
    deployment.submit("killed.toml")
    wait_for(lambda: deployment.epochs("killed") > 20, 120)
    (process,) = deployment.query("SELECT holder_pid FROM service")
    deployment.compose("exec", "-T", "scheduler", "sh", "-c", f"kill -9 {process}", check=False)

    def restarted():
        ((_, now),) = deployment.containers("scheduler")
        return now["RestartCount"] > before["RestartCount"] and now["State"]["Running"]

    wait_for(restarted, 60)
    wait_for(lambda: deployment.state("killed") == "ended", 300, deployment.logs)
    assert deployment.results("killed") == deployment.results("calm")
    assert deployment.attempts("killed") > 1


def test_a_study_is_stopped_and_resumed_from_any_terminal(deployment):
    deployment.submit("stopped.toml")
    wait_for(lambda: deployment.epochs("stopped") > 20, 120)
    told = deployment.study("ressmooth", "stop", "stopped").stdout
    assert "docker compose run --rm study ressmooth resume stopped" in told
    wait_for(lambda: deployment.state("stopped") == "stopped", 60, deployment.logs)
    recorded = deployment.epochs("stopped")
    assert recorded < 8 * 60
    time.sleep(5)
    assert deployment.epochs("stopped") == recorded
    assert "stopped is queued" in deployment.study("ressmooth", "resume", "stopped").stdout
    followed = deployment.study("ressmooth", "logs", "--follow", "stopped").stdout
    assert followed.count(": complete") == 8
    assert deployment.results("stopped") == deployment.results("calm")


def test_a_worker_that_crashes_comes_back(deployment):
    ((_, before),) = deployment.containers("ray-worker")
    crash = "kill -9 $(grep -lx raylet /proc/[0-9]*/comm | cut -d/ -f3)"
    deployment.compose("exec", "-T", "ray-worker", "sh", "-c", crash, check=False)

    def restarted():
        ((_, now),) = deployment.containers("ray-worker")
        return now["RestartCount"] > before["RestartCount"] and now["State"]["Running"]

    wait_for(restarted, 60)
    deployment.wait_until_healthy()


def test_workers_can_be_scaled(deployment):
    deployment.environment["RAY_WORKERS"] = "2"
    deployment.compose("up", "-d")
    deployment.wait_until_healthy()
    deployment.compose("restart", "scheduler")  # it counts its nodes when it starts
    deployment.wait_until_healthy()
    plan = deployment.study("python", "-m", "ressmooth.study", "calm.toml", "--dry-run")
    cores = 2 * len(os.sched_getaffinity(0))
    assert f"with {cores} CPUs" in " ".join(plan.stdout.split())
    del deployment.environment["RAY_WORKERS"]
    deployment.compose("up", "-d")


def test_a_worker_of_another_build_gets_no_runs(deployment):
    other = "RESSMOOTH_BUILD=00000000 exec ray-node worker"
    options = ["run", "-d", "--no-deps", "--name", "ressmooth-test-other", "ray-worker"]
    deployment.compose(*options, "sh", "-c", other)
    try:
        time.sleep(20)
        deployment.compose("restart", "scheduler")
        wait_for(lambda: "another version of ressmooth" in deployment.logs(), 120, deployment.logs)
        deployment.wait_until_healthy()
        cores = len(os.sched_getaffinity(0))
        queue = " ".join(deployment.study("ressmooth", "queue").stdout.split())
        assert f"with {cores} CPUs" in queue
    finally:
        run("docker", "rm", "-f", "ressmooth-test-other")


def test_an_upgrade_is_one_command_and_studies_go_on(deployment):
    (deployment.directory / "studies" / "upgraded.toml").write_text(STUDY.format(name="upgraded"))
    deployment.submit("upgraded.toml")
    wait_for(lambda: deployment.epochs("upgraded") > 20, 120)
    # Workers wait at the end of their epoch, so that the study still runs when the image is built.
    hold = "BEGIN; LOCK TABLE epoch IN EXCLUSIVE MODE; SELECT pg_sleep(280)"
    holder = deployment.start_exec("db", f"psql -q -U postgres -d results -c '{hold}'")
    with open(deployment.directory / "ressmooth" / "build.py", "a") as source:
        source.write("# a newer version\n")
    ((_, before),) = deployment.containers("scheduler")
    environment = deployment.environment | {"COMPOSE": " ".join(deployment.compose_command)}
    upgrade = ["docker/upgrade", "--no-pull"]
    options = {"cwd": deployment.directory, "env": environment, "text": True}
    with subprocess.Popen(upgrade, stdout=subprocess.PIPE, **options) as process:
        for line in process.stdout:
            print(line, end="")
            if "draining" in line:
                break
        deployment.query(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = "
            "'epoch'::regclass AND mode = 'ExclusiveLock' AND granted"
        )
        stdout = process.stdout.read()
    holder.wait(60)
    assert stdout.endswith("upgrade: done; studies go on\n"), stdout
    assert "upgrade: backed up: 2" in stdout
    ((_, after),) = deployment.containers("scheduler")
    assert after["Image"] != before["Image"]
    assert run("docker", "image", "inspect", before["Image"]).returncode != 0  # removed
    wait_for(lambda: deployment.state("upgraded") == "ended", 300, deployment.logs)
    assert deployment.results("upgraded") == deployment.results("calm")
    assert deployment.attempts("upgraded") > 1  # it was interrupted


def test_a_colleague_gets_an_account_in_one_command(deployment):
    told = deployment.compose("exec", "-T", "mlflow", "add-account", "carl").stdout
    password = told.split()[-1]
    path = "/api/2.0/mlflow/experiments/get-by-name?experiment_name=quickstart"
    assert deployment.get(path, password=password, user="carl") == 200
    assert deployment.get("/signup", password=password, user="carl") == 403  # creates accounts
    again = deployment.compose("exec", "-T", "mlflow", "add-account", "carl", check=False)
    assert again.returncode == 1 and "there is one already" in again.stderr


def test_optunas_dashboard_shows_an_exported_study(deployment):
    out = ["--format", "optuna", "--out", "/home/ressmooth/optuna.db"]
    deployment.study("ressmooth", "export", "quickstart", *out)
    both = ("dashboard", "dashboard-gate")
    deployment.compose("--profile", "dashboard", "up", "-d", *both)
    deployment.wait_until_healthy()
    address = f"http://127.0.0.1:{deployment.dashboard}/api/studies"
    with urllib.request.urlopen(address, timeout=30) as answer:
        studies = json.load(answer)["study_summaries"]
    assert {one["study_name"] for one in studies} == {
        "quickstart sgd",
        "quickstart laplace",
        "quickstart logistic",
    }
    deployment.study("ressmooth", "export", "calm", *out, "--force")
    with urllib.request.urlopen(address, timeout=30) as answer:  # the new export
        studies = json.load(answer)["study_summaries"]
    assert {one["study_name"] for one in studies} == {"calm sgd", "calm laplace"}
    rebound = urllib.request.Request(address, headers={"Host": f"evil.com:{deployment.dashboard}"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(rebound, timeout=30)
    deployment.compose("--profile", "dashboard", "rm", "-sf", *both)


def has_image(name):
    return run("docker", "image", "inspect", name).returncode == 0


def test_behind_caddy_logs_show_the_address_of_the_client(deployment, world):
    if not has_image("caddy:2.10"):
        pytest.skip("no image of Caddy here")
    deployment.environment["MLFLOW_PUBLIC_HOST"] = "localhost"  # Caddy makes its own certificate
    deployment.compose("up", "-d", "mlflow")
    deployment.compose("--profile", "tls", "up", "-d", "caddy")
    deployment.wait_until_healthy()
    ask = "ip netns exec world curl -sk --resolve localhost:443:198.51.100.1 -w %{http_code}"
    forged = ["-H", "X-Forwarded-For: 192.0.2.7"]

    def answer(login, *options):
        return run(*ask.split(), *options, "-u", login, "https://localhost/").stdout[-3:]

    wait_for(lambda: answer("eve:wrong", *forged) == "401", 60)
    assert answer(f"admin:{deployment.secret('mlflow_admin_password')}") == "200"
    assert deployment.get(password="wrong", user="mallory", forwarded="192.0.2.8") == 401
    logs = deployment.compose("logs", "--no-color", "mlflow").stdout
    assert "failed log-in of user 'eve' from 198.51.100.2" in logs
    assert "failed log-in of user 'mallory' from" in logs
    assert "192.0.2." not in logs  # only Caddy is believed
    deployment.compose("--profile", "tls", "rm", "-sf", "caddy")
    del deployment.environment["MLFLOW_PUBLIC_HOST"]


def test_prometheus_sees_the_service(deployment):
    if not has_image("prom/prometheus:v3.5.0"):
        pytest.skip("no image of Prometheus here")
    monitoring = ["--profile", "monitoring"]
    deployment.compose(*monitoring, "up", "-d", "prometheus")
    ask = "promtool query instant http://127.0.0.1:9090 ressmooth_service_active"
    command = [*monitoring, "exec", "-T", "prometheus", *ask.split()]
    wait_for(lambda: "=> 1 " in deployment.compose(*command, check=False).stdout, 90)
    deployment.compose(*monitoring, "rm", "-sf", "prometheus")


def test_what_is_deleted_in_mlflow_is_removed_for_good(deployment):
    find = "SELECT experiment_id FROM experiments WHERE lifecycle_stage = 'deleted'"
    deployment.study("ressmooth", "delete", "killed", "--yes")
    (experiment,) = deployment.query(find, "mlflow")
    note = deployment.study("ressmooth", "clean", "--yes").stderr
    assert "in MLflow: docker compose exec mlflow clean-mlflow" in note
    deployment.compose("exec", "-T", "mlflow", "clean-mlflow", "1")  # it was deleted today
    assert deployment.query(find, "mlflow") == [experiment]
    deployment.compose("exec", "-T", "mlflow", "clean-mlflow")
    assert deployment.query(find, "mlflow") == []
    files = f"find /artifacts/{experiment} -type f"
    assert not deployment.compose("exec", "-T", "mlflow", "sh", "-c", files, check=False).stdout


def test_a_failed_backup_is_unhealthy_and_old_ones_are_removed(deployment):
    deployment.environment |= {"BACKUP_SECONDS": "5", "BACKUP_KEEP": "2"}
    deployment.compose("up", "-d", "--no-deps", "backup")
    deployment.query("ALTER DATABASE mlflow_auth ALLOW_CONNECTIONS false")

    def health():
        ((_, container),) = deployment.containers("backup")
        return container["State"]["Health"]["Status"]

    def found(service, place):
        listed = ["find", place, "-type", "f", "-printf", "%P\\n"]
        return set(deployment.compose("exec", "-T", service, *listed).stdout.split("\n"))

    wait_for(lambda: health() == "unhealthy", 180, health)
    deployment.query("ALTER DATABASE mlflow_auth ALLOW_CONNECTIONS true")
    deployment.wait_until_healthy()
    del deployment.environment["BACKUP_SECONDS"]
    deployment.compose("up", "-d", "--no-deps", "backup")
    for _ in range(2):
        deployment.compose("run", "--rm", "-T", "backup", "once")
    dumps = deployment.directory / "backups" / "dumps"
    assert len(list(dumps.glob("2*"))) == 2
    modes = {path.stat().st_mode & 0o777 for path in dumps.glob("2*/*.dump")}
    assert modes == {0o600}
    assert found("backup", "/backups/artifacts") == found("mlflow", "/artifacts")
    del deployment.environment["BACKUP_KEEP"]
    deployment.compose("up", "-d", "--no-deps", "backup")


def test_it_stops_cleanly_and_keeps_everything(deployment):
    rows = deployment.rows()
    began = time.monotonic()
    deployment.compose("stop")
    assert time.monotonic() - began < 60  # the grace period
    codes = {name: container["State"]["ExitCode"] for name, container in deployment.containers()}
    assert set(codes.values()) <= {0, 143}, codes
    deployment.compose("down")
    deployment.compose("up", "-d")
    deployment.wait_until_healthy()
    assert deployment.rows() == rows


def test_a_backup_brings_back_what_was_wiped(deployment):
    rows = deployment.rows()
    files = "find /artifacts -type f | sort"
    artifacts = deployment.compose("exec", "-T", "mlflow", "sh", "-c", files).stdout
    done = deployment.compose("run", "--rm", "-T", "backup", "once")
    stamp = done.stdout.split()[-1]
    deployment.compose("down", "-v")
    deployment.compose("up", "-d")
    deployment.wait_until_healthy()
    assert deployment.query("SELECT count(*) FROM run") == ["0"]
    deployment.compose("stop", "scheduler", "mlflow", "ray-head", "ray-worker")
    restored = ["run", "--rm", "-T", "--no-deps", "--entrypoint", "restore", "backup"]
    early = deployment.directory / "backups" / "early"  # from before there were artifacts
    early.mkdir()
    early.chmod(0o777)
    deployment.environment["RESSMOOTH_BACKUPS"] = str(early)
    first = deployment.compose("run", "--rm", "-T", "backup", "once").stdout.split()[-1]
    assert deployment.compose(*restored, first).stdout.endswith(f"restored: {first}\n")
    del deployment.environment["RESSMOOTH_BACKUPS"]
    refused = deployment.compose(*restored, "yesterday", check=False)
    assert refused.returncode == 2 and stamp in refused.stderr
    assert deployment.compose(*restored, stamp).stdout.endswith(f"restored: {stamp}\n")
    deployment.compose("up", "-d")
    deployment.wait_until_healthy()
    assert deployment.rows() == rows
    assert deployment.compose("exec", "-T", "mlflow", "sh", "-c", files).stdout == artifacts
    recorded = deployment.results("calm")
    again = deployment.study("python", "-m", "ressmooth.study", "calm.toml")
    assert " on " not in again.stderr and "laplace" in again.stdout
    assert deployment.results("calm") == recorded


def test_an_installation_is_removed_with_what_its_profiles_run(deployment):
    deployment.compose("--profile", "dashboard", "up", "-d", "dashboard", "dashboard-gate")
    deployment.compose("--profile", "*", "down", "-v", "-t", "10")
    left = [
        run("docker", kind, "ls", "-q", "--filter", f"label={PROJECT}", *options).stdout
        for kind, *options in (("container", "-a"), ("volume",), ("network",))
    ]
    assert left == ["", "", ""]
