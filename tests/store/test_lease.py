"""Leases: one launcher per study, one service per Store, and no write without its lease."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from helpers.store_rows import ENVIRONMENT, add_trial, config, spec
from sqlalchemy import text

from ressmooth.errors import StudyBusy
from ressmooth.store import Holder, State, Store, StudyState
from ressmooth.store.lease import check_held

STUDY_WRITES = ("add_trial", "take_up", "begin", "end", "confirm_stop", "heartbeat")


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
    started = int(Path(f"/proc/{process.pid}/stat").read_text().split()[21])
    return dataclasses.replace(Holder.here(), pid=process.pid, started=started)


def stop(process):
    """Freeze a process, as SIGSTOP or a debugger does."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def age_heartbeat(store, seconds, table="study"):
    """Move the last heartbeat into the past."""
    ago = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '{-seconds:+d} seconds')",
        "postgresql": f"now() - interval '{seconds} seconds'",
    }[store.database.engine.dialect.name]
    with store.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE {table} SET beat_at = {ago}"))


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
    with pytest.raises(StudyBusy, match=f"run by {first.host}/{child.pid} since.*stop demo"):
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


@pytest.mark.parametrize("part", [0, 1], ids=["another start of the machine", "another container"])
def test_a_pid_means_nothing_elsewhere_under_the_same_host_name(store, study_id, child, part):
    child.kill()
    parts = Holder.here().token.split("/")
    parts[part] = "other"
    cloned = dataclasses.replace(Holder.here(), pid=2**22 + 1, token="/".join(parts))
    store.acquire(study_id, cloned)
    with pytest.raises(StudyBusy, match="is being run by"):
        store.acquire(study_id, Holder.here())
    store.heartbeat(study_id, cloned, 1.0)
    age_heartbeat(store, 130)
    store.acquire(study_id, Holder.here())


def test_a_launcher_in_a_container_with_our_host_name_keeps_its_study(tmp_path):
    """In its PID namespace it is process 1 or 2, which outside is another process."""
    script = """
import sys
from helpers.store_rows import spec
from ressmooth.store import Holder, open_store
store = open_store(sys.argv[1])
store.acquire(store.open_study(spec()), Holder.here())
print(Holder.here().pid, flush=True)
input()
"""
    url = f"sqlite:///{tmp_path}/results.db"
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script, url]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(unshare, env=environment, text=True, **pipes) as container:
        pid = container.stdout.readline().strip()
        if "not permitted" in ("" if pid else container.stderr.read()):
            pytest.skip("PID namespaces are not allowed here")
        store = Store(url)
        with pytest.raises(StudyBusy, match=f"{socket.gethostname()}/{pid} since"):
            store.acquire(1, Holder.here())
        store.close()
        container.stdin.close()


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


def test_a_clock_that_was_set_back_does_not_prolong_the_lease_of_a_dead_launcher(store, study_id):
    store.acquire(study_id, dataclasses.replace(Holder.here(), host="elsewhere"))
    age_heartbeat(store, -3600)
    store.acquire(study_id, Holder.here())


def test_a_living_launcher_keeps_its_study_when_the_clock_jumps(store, study_id):
    holder = dataclasses.replace(Holder.here(), host="elsewhere")
    store.acquire(study_id, holder)
    for jump in (3600, -3600):
        age_heartbeat(store, jump)
        store.heartbeat(study_id, holder, 1.0)
        with pytest.raises(StudyBusy):
            store.acquire(study_id, Holder.here())


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_jump_of_the_clock_ends_no_lease_of_a_process_that_runs_here(
    store, study_id, child, jump
):
    """Also before its next heartbeat, which would renew the lease."""
    store.acquire(study_id, holder_of(child))
    age_heartbeat(store, jump)
    with pytest.raises(StudyBusy):
        store.acquire(study_id, Holder.here())


def test_a_stopped_launcher_on_this_host_is_replaced_when_its_lease_lapses(store, study_id, child):
    store.acquire(study_id, holder_of(child))
    stop(child)
    age_heartbeat(store, 110)
    with pytest.raises(StudyBusy):
        store.acquire(study_id, Holder.here())
    age_heartbeat(store, 130)
    store.acquire(study_id, Holder.here())


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


# The lease of the service


def age_service(store, seconds):
    age_heartbeat(store, seconds, "service")


def studies_of(store):
    return {row.name: (row.state, row.held_by) for row in store.studies()}


@pytest.fixture
def served(store, child):
    """A service in another process, with a study that runs and one that waits."""
    first = holder_of(child)
    assert store.acquire_service(first, "local")
    store.holder = first
    store.submit(spec(name="running"), "mia@box", None)
    assert store.take_up(store.submissions()[0])
    store.submit(spec(name="waiting"), "mia@box", None)
    store.holder = None
    return first


def test_a_second_service_waits_while_the_first_is_alive(store, served):
    second = Holder.here()
    age_service(store, 15)
    assert not store.acquire_service(second, "ray")
    assert store.service().holder == served and store.service().engine == "local"
    assert studies_of(store)["running"] == ("running", str(served))
    assert store.acquire_service(served, "local")  # again: an acknowledgement was lost


@pytest.mark.parametrize("first", ["died", "fell silent", "left"])
def test_the_next_service_has_the_studies_of_the_first(store, served, child, first):
    second = Holder.here()
    if first == "died":
        child.kill()
        child.wait()
        assert store.service().is_alive is False
    elif first == "fell silent":
        stop(child)
        age_service(store, 21)
        assert store.service().is_alive is False
    else:
        store.release_service(served)
        assert store.service() is None
        assert studies_of(store)["running"] == ("queued", None)
    assert store.acquire_service(second, "ray")
    inherited = ("queued", None) if first == "left" else ("running", str(second))
    assert studies_of(store) == {"running": inherited, "waiting": ("queued", None)}
    assert store.service().holder == second and store.service().engine == "ray"
    with pytest.raises(StudyBusy, match="Another service has taken over"):
        store.service_heartbeat(served, "2 workers", [], {})
    store.release_service(served)
    assert store.service().holder == second


def test_a_heartbeat_renews_the_service_and_its_studies(store, served):
    age_service(store, 19)
    age_heartbeat(store, 100)
    before = dataclasses.replace(store.service(), silent=0.0)
    (study_id,) = [row.id for row in store.studies() if row.name == "running"]
    store.service_heartbeat(served, "2 workers", [{"node": "box"}], {study_id: 7.5, 999: 1.0})
    service = store.service()
    assert service.silent < 10 and service.is_alive
    assert (service.description, service.nodes) == ("2 workers", [{"node": "box"}])
    assert (service.holder, service.held_at) == (before.holder, before.held_at)
    assert store.study("running").elapsed == 7.5
    age_heartbeat(store, 0, "service")
    with pytest.raises(StudyBusy):
        store.acquire(study_id, Holder.here())


# Writes of a launcher or service that lost its lease


def rows_of(store):
    tables = ("study", "trial", "run", "epoch", "outbox", "notification", "service")
    with store.database.engine.connect() as connection:
        return {name: connection.execute(text(f"SELECT * FROM {name}")).all() for name in tables}


def writes(store, holder):
    """Return a call per write of a holder, by name, for a study with a run that executes."""
    study_id = store.submit(spec(), "mia@box", None)
    trial = add_trial(store, study_id, seeds=2)
    run, attempt = trial.runs[1], store.claim(trial.runs[0].id, ENVIRONMENT)
    submission = store.submission(study_id)
    assert store.acquire_service(holder, "local")
    store.acquire(study_id, holder)
    return {
        "add_trial": lambda: add_trial(store, study_id, number=1),
        "add_runs": lambda: store.add_runs({trial.id: [config(2)]}),
        "finish_trial": lambda: store.finish_trial(trial.id, State.COMPLETE, 1.0),
        "claim": lambda: store.claim(run.id, ENVIRONMENT),
        "release_run": lambda: store.release_run(attempt),
        "finish_run": lambda: store.finish_run(attempt, State.PRUNED),
        "fail_worker": lambda: store.fail_worker(attempt.run_id, "gone"),
        "give_up": lambda: store.give_up(run.id, "gone"),
        "take_up": lambda: store.take_up(submission),
        "begin": lambda: store.begin(study_id, "mia@box"),
        "end": lambda: store.end(study_id, StudyState.ENDED, submission.submitted_at),
        "confirm_stop": lambda: store.confirm_stop(study_id),
        "announce_study": lambda: store.announce_study(study_id),
        "notify": lambda: store.notify(study_id, "standstill"),
        "heartbeat": lambda: store.heartbeat(study_id, holder, 1.0),
        "service_heartbeat": lambda: store.service_heartbeat(holder, "", [], {study_id: 1.0}),
    }


@pytest.mark.parametrize("now", ["another service", "another launcher", "nobody", "deleted"])
def test_a_holder_that_lost_its_lease_writes_nothing(store, now):
    frozen = dataclasses.replace(Holder.here(), host="elsewhere")
    calls = writes(store, frozen)
    age_heartbeat(store, 130)
    age_service(store, 21)
    (study,) = store.studies()
    assert store.acquire_service(Holder.here(), "local")
    if now == "nobody":
        store.release_service(Holder(**dataclasses.asdict(store.service().holder)))
    elif now == "another launcher":
        store.release_service(store.service().holder)
        store.acquire(study.id, Holder.here())
    elif now == "deleted":
        store.delete_study(study.id)
    before = rows_of(store)
    store.holder = frozen
    for name, call in calls.items():
        if now == "deleted" and name not in STUDY_WRITES:
            continue  # whose rows are gone
        with pytest.raises(StudyBusy):
            call()
            pytest.fail(f"{name} was not refused")
    store.release(study.id, frozen)
    store.release_service(frozen)
    assert rows_of(store) == before


def test_a_holder_writes_while_it_holds(store):
    """Otherwise the test above would prove nothing."""
    holder = Holder.here()
    calls = writes(store, holder)
    store.holder = holder
    order = sorted(calls, key=lambda name: name in ("give_up", "finish_run", "end"))
    for name in order:
        if name not in ("release_run", "fail_worker"):  # which make the attempt stale
            calls[name]()


def test_nobody_takes_over_before_the_commit_of_a_write(store, study_id):
    """The holder is frozen inside a transaction, after its lease was checked."""
    holder = dataclasses.replace(Holder.here(), host="elsewhere")
    store.acquire(study_id, holder)
    age_heartbeat(store, 130)
    other = Store(store.url)
    taking_over = threading.Thread(target=other.acquire, args=(study_id, Holder.here()))
    with store.database.engine.begin() as connection:
        check_held(connection, holder, study_id)
        taking_over.start()
        taking_over.join(0.3)
        assert taking_over.is_alive()
    taking_over.join(60)
    assert store.study("demo").held_by != str(holder)
    other.close()
