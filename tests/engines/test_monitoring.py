"""What a launch and a service tell others: the webhook, and Prometheus."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest
from click.testing import CliRunner
from helpers.launch import invoke, launch, query, wait_for
from helpers.records import free_port
from helpers.servers import Receiver
from helpers.specs import study as make_spec

from ressmooth.cli import main
from ressmooth.engines.launcher import STANDSTILL, check_standstill
from ressmooth.engines.scheduler import ActiveStudy, Scheduler
from ressmooth.search.planner import Planner

SMALL = """
name = "small"
dataset = "digits"
fraction = 0.1
epochs = 1
seeds = 1
arms.sgd = { method = "mse" }
arms.laplace = { method = "smoothing" }
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def environment(address):
    return {**os.environ, "RESSMOOTH_WEBHOOK": address, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}


def assert_no_secret(home, *said):
    for text in said:
        assert "sekret" not in text
    for path in home.rglob("*"):
        assert not path.is_file() or b"sekret" not in path.read_bytes(), path


def test_a_launch_tells_how_its_study_ended(file, tmp_path):
    home = tmp_path / "home"
    with Receiver() as receiver:
        done = launch(file, home, "--workers", "1", env=environment(receiver.address))
        assert done.returncode == 0, done.stderr
        (message,) = receiver.received
        assert message["text"].startswith("small has ended. By the best epoch's accuracy on digits")
        assert message["kind"] == "ended" and message["study"] == "small"
    assert_no_secret(home, done.stdout, done.stderr)


@pytest.mark.slow
def test_what_a_launch_could_not_send_is_sent_by_sync(file, tmp_path, monkeypatch):
    home, port = tmp_path / "home", free_port()
    address = f"http://127.0.0.1:{port}/services/sekret"
    done = launch(file, home, "--workers", "1", env=environment(address))
    assert done.returncode == 0
    assert "warning: 1 message not sent to the webhook (" in done.stderr
    assert f"later: ressmooth sync --home {home}" in done.stderr
    assert_no_secret(home, done.stdout, done.stderr)
    monkeypatch.setenv("RESSMOOTH_WEBHOOK", address)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    unanswered = CliRunner().invoke(main, ["sync", "--home", str(home)])
    assert unanswered.exit_code == 4 and "events delivered" in unanswered.stdout
    assert "error: The webhook does not answer" in unanswered.stderr
    with Receiver(port=port) as receiver:
        sent = CliRunner().invoke(main, ["sync", "--home", str(home)])
        assert sent.exit_code == 0 and sent.output.startswith("1 message sent to the webhook\n")
        assert [message["study"] for message in receiver.received] == ["small"]
    assert_no_secret(home, unanswered.output, sent.output)


def test_a_wrong_address_is_an_error_before_anything_starts(file, tmp_path):
    env = {"RESSMOOTH_WEBHOOK": "hooks.example.org/sekret"}
    home = tmp_path / "home"
    refused = [
        invoke(file, home, env=env),
        CliRunner().invoke(main, ["serve", "--home", str(home)], env=env),
        CliRunner().invoke(main, ["sync", "--home", str(home)], env=env),
    ]
    for done in refused[:2]:
        assert done.exit_code == 2 and "error: RESSMOOTH_WEBHOOK: " in done.stderr
    assert not home.exists() and "sekret" not in "".join(done.output for done in refused)


@contextmanager
def serving(home, log, *options, **changes):
    """Run a service. Stop it at the end as a user does."""
    command = [sys.executable, "-m", "ressmooth.cli", "serve", "--home", str(home), *options]
    with open(log, "w") as file:
        service = subprocess.Popen(command, env={**os.environ, **changes}, stdout=file, stderr=file)
    try:
        yield service
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_service_tells_how_a_submitted_study_ended_and_is_scraped(file, tmp_path):
    home, log, port = tmp_path / "home", tmp_path / "log", free_port()
    submitted = invoke(file, home, "--detach")
    assert submitted.exit_code == 0, submitted.output
    options = ["--workers", "1", "--metrics-port", str(port)]
    with Receiver(500) as receiver, serving(home, log, *options, **environment(receiver.address)):
        sent = "SELECT 1 FROM notification WHERE sent_at IS NOT NULL"
        wait_for(lambda: receiver.received and query(home, sent))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            scraped = answer.read().decode()
    assert [message["kind"] for message in receiver.received] == ["ended"]
    assert query(home, "SELECT count(*) FROM notification WHERE sent_at IS NULL") == [(0,)]
    for line in (
        'ressmooth_studies{state="ended"} 1.0',
        "ressmooth_epochs_total 2.0",
        f'ressmooth_workers{{node="{socket.gethostname()}"}} 1.0',
        "ressmooth_webhook_pending_messages 0.0",
    ):
        assert f"\n{line}\n" in scraped, scraped
    said = log.read_text()
    assert f"metrics for Prometheus are at http://127.0.0.1:{port}/metrics" in said
    assert "The webhook does not accept messages now (HTTP 500" in said
    assert_no_secret(home, said, scraped)


def test_a_taken_metrics_port_is_an_error_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        home = tmp_path / "home"
        words = ["serve", "--metrics-port", str(port), "--home", str(home)]
        done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and f"error: --metrics-port {port}: " in done.stderr
    assert not home.exists()


def test_a_study_without_an_epoch_for_an_hour_stands_still(store):
    store.notifies = True
    spec = make_spec({"sgd": {"method": "mse"}})
    study = ActiveStudy(Planner(store, store.open_study(spec), spec))
    Scheduler().add(study)
    check_standstill(store, study)
    assert store.count_notifications() == 0
    study.last_epoch_at -= STANDSTILL + 1
    for _ in range(2):
        check_standstill(store, study)
    assert store.count_notifications() == 1
    assert store.claim_notification().kind == "standstill"
