"""The log-in in front of the deployed MLflow: who has to wait, and who never does."""

import asyncio
import base64
import logging

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from ressmooth.errors import TrackingError
from ressmooth.tracking import login
from ressmooth.tracking.login import FORGOTTEN, FREE, LONGEST, Login, Throttle

RIGHT = "the right password"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def throttle(clock):
    return Throttle(clock)


def fail(throttle, times=1, address="10.0.0.1", user="ann"):
    for _ in range(times):
        throttle.failed(address, user, "wrong")


def test_the_delay_doubles_up_to_a_bound_and_passes(throttle, clock):
    fail(throttle, FREE - 1)
    assert throttle.wait("10.0.0.1", "ann") == 0
    waits = []
    for _ in range(8):
        fail(throttle)
        waits.append(throttle.wait("10.0.0.1", "ann"))
    assert waits == [1, 2, 4, 8, 16, LONGEST, LONGEST, LONGEST] and LONGEST <= 60
    clock.now += LONGEST
    assert throttle.wait("10.0.0.1", "ann") == 0


def test_another_address_or_user_does_not_wait(throttle):
    fail(throttle, FREE)
    assert throttle.wait("10.0.0.1", "ann") > 0
    assert throttle.wait("10.0.0.2", "ann") == throttle.wait("10.0.0.1", "bob") == 0


def test_failures_are_forgotten_after_a_success_or_a_while(throttle, clock):
    fail(throttle, FREE)
    throttle.succeeded("10.0.0.1", "ann", RIGHT)
    assert throttle.wait("10.0.0.1", "ann") == 0
    fail(throttle, 20)
    clock.now += FORGOTTEN + 1
    fail(throttle)
    assert throttle.wait("10.0.0.1", "ann") == 0


def test_the_memory_is_bounded(throttle, monkeypatch):
    monkeypatch.setattr(login, "CAPACITY", 10)
    throttle = Throttle(throttle.clock)
    for number in range(100):
        throttle.failed("10.0.0.1", f"user {number}", "wrong")
        throttle.succeeded("10.0.0.2", f"user {number}", RIGHT)
    assert len(throttle.attempts) == len(throttle.known) == 10
    fail(throttle, user="x" * 60_000)
    assert max(len(user) for _, user in throttle.attempts) <= 100


@pytest.fixture
def client(throttle):
    """A page behind the log-in of ann, whose accounts cannot be read for the user `down`."""
    throttle.checked = []

    def check(user, password):
        throttle.checked.append(user)
        if user == "down":
            raise TrackingError("MLflow's accounts cannot be read now.")
        return (user, password) == ("ann", RIGHT)

    return TestClient(Login(PlainTextResponse("a page"), check, throttle))


def get(client, user="ann", password=RIGHT, path="/"):
    return client.get(path, auth=(user, password))


def test_only_health_is_answered_without_a_log_in(client, throttle):
    assert client.get("/health").text == "a page"
    for path in ("/", "/health/", "/healthy", "/queue", "/mlflow/health", "/mlflow/static-files/a"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["WWW-Authenticate"][:5]) == (401, "Basic"), path
        for header in ("Basic", "Basic !", "Bearer token", "Digest a"):
            assert client.get(path, headers={"Authorization": header}).status_code == 401
    assert throttle.checked == []  # nor does it count as a failure
    assert get(client).text == "a page"


def test_attempts_are_slowed_down_and_the_right_password_waits_too(client, throttle, clock):
    assert {get(client, password=f"wrong {n}").status_code for n in range(FREE)} == {401}
    answer = get(client)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert "try again in 1 s" in answer.text and len(throttle.checked) == FREE
    clock.now += 1
    assert get(client).text == "a page"
    assert get(client, password="wrong").status_code == 401  # failures count from zero again


def test_who_has_logged_in_before_is_never_locked_out(client):
    assert get(client).status_code == 200
    for number in range(3 * FREE):
        get(client, password=f"wrong {number}")
    assert get(client, password="another").status_code == 429
    assert get(client).status_code == 200


def test_attempts_at_once_are_counted_one_by_one(client, throttle):
    async def flood():
        def attempt(number):
            login = base64.b64encode(f"ann:wrong {number}".encode())
            headers = [(b"authorization", b"Basic " + login)]
            scope = {"type": "http", "path": "/", "headers": headers, "client": ("10.0.0.1", 1)}
            return client.app._refusal(scope)

        return await asyncio.gather(*map(attempt, range(50)))

    answers = [answer.status_code for answer in asyncio.run(flood())]
    assert answers.count(401) == len(throttle.checked) == FREE and answers.count(429) == 50 - FREE


def test_failures_are_logged_with_address_and_user(client, caplog):
    caplog.set_level(logging.WARNING, "ressmooth.login")
    get(client, user="ann\nroot", password="my secret")
    (record,) = caplog.records
    assert record.getMessage() == "failed log-in of user 'ann\\nroot' from testclient"


def test_accounts_that_cannot_be_read_are_no_failed_log_in(client):
    for _ in range(2 * FREE):
        answer = get(client, user="down")
        assert (answer.status_code, answer.text[:17]) == (503, "MLflow's accounts")
