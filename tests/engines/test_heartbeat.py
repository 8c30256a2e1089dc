"""The thread that renews a lease, and what the main thread learns from it."""

import threading
import time

import pytest
from helpers import specs
from helpers.launch import query, wait_for

from ressmooth.engines import launcher
from ressmooth.engines.heartbeat import LATE, Heartbeat
from ressmooth.errors import StudyBusy
from ressmooth.store import open_store


@pytest.fixture
def store(quick_directory, tmp_path):
    store = open_store(f"sqlite:///{quick_directory}/{tmp_path.name}.db")
    yield store
    store.close()


class Lease:
    """Counts renewals by thread, and does what a test asks for."""

    def __init__(self):
        self.renewals, self.problem = [], None

    def renew(self, store):
        self.renewals.append(threading.current_thread().name)
        if self.problem is not None:
            raise self.problem

    def wait(self, count):
        deadline = time.monotonic() + 30
        while len(self.renewals) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_lease_is_renewed_until_it_is_left(store):
    lease = Lease()
    with Heartbeat(store, 0.05, lease.renew) as heartbeat:
        lease.wait(3)
        heartbeat.check()
    heartbeat.join(30)
    assert not heartbeat.is_alive()


@pytest.mark.parametrize("problem", [OSError("too many open files"), ValueError("a bug")])
def test_a_failed_renewal_is_tried_again(store, problem):
    lease = Lease()
    lease.problem = problem
    with Heartbeat(store, 0.05, lease.renew):
        lease.wait(2)
        lease.problem = None
        lease.wait(4)


def test_a_lost_lease_is_raised_in_the_main_thread_and_not_asked_for_again(store):
    lease = Lease()
    lease.problem = StudyBusy("taken over")
    with Heartbeat(store, 0.05, lease.renew) as heartbeat:
        heartbeat.join(30)
        renewals = len(lease.renewals)
        for _ in range(2):
            with pytest.raises(StudyBusy, match="taken over"):
                heartbeat.check()
    assert len(lease.renewals) == renewals == 1


def test_after_a_freeze_the_main_thread_asks_before_it_goes_on(store):
    """All threads of a frozen process wake up at once, and the main thread may be the first."""
    lease = Lease()
    heartbeat = Heartbeat(store, 60.0, lease.renew)  # its thread does not run
    heartbeat.check()
    assert lease.renewals == []
    heartbeat.renewed -= LATE * 60.0
    heartbeat.check()
    heartbeat.check()
    assert lease.renewals == ["MainThread"]
    heartbeat.renewed -= LATE * 60.0
    lease.problem = StudyBusy("taken over")
    with pytest.raises(StudyBusy):
        heartbeat.check()


def test_heartbeats_are_sent_while_a_study_is_taken_up(tmp_path, monkeypatch):
    """A planner may need minutes for thousands of trials."""

    class Taken(Exception):
        pass

    class SlowPlanner:
        def __init__(self, *_):
            before = query(tmp_path, "SELECT beat_at FROM study")
            wait_for(lambda: query(tmp_path, "SELECT beat_at FROM study") != before, 60)
            raise Taken

    monkeypatch.setattr(launcher, "HEARTBEAT", 0.05)
    monkeypatch.setattr(launcher, "Planner", SlowPlanner)
    spec = specs.study({"sgd": {"method": "mse"}})
    with pytest.raises(Taken):
        launcher.Launcher(spec, None, tmp_path, "", quiet=True, hashes={}).launch()
    assert query(tmp_path, "SELECT holder_pid FROM study") == [(None,)]
