"""A study's state: every command in every state, also at the same moment."""

import multiprocessing
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.store_rows import command_at_once, set_barrier, spec
from sqlalchemy import text

from ressmooth.errors import ConfigError
from ressmooth.store import Holder, Priority, StudyState

QUEUED, RUNNING, STOPPING, STOPPED, ENDED, FAILED = StudyState
ANYBODY = "mia@box"
TESTS = Path(__file__).parents[1]
CUT = """
import os, sys
from helpers.store_rows import spec
from ressmooth.store import Store, submissions

submissions._update = lambda *args, **values: os.kill(os.getpid(), 9)
Store(sys.argv[1]).submit(spec(), "mia@box", None)
"""
AFTER = {  # by command and holder: the state after each of StudyState
    ("submit", "alive"): [QUEUED, RUNNING, RUNNING, QUEUED, QUEUED, QUEUED],
    ("submit", "dead"): [QUEUED, QUEUED, QUEUED, QUEUED, QUEUED, QUEUED],
    ("submit", "nobody"): [QUEUED, QUEUED, QUEUED, QUEUED, QUEUED, QUEUED],
    ("resume", "alive"): [QUEUED, RUNNING, RUNNING, QUEUED, QUEUED, QUEUED],
    ("resume", "dead"): [QUEUED, QUEUED, QUEUED, QUEUED, QUEUED, QUEUED],
    ("resume", "nobody"): [QUEUED, QUEUED, QUEUED, QUEUED, QUEUED, QUEUED],
    ("stop", "alive"): [STOPPED, STOPPING, STOPPING, STOPPED, ENDED, FAILED],
    ("stop", "dead"): [STOPPED, STOPPED, STOPPED, STOPPED, ENDED, FAILED],
    ("stop", "nobody"): [STOPPED, STOPPED, STOPPED, STOPPED, ENDED, FAILED],
    ("confirm_stop", "alive"): [QUEUED, RUNNING, STOPPED, STOPPED, ENDED, FAILED],
    ("begin", "alive"): [RUNNING] * 6,
    ("end", "alive"): [QUEUED, ENDED, ENDED, STOPPED, ENDED, FAILED],
    ("release", "alive"): [QUEUED, STOPPED, STOPPED, STOPPED, ENDED, FAILED],
    ("release_service", "alive"): [QUEUED, QUEUED, STOPPED, STOPPED, ENDED, FAILED],
}


def put(store, study_id, state, holder=None):
    """Set a study's state and holder, whatever they were."""
    if holder is not None:
        store.acquire(study_id, holder)
    with store.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE study SET state = '{state}', problem = 'before'"))


def do(store, command, study_id, holder):
    match command:
        case "submit":
            store.submit(spec(), ANYBODY, None)
        case "resume":
            store.resume_study(study_id)
        case "stop":
            store.stop_study(study_id)
        case "begin":
            store.begin(study_id, ANYBODY)
        case "end":
            store.end(study_id, ENDED, store.submission(study_id).submitted_at)
        case "confirm_stop":
            store.confirm_stop(study_id)
        case "release":
            store.release(study_id, holder)
        case "release_service":
            store.release_service(holder)


@pytest.mark.parametrize(("command", "held_by"), AFTER)
def test_every_command_in_every_state(store, command, held_by):
    here = Holder.here()
    holder = {"alive": here, "dead": replace(here, started=1.0), "nobody": None}[held_by]
    after = {}
    study_id = store.submit(spec(), ANYBODY, None)
    for state in StudyState:
        put(store, study_id, state, holder)
        do(store, command, study_id, holder)
        after[state] = store.study("demo").state
    assert list(after.values()) == AFTER[command, held_by]


def test_commands_return_the_state(store):
    study_id = store.submit(spec(), ANYBODY, None)
    assert store.stop_study(study_id) == STOPPED
    assert store.resume_study(study_id) == QUEUED
    put(store, study_id, RUNNING, Holder.here())
    assert store.stop_study(study_id) == store.stop_study(study_id) == STOPPING
    assert store.resume_study(study_id) == RUNNING
    assert store.confirm_stop(study_id) == RUNNING


def test_a_submission_records_who_when_and_how_urgent(store):
    study_id = store.submit(spec(), ANYBODY, Priority.HIGH)
    (first,) = store.submissions()
    assert (first.name, first.owner, first.priority) == ("demo", ANYBODY, "high")
    put(store, study_id, FAILED)
    store.submit(spec(seeds=3), "noa@box", None)
    (again,) = store.submissions()
    assert (again.owner, again.priority, again.state) == ("noa@box", "high", "queued")
    assert again.submitted_at > first.submitted_at
    assert store.study("demo").spec["seeds"] == 3 and store.study("demo").problem is None
    store.set_priority(study_id, Priority.LOW)
    assert store.submission(study_id).priority == "low"


def test_submissions_come_in_the_order_of_their_submission(store):
    ids = [store.submit(spec(name=name), ANYBODY, None) for name in ("a", "b", "c")]
    store.submit(spec(name="a"), ANYBODY, None)
    store.stop_study(ids[1])
    assert [row.name for row in store.submissions()] == ["c", "a"]


def test_a_refused_submission_changes_nothing(store):
    study_id = store.submit(spec(), ANYBODY, None)
    put(store, study_id, RUNNING, Holder.here())
    before = store.study("demo")
    with pytest.raises(ConfigError, match="recorded with other settings"):
        store.submit(spec(settings={"dataset": "synthetic"}), "noa@box", Priority.HIGH)
    assert store.study("demo") == before


def test_a_submission_cut_in_the_middle_leaves_nothing(store):
    """The process is killed after the study is recorded and before it is in the queue."""
    child = subprocess.run([sys.executable, "-c", CUT, store.url], cwd=TESTS)
    assert child.returncode == -signal.SIGKILL
    assert store.studies() == []
    store.submit(spec(), ANYBODY, None)


def test_a_study_submitted_again_while_it_ends_goes_back_into_the_queue(store):
    store.notifies = True
    study_id = store.submit(spec(), ANYBODY, None)
    put(store, study_id, RUNNING, Holder.here())
    before = store.submission(study_id).submitted_at
    store.submit(spec(seeds=3), ANYBODY, None)
    assert store.end(study_id, ENDED, before) == QUEUED
    assert store.study("demo").state == QUEUED
    assert store.count_notifications() == 0


def test_the_end_is_told_once_with_the_problem(store):
    store.notifies = True
    study_id = store.submit(spec(), ANYBODY, None)
    put(store, study_id, RUNNING, Holder.here())
    submitted_at = store.submission(study_id).submitted_at
    for _ in range(2):  # the acknowledgement of the first was lost
        store.end(study_id, FAILED, submitted_at, "no data")
    assert store.count_notifications() == 1
    message = store.claim_notification()
    assert (message.study, message.kind, message.problem) == ("demo", "failed", "no data")
    assert store.study("demo").problem == "no data"


def test_the_service_takes_up_what_still_waits(store):
    study_id = store.submit(spec(), ANYBODY, None)
    store.holder = Holder.here()
    assert store.acquire_service(store.holder, "local")
    (row,) = store.submissions()
    assert store.take_up(row) and store.take_up(row)  # the second: an acknowledgement was lost
    assert store.study("demo").held_by == str(store.holder)
    assert store.study("demo").state == RUNNING
    store.stop_study(study_id)
    assert not store.take_up(row)
    assert store.study("demo").state == STOPPING


@pytest.mark.parametrize("meanwhile", ["stop", "submit", "delete", "launch"])
def test_the_service_does_not_take_up_what_has_changed(store, meanwhile):
    study_id = store.submit(spec(), ANYBODY, None)
    service, launcher = Holder.here(), Holder.here()
    assert store.acquire_service(service, "local")
    (row,) = store.submissions()
    match meanwhile:
        case "stop":
            store.stop_study(study_id)
        case "submit":
            store.submit(spec(seeds=3), ANYBODY, None)
        case "delete":
            store.delete_study(study_id)
        case "launch":
            store.acquire(study_id, launcher)
            store.begin(study_id, ANYBODY)
    before = store.studies()
    store.holder = service
    assert not store.take_up(row)
    assert store.studies() == before


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    with ProcessPoolExecutor(3, context, initializer=set_barrier, initargs=(barrier,)) as executor:
        yield executor


def test_two_stops_and_a_resume_at_once_end_in_one_state(processes, store):
    """The holder confirms a stop or goes on, whichever came last."""
    store.holder = Holder.here()
    ids = [store.submit(spec(name=f"s{number}"), ANYBODY, None) for number in range(10)]
    assert store.acquire_service(store.holder, "local")
    assert all(store.take_up(row) for row in store.submissions())
    commands = ["stop", "resume", "stop"]
    work = [processes.submit(command_at_once, store.url, name, ids) for name in commands]
    stop, resume, again = [done.result(60) for done in work]
    assert set(stop + again) == {"stopping"} and set(resume) <= {"running"}
    for study_id in ids:
        asked = store.submission(study_id).state
        assert asked in (RUNNING, STOPPING)
        after = {RUNNING: RUNNING, STOPPING: STOPPED}[asked]
        assert store.confirm_stop(study_id) == store.submission(study_id).state == after


def test_stops_resumes_and_the_holders_own_writes_never_block_each_other(processes, store):
    """A deadlock would show as a warning of a retried transaction."""
    store.holder = Holder.here()
    ids = [store.submit(spec(name=f"s{number}"), ANYBODY, None) for number in range(10)]
    assert store.acquire_service(store.holder, "local")
    assert all(store.take_up(row) for row in store.submissions())
    names = ["heartbeat", "begin", "confirm_stop"]
    work = [processes.submit(command_at_once, store.url, n, ids, store.holder) for n in names]
    assert [warnings for done in work for warnings in done.result(60)] == []
