"""The outbox of messages for the webhook."""

from datetime import timedelta

import pytest
from helpers.store_rows import spec

from ressmooth.store import Store, StudyState, notifications


@pytest.fixture
def study_id(store):
    store.notifies = True
    return store.open_study(spec())


def end(store, study_id, state=StudyState.ENDED, problem=None):
    began = store.begin(study_id, "ann@box")
    store.end(study_id, state, began, problem)


def test_the_end_of_a_study_is_a_message(store, study_id):
    end(store, study_id)
    end(store, study_id, StudyState.FAILED, "no data")
    end(store, study_id, StudyState.STOPPED)  # somebody stopped it, and knows
    found = [store.claim_notification() for _ in range(3)]
    assert [(m.study, m.kind, m.problem, m.owner) for m in found[:2]] == [
        ("demo", "ended", None, "ann@box"),
        ("demo", "failed", "no data", "ann@box"),
    ]
    assert found[2] is None


def test_a_message_has_one_sender_at_a_time(store, study_id, monkeypatch):
    end(store, study_id)
    other = Store(store.url)
    message = store.claim_notification()
    assert other.claim_notification() is None
    store.release_notification(message.id)
    assert other.claim_notification() == message
    monkeypatch.setattr(notifications, "SENDING", timedelta(0))  # its sender was killed
    assert store.claim_notification() == message
    store.mark_notified(message.id)
    assert other.claim_notification() is None
    other.close()


def test_messages_wait_until_they_are_sent(store, study_id):
    end(store, study_id)
    assert store.count_notifications() == 1
    message = store.claim_notification()
    assert store.count_notifications() == 1
    store.mark_notified(message.id)
    assert store.count_notifications() == 0


def test_without_a_webhook_no_message_waits(store, study_id):
    """They would all be sent when somebody sets one."""
    store.notifies = False
    end(store, study_id)
    store.notify(study_id, "standstill")
    assert store.count_notifications() == 0 and store.claim_notification() is None
