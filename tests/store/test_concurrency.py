"""Eight processes use one store at the same moment."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
from helpers.store_rows import (
    acquire_at_once,
    add_trial,
    open_at_once,
    set_barrier,
    spec,
    train_at_once,
)
from sqlalchemy import text

PROCESSES, RUNS, EPOCHS = 8, 50, 2


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(
        PROCESSES, context, initializer=set_barrier, initargs=(barrier,)
    ) as executor:
        yield executor


def test_a_new_store_is_created_once(processes, store_url):
    for round in range(3 if store_url.startswith("sqlite") else 1):
        url = store_url + (str(round) if round else "")
        work = [processes.submit(open_at_once, url) for _ in range(PROCESSES)]
        assert len({done.result(60) for done in work}) == 1


def test_a_study_has_one_holder(processes, store):
    study_ids = [store.open_study(spec(name=f"study{number}")) for number in range(20)]
    work = [processes.submit(acquire_at_once, store.url, study_ids) for _ in range(PROCESSES)]
    results = [done.result(60) for done in work]
    assert sorted(study_id for held, _ in results for study_id in held) == study_ids
    assert [warnings for _, warnings in results] == [[]] * PROCESSES


def test_no_write_is_lost_or_doubled_or_waits_too_long_for_a_lock(processes, store):
    study_id = store.open_study(spec())
    trials = [add_trial(store, study_id, number=number, seeds=RUNS) for number in range(PROCESSES)]
    work = [
        processes.submit(train_at_once, store.url, [run.id for run in trial.runs], EPOCHS)
        for trial in trials
    ]
    assert [done.result(120) for done in work] == [[]] * PROCESSES  # no warnings

    runs = [run for trial in store.trials(study_id) for run in trial.runs]
    assert len(runs) == PROCESSES * RUNS
    for run in runs:
        assert (run.state, run.attempt, run.last_epoch) == ("complete", 1, EPOCHS)
        assert run.max_acc == run.id + EPOCHS
    with store.database.engine.connect() as connection:
        epochs = connection.execute(text("SELECT run_id, epoch, val_acc FROM epoch")).all()
        events = connection.execute(text("SELECT run_id, epoch FROM outbox")).all()
    expected = {(run.id, number) for run in runs for number in range(1, EPOCHS + 1)}
    assert sorted(epochs) == sorted((run, number, run + number) for run, number in expected)
    assert sorted(row for row in events if row.epoch) == sorted(expected)
    assert len(events) == len(expected) + 2 * len(runs)
