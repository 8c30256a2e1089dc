"""The outbox of MLflow events."""

import pytest
from helpers.store_rows import ENVIRONMENT, add_run, add_trial, epoch, spec

from ressmooth.store.outbox import RETRAINED


@pytest.fixture
def studies(store):
    """Two studies: the first has a run with two epochs, the second one event of its own."""
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    for number in (1, 2):
        store.record_epoch(attempt, epoch(number), None)
    second = store.open_study(spec(name="second"))
    store.announce_study(second)
    return store.study("demo").id, second


def test_events_come_oldest_first(store, studies):
    rows = store.pending(None, 100)
    assert [(row.kind, row.epoch) for row in rows] == [
        ("run", None),
        ("epoch", 1),
        ("epoch", 2),
        ("study", None),
    ]
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    assert store.pending(None, 2) == rows[:2]
    assert rows[1].created_at.utcoffset().total_seconds() == 0


def test_events_of_one_study(store, studies):
    first, second = studies
    assert {row.study_id for row in store.pending(first, 100)} == {first}
    assert [row.kind for row in store.pending(second, 100)] == ["study"]
    assert store.pending(second, 100)[0].run_id is None
    assert (store.count_pending(first), store.count_pending(second)) == (3, 1)
    assert store.count_pending(None) == 4


def test_sent_rows_are_not_pending(store, studies):
    ids = [row.id for row in store.pending(None, 100)]
    store.mark_sent(ids[:3])
    store.mark_sent([])
    assert [row.id for row in store.pending(None, 100)] == ids[3:]
    assert store.count_pending(None) == 1


def test_rejected_rows_are_not_pending(store, studies):
    rejected, *others = (row.id for row in store.pending(None, 100))
    store.reject(rejected, "RESOURCE_DOES_NOT_EXIST")
    assert [row.id for row in store.pending(None, 100)] == others
    assert store.count_pending(None) == 3


def test_rejected_rows_become_pending_again_except_those_of_retrained_runs(store, studies):
    first, second, third, *others = (row.id for row in store.pending(None, 100))
    store.reject(first, "RESOURCE_DOES_NOT_EXIST")
    store.reject(second, RETRAINED)
    assert store.unreject() == 1
    assert [row.id for row in store.pending(None, 100)] == [first, third, *others]
    assert store.unreject() == 0


def test_more_rows_than_a_statement_can_bind(store):
    study_id = store.open_study(spec())
    trial = add_trial(store, study_id, seeds=50)
    for run in trial.runs:
        store.give_up(run.id, "never mind")
    ids = [row.id for row in store.pending(study_id, 100)]
    store.mark_sent(ids + list(range(10**6, 10**6 + 40_000)))
    assert store.count_pending(None) == 0
