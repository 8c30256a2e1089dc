"""`ressmooth ui` as a process: its port, its addresses, its end."""

import re
import shlex
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from helpers.records import free_port, open_study, train_all
from helpers.servers import Ui

from ressmooth.errors import ConfigError
from ressmooth.store import default_url, open_store
from ressmooth.tracking.server import listen

PAGES = (
    *("/", "/queue", "/report/seen", "/curves/seen"),
    *("/mlflow/", "/mlflow/ajax-api/2.0/mlflow/experiments"),
)


@pytest.fixture(autouse=True)
def no_tracking_uri(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def run(home, port):
    command = [sys.executable, "-m", "ressmooth.cli", "ui", "--home", home, "--port", str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_missing_home_is_an_error_and_stays_missing(tmp_path):
    done = run(tmp_path / "nope", free_port())
    assert done.returncode == 2 and done.stdout == ""
    assert f"ressmooth study quickstart --home {tmp_path}/nope" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_an_error_with_a_free_one(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run(tmp_path, port)
    assert done.returncode == 2 and done.stderr.startswith(f"error: --port {port}: Address already")
    suggested = shlex.split(done.stderr.partition("run: ")[2])
    assert suggested[:3] == ["ressmooth", "ui", "--port"] and int(suggested[3]) != port
    assert suggested[4:] == ["--home", str(tmp_path)]
    with socket.create_server(("127.0.0.1", int(suggested[3]))):
        pass  # the suggested port is free
    assert list(tmp_path.iterdir()) == []


def test_a_port_is_taken_while_the_server_starts(tmp_path):
    """A second `ressmooth ui` must not begin to load MLflow, and then fail."""
    port = free_port()
    with listen(tmp_path, port), pytest.raises(ConfigError, match=f"--port {port}: Address alread"):
        listen(tmp_path, port)


def test_errors_load_nothing_heavy(tmp_path):
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.cli import main\n"
        f"done = CliRunner().invoke(main, ['ui', '--home', {str(tmp_path / 'nope')!r}])\n"
        "heavy = ('torch', 'mlflow', 'optuna', 'ray', 'sqlalchemy', 'matplotlib', 'uvicorn')\n"
        "print(done.exit_code, [m for m in heavy if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.strip() == "2 []"


@pytest.fixture
def ui(tmp_path):
    store = open_store(default_url(tmp_path))
    train_all(store, open_study(store, "seen", seeds=1), tmp_path)
    store.close()
    ui = Ui(tmp_path)
    yield ui
    ui.kill()


@pytest.mark.slow
def test_only_this_machine_and_its_names_are_answered(ui):
    """A page elsewhere that rebinds its name to 127.0.0.1 sends its own Host header."""
    assert ui.status("/") == 200  # at once: the address was printed
    assert [ui.status(page, f"localhost:{ui.port}") for page in ("/", "/mlflow/")] == [200, 200]
    hosts = ("evil.example", f"evil.example:{ui.port}", "localhost", f"127.0.0.1:{ui.port + 1}")
    assert {ui.status(page, host) for page in PAGES for host in hosts} == {403}
    sockets = psutil.Process(ui.process.pid).net_connections()
    listening = [each for each in sockets if each.status == "LISTEN"]
    assert [each.laddr for each in listening] == [("127.0.0.1", ui.port)]


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_it_and_prints_nothing(ui, number, code):
    assert ui.status("/mlflow/", "evil.example") == 403  # MLflow would warn of it
    with socket.create_connection(("127.0.0.1", ui.port)):  # a browser keeps its connection
        assert ui.stop(number) == (code, [])
    first, second, *lines = ui.log.read_text().splitlines()
    assert first == "starting MLflow ..."
    assert re.fullmatch(r"delivering \d+ events to MLflow \.\.\.", second)
    studies = f"Studies are at {ui.address} (Ctrl-C stops it)"
    assert lines == [studies, f"  seen: {ui.address}/curves/seen"]
