"""Messages to a webhook: a small HTTP server in place of Slack."""

import logging
import shutil
import time

import pytest
from helpers import records
from helpers.launch import query
from helpers.records import free_port
from helpers.servers import Receiver, answering
from helpers.specs import study as make_spec

from ressmooth.errors import ConfigError
from ressmooth.store import StudyState, open_store
from ressmooth.tracking import webhook
from ressmooth.tracking.webhook import Unanswered, Webhook, send_pending, webhook_address

ARMS = {"sgd": {"method": "mse"}, "laplace": {"method": "smoothing"}}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A database with the studies demo, which has a verdict, and none, all of whose runs failed."""
    file = tmp_path_factory.mktemp("recorded") / "results.db"
    store = open_store(f"sqlite:///{file}")
    records.simulate(store, make_spec(ARMS, name="demo"), lambda config: 90.0)
    records.simulate(store, make_spec(ARMS, name="none"), lambda config: None)
    store.close()
    return file


@pytest.fixture
def results(recorded, tmp_path):
    """A store whose process has a webhook."""
    shutil.copy(recorded, tmp_path)
    store = open_store(f"sqlite:///{tmp_path}/results.db")
    store.notifies = True
    yield store
    store.close()


@pytest.fixture
def ended(results):
    """A store with a study that has just ended."""
    end(results, "demo")
    return results


def end(store, name, problem=None):
    tell(store, store.study(name).id, problem)


def tell(store, study_id, problem=None):
    began = store.begin(study_id, "ann@box")
    store.end(study_id, StudyState.FAILED if problem else StudyState.ENDED, began, problem)


def texts(receiver):
    return [message["text"] for message in receiver.received]


def test_a_message_has_the_verdict_and_the_command_to_see_more(ended, tmp_path):
    with Receiver() as receiver:
        assert send_pending(ended, tmp_path, receiver.address) == 1
    (message,) = receiver.received
    text = message.pop("text")
    assert message == {"study": "demo", "kind": "ended", "owner": "ann@box"}
    assert text.startswith("demo has ended. By the best epoch's accuracy on digits (small")
    assert text.endswith(f"\nressmooth compare demo --home {tmp_path}")
    ((command, path, headers),) = receiver.requests
    assert (command, path) == ("POST", "/services/sekret")
    assert headers["Content-Type"] == "application/json"


def test_a_message_is_sent_once(ended, tmp_path):
    with Receiver() as receiver:
        for _ in range(2):
            send_pending(ended, tmp_path, receiver.address)
        assert len(receiver.received) == 1


def test_a_study_without_a_result_has_no_verdict(results, tmp_path):
    end(results, "none")
    with Receiver() as receiver:
        send_pending(results, tmp_path, receiver.address)
    (text,) = texts(receiver)
    assert text == f"none has ended. No trial is complete.\nressmooth show none --home {tmp_path}"


def test_a_failure_and_a_standstill(results, tmp_path):
    end(results, "none", "a.toml:3: no\nsecond line <!channel> @here & more")
    results.notify(results.study("none").id, "standstill")
    with Receiver() as receiver:
        send_pending(results, tmp_path, receiver.address)
    failed, standstill = texts(receiver)
    problem = "a.toml:3: no; second line &lt;!channel&gt; @\u200bhere &amp; more"
    assert failed == f"none has failed: {problem}\nressmooth show none --home {tmp_path}"
    assert standstill.startswith("none stands still: no epoch has ended for an hour.\nressmooth w")


def test_a_verdict_that_cannot_be_computed_loses_no_message(ended, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "_verdict", lambda *_: 1 / 0)
    with Receiver() as receiver:
        send_pending(ended, tmp_path, receiver.address)
    assert texts(receiver) == [f"demo has ended.\nressmooth compare demo --home {tmp_path}"]


@pytest.mark.parametrize("status", [0, 302, 307, 408, 429, 500, 503])
def test_an_outage_delays_a_message(ended, tmp_path, status):
    with Receiver(status) as receiver:
        with pytest.raises(Unanswered) as raised:
            send_pending(ended, tmp_path, receiver.address)
        assert "sekret" not in str(raised.value)
        assert ended.count_notifications() == 1 and receiver.received == []
        assert send_pending(ended, tmp_path, receiver.address) == 1


def test_nobody_there_and_no_answer(ended, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "TIMEOUT", 0.2)
    with pytest.raises(Unanswered, match="refused"):
        send_pending(ended, tmp_path, f"http://127.0.0.1:{free_port()}/sekret")
    with answering(200, hangs=True) as address, pytest.raises(Unanswered, match="timed out"):
        send_pending(ended, tmp_path, f"http://{address}/sekret")
    assert ended.count_notifications() == 1


@pytest.mark.parametrize("status", [400, 403, 404, 410])
def test_a_refusal_is_logged_and_not_repeated(ended, tmp_path, status, caplog):
    end(ended, "none")
    with Receiver(status) as receiver:
        assert send_pending(ended, tmp_path, receiver.address) == 1
        assert send_pending(ended, tmp_path, receiver.address) == 0
    assert len(receiver.requests) == 2 and receiver.received[0]["study"] == "none"
    (record,) = caplog.records
    assert f"refused the message that demo has ended (HTTP {status}" in record.getMessage()
    assert "sekret" not in caplog.text


def test_a_redirect_is_not_followed(ended, tmp_path):
    with Receiver() as other, Receiver(301, 302, 303, 307, 308, moved_to=other.address) as moved:
        for _ in range(5):
            with pytest.raises(Unanswered, match="HTTP 30"):
                send_pending(ended, tmp_path, moved.address)
        assert other.requests == [] and len(moved.requests) == 5


def test_senders_at_once_send_a_message_once(store, tmp_path):
    store.notifies = True
    study_id = store.open_study(make_spec(ARMS, name="demo"))
    for number in range(30):
        tell(store, study_id, f"problem {number}")
    with Receiver() as receiver:
        senders = [Webhook(store.url, tmp_path, receiver.address) for _ in range(3)]
        for sender in senders:
            sender.start()
        assert [sender.finish(30) for sender in senders] == [0, 0, 0]
    assert len(receiver.received) == len(set(texts(receiver))) == 30


def test_the_thread_retries_until_the_hook_is_back(ended, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(webhook, "PERIOD", 0.05)
    port = free_port()
    sender = Webhook(ended.url, tmp_path, f"http://127.0.0.1:{port}/sekret")
    sender.start()
    while not caplog.records:
        time.sleep(0.05)
    time.sleep(0.3)
    with Receiver(port=port) as receiver:
        while not receiver.received:
            time.sleep(0.05)
        assert sender.finish(10) == 0
    assert len(caplog.records) == 1 and "sekret" not in caplog.text  # one line per outage


def test_a_thread_that_cannot_deliver_ends_and_says_what_is_left(ended, tmp_path):
    sender = Webhook(ended.url, tmp_path, f"http://127.0.0.1:{free_port()}/sekret")
    sender.start()
    began = time.monotonic()
    assert sender.finish(5) == 1
    assert not sender.is_alive() and time.monotonic() - began < 4
    assert "refused" in sender.problem


def test_a_hook_that_hangs_is_left_behind(ended, tmp_path):
    with answering(200, hangs=True) as address:
        sender = Webhook(ended.url, tmp_path, f"http://{address}/sekret")
        sender.start()
        began = time.monotonic()
        assert sender.finish(0.5) == 1
        assert time.monotonic() - began < 3


def test_the_thread_never_raises(tmp_path, caplog):
    sender = Webhook(f"sqlite:///{tmp_path}/missing.db", tmp_path, "http://127.0.0.1:9/sekret")
    sender.start()
    assert sender.finish(10) == 0
    assert not sender.is_alive()


@pytest.mark.parametrize(
    "address",
    [
        "sekret",
        "hooks.slack.com/sekret",
        "ftp://sekret.example.org/x",
        "file:///etc/sekret",
        "https://",
        "https:///sekret",
        "https://host:sekret/x",
        "https://host:99999/sekret",
        "https://host/sekret here",
        "https://host/sekret\nX: y",
        "https://me:sekret@host/",
        "https://host/sekr\u00e9t",
        "https://[::1/sekret",
    ],
)
def test_a_wrong_address_is_refused_and_not_shown(monkeypatch, address):
    monkeypatch.setenv("RESSMOOTH_WEBHOOK", address)
    with pytest.raises(ConfigError, match="RESSMOOTH_WEBHOOK: .*http") as raised:
        webhook_address()
    assert "sek" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("address", ["", None])
def test_no_address_is_no_webhook(monkeypatch, address):
    monkeypatch.delenv("RESSMOOTH_WEBHOOK", raising=False)
    if address is not None:
        monkeypatch.setenv("RESSMOOTH_WEBHOOK", address)
    assert webhook_address() is None


def test_an_address_is_used_as_it_is(monkeypatch):
    for address in ("https://hooks.slack.com/services/T0/B0/x?y=%20", "http://[::1]:8065/hooks/x"):
        monkeypatch.setenv("RESSMOOTH_WEBHOOK", f" {address}\n")
        assert webhook_address() == address


def test_nothing_of_the_address_is_stored(ended, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with Receiver(404) as receiver:
        send_pending(ended, tmp_path, receiver.address)
    rows = query(tmp_path, "SELECT * FROM notification")
    assert rows and "sekret" not in repr(rows) and "sekret" not in caplog.text
