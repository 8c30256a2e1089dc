"""Leases: one launcher per study."""

import dataclasses
import subprocess
import sys

import psutil
import pytest
from helpers.store_rows import spec
from sqlalchemy import text

from ressmooth.errors import StudyBusy
from ressmooth.store import Holder


@pytest.fixture
def study_id(store):
    return store.open_study(spec())


@pytest.fixture
def child():
    """Another process on this host."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def holder_of(process):
    started = psutil.Process(process.pid).create_time()
    return dataclasses.replace(Holder.here(), pid=process.pid, started=started)


def age_heartbeat(store, seconds):
    """Move the last heartbeat into the past."""
    ago = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '-{seconds} seconds')",
        "postgresql": f"now() - interval '{seconds} seconds'",
    }[store.database.engine.dialect.name]
    with store.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE study SET beat_at = {ago}"))


def test_a_held_study_names_its_holder(store, study_id):
    holder = Holder.here()
    store.acquire(study_id, holder)
    study = store.study("demo")
    assert study.held_by == f"{holder.host}/{holder.pid}"
    assert study.held_at is not None
    store.release(study_id, holder)
    assert (store.study("demo").held_by, store.study("demo").held_at) == (None, None)


def test_a_study_of_a_living_launcher_is_busy(store, study_id, child):
    first = holder_of(child)
    store.acquire(study_id, first)
    age_heartbeat(store, 100)
    with pytest.raises(StudyBusy, match=f"'demo' is being run by {first.host}/{child.pid} since"):
        store.acquire(study_id, Holder.here())
    assert store.study("demo").held_by == str(first)


def test_a_launcher_can_acquire_twice_and_after_release(store, study_id):
    holder = Holder.here()
    store.acquire(study_id, holder)
    store.acquire(study_id, holder)
    store.release(study_id, holder)
    store.acquire(study_id, Holder.here())


def test_two_holders_in_one_process_exclude_each_other(store, study_id):
    store.acquire(study_id, Holder.here())
    with pytest.raises(StudyBusy):
        store.acquire(study_id, Holder.here())


@pytest.mark.parametrize("reap", [False, True])
def test_a_dead_launcher_on_this_host_is_replaced_at_once(store, study_id, child, reap):
    store.acquire(study_id, holder_of(child))
    child.kill()
    if reap:
        child.wait()
    while not reap and psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    store.acquire(study_id, Holder.here())


def test_a_reused_pid_is_not_the_launcher(store, study_id, child):
    earlier = dataclasses.replace(holder_of(child), started=1.0)
    store.acquire(study_id, earlier)
    store.acquire(study_id, Holder.here())


def test_a_remote_launcher_is_replaced_when_its_lease_lapses(store, study_id):
    elsewhere = dataclasses.replace(Holder.here(), host="elsewhere", pid=2**22 + 1)
    store.acquire(study_id, elsewhere)
    age_heartbeat(store, 110)
    with pytest.raises(StudyBusy, match="elsewhere/4194305"):
        store.acquire(study_id, Holder.here())
    age_heartbeat(store, 130)
    mine = Holder.here()
    store.acquire(study_id, mine)
    with pytest.raises(StudyBusy, match=f"lost its lease.*{mine}"):
        store.heartbeat(study_id, elsewhere, 5.0)
    store.release(study_id, elsewhere)
    assert store.study("demo").held_by == str(mine)


def test_a_heartbeat_renews_the_lease_and_records_the_time(store, study_id):
    elsewhere = dataclasses.replace(Holder.here(), host="elsewhere")
    store.acquire(study_id, elsewhere)
    age_heartbeat(store, 130)
    store.heartbeat(study_id, elsewhere, 42.5)
    with pytest.raises(StudyBusy):
        store.acquire(study_id, Holder.here())
    assert store.study("demo").elapsed == 42.5


def test_a_heartbeat_after_release_is_refused(store, study_id):
    holder = Holder.here()
    store.acquire(study_id, holder)
    store.release(study_id, holder)
    with pytest.raises(StudyBusy, match="nobody"):
        store.heartbeat(study_id, holder, 1.0)
