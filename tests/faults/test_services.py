"""Services that stop, die, freeze or lose their database: studies end as if alone."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import psutil
import pytest
from helpers.launch import freeze, wait_for, workers_of
from helpers.serving import ServedHome, undisturbed_results

from ressmooth.store import Holder, Store

NAMES = ("first", "second", "third")
TAKEOVER = 30.0  # seconds
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(undisturbed):
    return undisturbed_results(undisturbed[0])


@pytest.fixture
def home(store_url, tmp_path):
    """A home whose services lock the machine, as they do for users."""
    with TemporaryDirectory() as machine:
        environment = {"TMPDIR": machine, "RESSMOOTH_BESIDE_SERVICE": ""}
        home = ServedHome(tmp_path / "home", store_url, **environment)
        yield home
        home.close()


def submit_all(home):
    for name in NAMES:
        home.submit(name, owner=f"{name}@box")


def assert_all_end(home, service, alone):
    for name in NAMES:
        home.wait_until(name, "ended", service)
        assert home.results(name) == alone
    assert home.query("SELECT max(failures) FROM run") == [(0,)]


def states(home):
    return [home.state(name) for name in NAMES]


def test_a_stopped_service_leaves_its_studies_to_the_next(home, alone):
    service = home.serving()
    submit_all(home)
    for name in NAMES:
        home.wait_for_epochs(name, 1, service)
    home.store.stop_study(home.store.study("third").id)
    assert home.stop(service) == 143
    assert states(home) == ["queued", "queued", "stopped"]
    assert home.store.service() is None
    assert home.query("SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]
    assert home.query("SELECT count(*) FROM study WHERE holder_token IS NOT NULL") == [(0,)]
    home.store.resume_study(home.store.study("third").id)
    assert_all_end(home, home.serving(), alone)


def test_a_standby_takes_over_from_a_killed_service(home, alone):
    first = home.serving()
    standby = home.serve()
    home.wait(lambda: "standby: " in standby.log.read_text(), standby)
    submit_all(home)
    for name in NAMES:
        home.wait_for_epochs(name, 3, first)
    workers = workers_of(first)
    first.kill()
    first.wait()
    home.wait(lambda: home.is_serving(standby), standby, TAKEOVER)
    wait_for(lambda: not any(is_alive(worker) for worker in workers), 60)
    assert_all_end(home, standby, alone)
    assert home.stop(standby) == 143


def is_alive(process):
    """Tell whether a process still executes. One that nobody waits for stays as a zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def frozen(service, home):
    """Stop a service outside a SQLite transaction, which would block everybody."""
    if home.engine.dialect.name == "sqlite":
        path = home.engine.url.database
        freeze([psutil.Process(service.pid)], path)
    else:
        service.send_signal(signal.SIGSTOP)
    yield
    service.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("wakes_up", ["while the next one trains", "after the end"])
def test_a_frozen_service_is_replaced_and_writes_nothing_when_it_wakes_up(home, alone, wakes_up):
    first = home.serving()
    submit_all(home)
    for name in NAMES:
        home.wait_for_epochs(name, 3, first)
    standby = home.serve()
    with frozen(first, home):
        home.wait(lambda: home.is_serving(standby), standby, TAKEOVER)
        if wakes_up == "after the end":
            assert_all_end(home, standby, alone)
            assert home.stop(standby) == 143
            before = home.digest()
        else:
            home.wait(lambda: ": started" in standby.log.read_text(), standby)
    assert first.wait(60) == 3, first.log.read_text()
    assert "Another service has taken over" in first.log.read_text()
    assert "Traceback" not in first.log.read_text()
    if wakes_up == "after the end":
        assert home.digest() == before
    else:
        assert_all_end(home, standby, alone)


HANGING = """
import os, time
from pathlib import Path
import ressmooth

@ressmooth.dataset
def hangs(root: Path) -> ressmooth.Dataset:
    Path(os.environ["HANGS"]).touch()
    time.sleep(3600)
"""
FREEZING = """
import os, signal, sys
from ressmooth.store import Holder, Store
from ressmooth.store.lease import check_serving

store, holder = Store(sys.argv[1]), Holder.here()
assert store.acquire_service(holder, "local")
with store.database.engine.begin() as connection:
    check_serving(connection, holder)
    print("frozen", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_service_frozen_in_a_transaction_does_not_block_its_standby(postgres_url):
    """PostgreSQL ends the transaction. SQLite cannot: whoever holds its lock blocks everybody."""
    command = [sys.executable, "-c", FREEZING, postgres_url]
    service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert service.stdout.readline() == "frozen\n"
    store, began = Store(postgres_url), time.monotonic()
    while not store.acquire_service(Holder.here(), "local"):
        assert time.monotonic() - began < TAKEOVER
        time.sleep(0.5)
    assert time.monotonic() - began < TAKEOVER
    service.send_signal(signal.SIGCONT)
    assert service.wait(60) != 0
    store.close()


@pytest.mark.parametrize("seconds", [20, pytest.param(60, marks=pytest.mark.chaos)])
def test_a_service_outlives_its_database(
    request, own_postgres, stop_postgres, seconds, tmp_path, alone
):
    home = ServedHome(tmp_path / "home", own_postgres.get_uri())
    request.addfinalizer(home.close)
    service = home.serving()
    submit_all(home)
    for name in NAMES:
        home.wait_for_epochs(name, 1, service)
    stop_postgres("immediate")
    time.sleep(seconds)
    own_postgres.ensure_postgres_running()
    assert_all_end(home, service, alone)
    assert home.query("SELECT max(attempt) FROM run")[0][0] <= 3
    assert "Traceback" not in service.log.read_text()
    assert home.stop(service) == 143


def test_a_service_does_not_wait_for_a_study_that_it_prepares(request, tmp_path):
    """A plug-in that hangs keeps no other study waiting, and nobody from stopping the service."""
    home = ServedHome(tmp_path / "home", HANGS=str(tmp_path / "hangs"))
    request.addfinalizer(home.close)
    plugin = tmp_path / "mine.py"
    plugin.write_text(HANGING)
    (tmp_path / "hanging.toml").write_text('name = "hanging"\ndataset = "hangs"\n[arms.sgd]\n')
    spec = home.spec(tmp_path / "hanging.toml", plugin)
    home.store.submit(spec, "mia@box", None)
    service = home.serving()
    home.wait(lambda: (tmp_path / "hangs").exists(), service)
    home.submit("next", epochs=1)
    home.wait_until("next", "ended", service)
    assert home.state("hanging") == "queued"
    assert home.stop(service) == 143
    assert home.state("hanging") == "queued"
