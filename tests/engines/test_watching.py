"""What `ressmooth watch` shows of a study that runs elsewhere."""

from helpers import records

from ressmooth.engines.watching import Watched


def test_a_study_without_a_running_run_says_that_it_waits(store):
    study_id = records.open_study(store, "tiny")
    watched = Watched(store, store.study("tiny"))
    assert [status.text for status in watched.statuses] == ["waits for a free worker"]
    assert not any(status.is_busy for status in watched.statuses)
    store.claim(records.runs_of(store, study_id)[0].id, records.ENVIRONMENT)
    watched.refresh()
    assert [status.text for status in watched.statuses] == ["sgd seed 0"]
