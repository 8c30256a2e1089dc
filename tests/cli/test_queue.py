"""`ressmooth queue` and `ressmooth workers`, with a Store."""

import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from helpers import records, specs
from helpers.store_rows import set_state

from ressmooth.cli import main
from ressmooth.store import Holder, default_url, open_store

HEAVY = ("torch", "mlflow", "optuna", "ray", "matplotlib", "scipy", "numpy", "alembic")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RESSMOOTH_DATABASE_URL", "RESSMOOTH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def home(tmp_path):
    """A home whose service, this process, runs one study; another one waits."""
    store = open_store(default_url(tmp_path))
    store.holder = Holder.here()
    nodes = [{"node": "gpu1", "workers": 2, "gpus": ["0"]}]
    assert store.acquire_service(store.holder, "local")
    store.service_heartbeat(store.holder, "2 workers on 1 GPU", nodes, {})
    for name, owner in (("first", "ann@desk"), ("second", "bob@desk")):
        store.submit(specs.study(records.ARMS, seeds=2, name=name), owner, None)
    study_id = store.study("first").id
    store.acquire(study_id, store.holder)
    set_state(store, study_id, "running")
    records.open_study(store, "first")
    run = records.runs_of(store, study_id)[0]
    attempt = store.claim(run.id, {**records.ENVIRONMENT, "host": "gpu1", "gpus": "0"})
    store.record_epoch(attempt, records.epoch(1), None)
    store.close()
    return tmp_path


def run(*arguments, home):
    done = CliRunner().invoke(main, [*arguments, "--home", str(home)])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_queue_shows_every_study(home):
    text = run("queue", home=home)
    assert re.search(r"^first +running +normal +0/6", text, re.MULTILINE)
    assert re.search(r"^second +queued +normal +0/6", text, re.MULTILINE)
    assert "gpu1 GPU 0: sgd seed 0, epoch 1/3" in text and "local engine, 2 workers" in text


def test_the_workers_show_what_runs(home):
    text = run("workers", home=home)
    assert "gpu1: 2 workers, 1 GPU" in text and re.search(r"sgd seed 0 +first +GPU 0 +1/3", text)


def test_old_studies_are_hidden_unless_all_are_asked_for(tmp_path):
    store = open_store(default_url(tmp_path))
    for number in range(12):
        records.open_study(store, f"study-{number:02}")
    store.close()
    text = run("queue", home=tmp_path)
    assert "study-02" in text and "study-01" not in text and "2 older rows hidden" in text
    assert "study-01" in run("queue", "--all", home=tmp_path)


def test_the_log_of_a_failed_study_says_why(home):
    store = open_store(default_url(home))
    set_state(store, store.study("second").id, "failed", "no data\nnobody answered")
    store.close()
    assert run("logs", "second", home=home) == "error: no data\nerror: nobody answered\n"
    assert run("logs", "first", home=home) == ""


def test_watching_without_a_terminal_prints_once(home):
    assert run("queue", "--watch", home=home).count("first") == 1


def test_watching_refreshes_until_ctrl_c(home):
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "ressmooth.cli", "queue", "--watch", "--home", str(home)]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    shown, until = b"", time.monotonic() + 60
    while shown.count(b"2 workers on 1 GPU") < 2 and time.monotonic() < until:
        shown += os.read(controller, 65536)
    process.send_signal(signal.SIGINT)
    try:
        while chunk := os.read(controller, 65536):
            shown += chunk
    except OSError:
        pass  # its end
    assert process.wait(60) == 0
    assert b"Traceback" not in shown and b"Aborted" not in shown


@pytest.mark.parametrize("command", ["queue", "workers"])
def test_the_commands_load_nothing_heavy(home, command):
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.cli import main\n"
        f"done = CliRunner().invoke(main, [{command!r}, '--home', {str(home)!r}])\n"
        f"print(done.exit_code, [m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "0 []", done.stderr
