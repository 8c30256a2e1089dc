"""Runs in the Store: claims, epochs, results, failures."""

import sqlite3

import psycopg
import pytest
from helpers.store_rows import ENVIRONMENT, METRICS, add_run, add_trial, config, epoch, spec

from ressmooth.config import Epoch
from ressmooth.errors import ConfigError, RunFinished, StaleAttempt
from ressmooth.store import Attempt, database, pruned_outcome


def everything(store):
    """Return all that is stored, to compare before and after."""
    trials = [trial for study in store.studies() for trial in store.trials(study.id)]
    curves = [store.curve(run.id) for trial in trials for run in trial.runs]
    return store.studies(), trials, curves, store.pending(None, 1000)


def kinds(store):
    return [(row.kind, row.run_id, row.epoch) for row in store.pending(None, 1000)]


def test_a_claim_starts_an_attempt_and_records_the_environment(store):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    assert (attempt.run_id, attempt.number, attempt.last_epoch) == (run_id, 1, 0)
    run = store.run(run_id)
    assert {name: getattr(run, name) for name in ENVIRONMENT} == ENVIRONMENT
    assert (run.state, run.attempt) == ("running", 1)
    assert kinds(store) == [("run", run_id, None)]


def test_the_curves_of_a_study_are_those_of_its_runs_with_epochs(store):
    study_id, other_id = store.open_study(spec()), store.open_study(spec(name="other"))
    trial = add_trial(store, study_id, seeds=3)
    (other,) = add_trial(store, other_id).runs
    for run in (trial.runs[1], trial.runs[0], other):
        attempt = store.claim(run.id, ENVIRONMENT)
        for number in (1, 2):
            store.record_epoch(attempt, epoch(number, val_acc=run.id + number), None)
    first, second = trial.runs[:2]
    assert store.curves([first.id, second.id]) == {
        run.id: store.curve(run.id) for run in (first, second)
    }
    assert [row.val_acc for row in store.curve(second.id)] == [second.id + 1, second.id + 2]
    assert store.curve(trial.runs[2].id) == []


def test_a_second_claim_resumes_after_the_last_recorded_epoch(store):
    run_id = add_run(store)
    first = store.claim(run_id, ENVIRONMENT)
    started = store.run(run_id).started_at
    store.record_epoch(first, epoch(1), None)
    store.record_epoch(first, epoch(2), None)
    second = store.claim(run_id, {**ENVIRONMENT, "host": "other"})
    assert (second.number, second.last_epoch) == (2, 2)
    assert (store.run(run_id).host, store.run(run_id).started_at) == ("other", started)


def test_claims_refuse_an_unknown_environment_and_an_unknown_run(store):
    run_id = add_run(store)
    with pytest.raises(ValueError, match="gpu.*known: host, device"):
        store.claim(run_id, {"gpu": "A100"})
    with pytest.raises(ConfigError, match="no run 77"):
        store.claim(77, ENVIRONMENT)
    assert store.run(run_id).state == "waiting"


def test_an_epoch_is_stored_as_measured(store):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    measured = Epoch(1, 1 / 3, 1e-300, None, None, 0.1, 0.0, 0.7, 12.5)
    store.record_epoch(attempt, measured, "ab" * 32)
    store.record_epoch(attempt, epoch(2), None)
    first, second = store.curve(run_id)
    assert (first.train_loss, first.train_acc, first.val_acc) == (1 / 3, 1e-300, None)
    assert first.checkpoint_sha256 == "ab" * 32
    assert {name: getattr(second, name) for name in METRICS} == METRICS
    assert store.run(run_id).last_epoch == 2
    assert kinds(store) == [("run", run_id, None), ("epoch", run_id, 1), ("epoch", run_id, 2)]


def test_nan_and_inf_are_stored_as_null(store):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1, val_loss=float("nan"), val_acc=float("inf")), None)
    assert (store.curve(run_id)[0].val_loss, store.curve(run_id)[0].val_acc) == (None, None)
    store.finish_run(attempt, "complete", max_acc=float("-inf"))
    assert store.run(run_id).max_acc is None


def test_recording_an_epoch_again_changes_nothing(store):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), "first")
    store.record_epoch(attempt, epoch(2), "second")
    before = everything(store)
    store.record_epoch(attempt, epoch(1, val_acc=1.0), "other")
    assert everything(store) == before


def test_checkpoints_newest_first(store):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    for number, sha256 in [(1, "one"), (2, None), (3, "three")]:
        store.record_epoch(attempt, epoch(number), sha256)
    assert store.checkpoints(run_id) == [(3, "three"), (1, "one")]


@pytest.mark.parametrize("state", ["complete", "pruned", "failed"])
def test_a_finished_run_keeps_its_results(store, state):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    results = {"max_acc": 91.5, "mean_acc": 90.25, "test_acc": 91.0, "seconds": 12.5}
    store.finish_run(attempt, state, **results, weights_sha256="cd" * 32, error="why")
    run = store.run(run_id)
    assert {name: getattr(run, name) for name in results} == results
    assert (run.state, run.weights_sha256, run.error) == (state, "cd" * 32, "why")
    assert run.finished_at >= run.started_at
    assert kinds(store) == [("run", run_id, None)] * 2


def test_a_run_cannot_finish_as_waiting(store):
    attempt = store.claim(add_run(store), ENVIRONMENT)
    with pytest.raises(ValueError, match="'waiting'; known: complete"):
        store.finish_run(attempt, "waiting")


def test_a_finished_run_never_changes(store):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), None)
    store.finish_run(attempt, "complete", max_acc=91.5)
    before = everything(store)
    with pytest.raises(RunFinished, match=f"Run {run_id} is complete"):
        store.claim(run_id, ENVIRONMENT)
    with pytest.raises(StaleAttempt, match="complete"):
        store.record_epoch(attempt, epoch(2), None)
    with pytest.raises(StaleAttempt):
        store.finish_run(attempt, "failed", error="late")
    store.finish_run(attempt, "complete", max_acc=1.0)
    store.release_run(attempt)
    store.give_up(run_id, "late")
    assert store.fail_worker(run_id, "late") == 0
    assert store.reset_failed(store.studies()[0].id) == 0
    assert everything(store) == before


@pytest.mark.parametrize(
    "overtake",
    [
        lambda store, run_id: store.claim(run_id, ENVIRONMENT),
        lambda store, run_id: store.release_run(Attempt(run_id, 1, 0)),
        lambda store, run_id: store.fail_worker(run_id, "killed by signal 9"),
        lambda store, run_id: store.give_up(run_id, "killed by signal 9"),
        lambda store, run_id: (store.fail_worker(run_id, "died"), store.claim(run_id, ENVIRONMENT)),
    ],
)
def test_a_stale_attempt_writes_nothing(store, overtake):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), None)
    overtake(store, run_id)
    before = everything(store)
    for late in (1, 2):
        with pytest.raises(StaleAttempt, match=f"Attempt 1 of run {run_id} is stale"):
            store.record_epoch(attempt, epoch(late), None)
    with pytest.raises(StaleAttempt):
        store.finish_run(attempt, "complete", max_acc=99.0)
    assert everything(store) == before


def test_a_released_run_waits_with_its_epochs(store):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), None)
    store.release_run(attempt)
    run = store.run(run_id)
    assert (run.state, run.failures, run.last_epoch) == ("waiting", 0, 1)


def test_a_stale_attempt_releases_nothing(store):
    """The launcher's view of a run may be older than the attempt that now trains it."""
    given = store.run(add_run(store))
    store.claim(given.id, ENVIRONMENT)
    store.claim(given.id, ENVIRONMENT)
    before = everything(store)
    store.release_run(given.next_attempt)
    assert everything(store) == before
    store.release_run(store.claim(given.id, ENVIRONMENT))
    assert store.run(given.id).state == "waiting"


def test_worker_deaths_are_counted(store):
    run_id = add_run(store)
    assert store.fail_worker(run_id, "died at once") == 1  # before it could claim
    store.claim(run_id, ENVIRONMENT)
    assert store.fail_worker(run_id, "killed by signal 9") == 2
    run = store.run(run_id)
    assert (run.state, run.failures, run.error) == ("waiting", 2, "killed by signal 9")
    store.finish_run(store.claim(run_id, ENVIRONMENT), "complete")
    assert store.run(run_id).error is None
    with pytest.raises(ConfigError, match="no run 77"):
        store.fail_worker(77, "died")


def test_giving_up_a_run_fails_it(store):
    run_id = add_run(store)
    store.give_up(run_id, "gave up after 3 retries")
    run = store.run(run_id)
    assert (run.state, run.error) == ("failed", "gave up after 3 retries")
    assert run.finished_at is not None
    assert kinds(store) == [("run", run_id, None)]


@pytest.mark.parametrize(
    "error, stored",
    [
        ("x" * 10_000, "x" * 8192),
        ("ä" * 5_000, "ä" * 4096),
        ("a" + "ä" * 5_000, "a" + "ä" * 4095),
        ("nul \0 and half \ud800", "nul \N{REPLACEMENT CHARACTER} and half ?"),
    ],
)
def test_a_stored_error_is_cut_and_cleaned(store, error, stored):
    run_id = add_run(store)
    store.finish_run(store.claim(run_id, ENVIRONMENT), "failed", error=error)
    assert store.run(run_id).error == stored


def test_failed_runs_start_over(store):
    study_id = store.open_study(spec())
    trial = add_trial(store, study_id, seeds=2)
    good, bad = (run.id for run in trial.runs)
    other = add_trial(store, store.open_study(spec(name="other"))).runs[0].id
    store.give_up(other, "not of this study")
    finished = store.claim(good, ENVIRONMENT)
    store.record_epoch(finished, epoch(1), None)
    store.finish_run(finished, "complete", max_acc=91.0)
    store.fail_worker(bad, "died")
    attempt = store.claim(bad, ENVIRONMENT)
    for number in (1, 2):
        store.record_epoch(attempt, epoch(number), "sha")
    store.finish_run(attempt, "failed", max_acc=50.0, seconds=9.0, error="diverged")
    store.finish_trial(trial.id, "failed", None)
    kept = store.run(good), store.curve(good), store.run(other)

    assert store.reset_failed(study_id) == 1
    run = store.run(bad)
    assert (run.state, run.failures, run.last_epoch) == ("waiting", 0, 0)
    assert run.max_acc is run.seconds is run.error is run.started_at is run.finished_at is None
    assert store.curve(bad) == store.checkpoints(bad) == []
    assert store.trial(trial.id).state == "running"
    assert (store.run(good), store.curve(good), store.run(other)) == kept
    assert ("epoch", bad, 1) not in kinds(store) and ("epoch", good, 1) in kinds(store)
    with pytest.raises(StaleAttempt):
        store.record_epoch(attempt, epoch(3), None)
    assert store.claim(bad, ENVIRONMENT).last_epoch == 0


def lose_acknowledgements(store, monkeypatch):
    """Commit every transaction, but report its first try as failed."""
    monkeypatch.setattr(database, "FIRST_PAUSE", 0.001)
    dialect = store.database.engine.dialect
    commit, lost = dialect.do_commit, []

    def commit_without_acknowledgement(connection):
        commit(connection)
        lost.append(len(lost))
        if len(lost) % 2:
            if dialect.name == "postgresql":
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            error = sqlite3.OperationalError("disk is slow")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

    monkeypatch.setattr(dialect, "do_commit", commit_without_acknowledgement)
    return lost


def test_a_lost_acknowledgement_does_nothing_twice(store, monkeypatch):
    lost = lose_acknowledgements(store, monkeypatch)
    study_id = store.open_study(spec())
    trial = add_trial(store, study_id, seeds=2)
    store.add_runs({trial.id: [config(seed) for seed in range(3)]})
    done, dead, given_up = (run.id for run in store.trial(trial.id).runs)
    attempt = store.claim(done, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), None)
    store.record_epoch(attempt, epoch(2), None)
    store.finish_run(attempt, "complete", max_acc=91.0)
    assert store.fail_worker(dead, "died") == 1
    store.give_up(given_up, "gave up")
    store.finish_trial(trial.id, "complete", 91.0)
    assert len(lost) >= 20
    assert [row.epoch for row in store.curve(done)] == [1, 2]
    assert [run.state for run in store.trial(trial.id).runs] == ["complete", "waiting", "failed"]
    events = [kind for kind in kinds(store) if kind[0] == "epoch"]
    assert events == [("epoch", done, 1), ("epoch", done, 2)]


def test_a_pruned_run_keeps_the_best_value_of_every_metric():
    curve = [epoch(1, val_acc=70.0, val_nll=0.9), epoch(2, val_acc=60.0, val_nll=0.7)]
    assert pruned_outcome(curve) == {
        "max_acc": 70.0,
        "metrics": {"nll": {"max": 0.7}},
        "seconds": 3.0,
    }
