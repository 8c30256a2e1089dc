"""The numbers of a Store that Prometheus asks for."""

from helpers.store_rows import ENVIRONMENT, add_trial, epoch, spec

from ressmooth.store import Holder


def test_an_empty_store(store):
    found = store.statistics()
    assert found.studies == {} and found.runs == {} and found.epochs == {} and found.nodes == []
    assert (found.queue_length, found.oldest_wait) == (0, 0.0)
    assert (found.pending_events, found.pending_messages) == (0, 0)


def test_runs_epochs_and_what_waits(store):
    store.notifies = True
    study_id = store.submit(spec(), "ann@box", None)
    done, stopped, _ = add_trial(store, study_id, seeds=3).runs
    for run, epochs in ((done, 3), (stopped, 2)):
        attempt = store.claim(run.id, ENVIRONMENT)
        for number in range(1, epochs + 1):
            store.record_epoch(attempt, epoch(number), None)
        if run is done:
            store.finish_run(attempt, "complete", max_acc=90.0)
        else:
            store.release_run(attempt)
    other = store.open_study(spec(name="other"))  # stopped: its run does not wait for a worker
    running = add_trial(store, other, seeds=2).runs[0]
    store.claim(running.id, {**ENVIRONMENT, "host": "node2"})
    store.notify(study_id, "standstill")

    found = store.statistics()
    assert found.studies == {"queued": 1, "stopped": 1}
    assert found.runs == {
        ("complete", "box"): 1,
        ("waiting", ""): 3,  # also the one that box has set down
        ("running", "node2"): 1,
    }
    assert found.epochs == {study_id: 5, other: 0}
    assert found.queue_length == 2
    assert 0.0 <= found.oldest_wait < 60.0
    assert found.pending_events == store.count_pending(None) and found.pending_messages == 1


def test_a_submitted_study_without_trials_waits_too(store):
    store.submit(spec(), "ann@box", None)
    found = store.statistics()
    assert found.queue_length == 0 and 0.0 < found.oldest_wait < 60.0


def test_the_workers_of_the_service(store):
    holder = Holder.here()
    assert store.acquire_service(holder, "local")
    nodes = [{"node": "box", "workers": 2, "gpus": []}]
    store.service_heartbeat(holder, "2 workers", nodes, {})
    assert store.statistics().nodes == nodes
    store.release_service(holder)
    assert store.statistics().nodes == []
