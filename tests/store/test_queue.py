"""What the Store says about the queue, counted in SQL."""

import dataclasses

import pytest
from helpers import records, specs
from helpers.store_rows import set_state
from sqlalchemy import text

from ressmooth.search.planner import Planner
from ressmooth.search.progress import count_runs
from ressmooth.store import Holder, Priority, StudyState

SEARCH = {"sampler": "random", "trials": 6, "pruner": "asha"}
SEARCHED = {"sgd": {"method": "mse"}, "laplace": {"b": {"low": 0.1, "high": 0.9}}}


@pytest.fixture
def holder(store):
    """A launcher that is alive: this process."""
    store.holder = Holder.here()
    return store.holder


@pytest.fixture
def dead():
    return dataclasses.replace(Holder.here(), started=1.0)


def submit(store, name, arms=records.ARMS, owner="ann@box", priority=None, **settings):
    spec = specs.study(arms, name=name, **{"seeds": 2, **settings})
    return spec, store.submit(spec, owner, priority)


def begin(store, study_id, holder):
    store.acquire(study_id, holder)
    set_state(store, study_id, StudyState.RUNNING)


def start(store, run, epochs, **environment):
    """Train a run for some epochs, and leave it running."""
    attempt = store.claim(run.id, {**records.ENVIRONMENT, **environment})
    for number in range(1, epochs + 1):
        store.record_epoch(attempt, records.epoch(number), None)
    return attempt


def shift(store, table, column, predicate, seconds):
    """Move a moment into the past."""
    moved = {
        "sqlite": f"strftime('%Y-%m-%d %H:%M:%f000', {column}, '-{seconds} seconds')",
        "postgresql": f"{column} - interval '{seconds} seconds'",
    }[store.database.engine.dialect.name]
    with store.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE {table} SET {column} = {moved} WHERE {predicate}"))


def names(queue):
    return [row.name for row in queue.studies]


def test_a_submitted_study_knows_its_runs_before_any_is_recorded(store):
    submit(store, "new", priority=Priority.HIGH)
    (row,) = store.queue().studies
    assert (row.name, row.owner, row.priority, row.state) == ("new", "ann@box", "high", "queued")
    assert (row.runs_done, row.runs_known, row.epochs_left) == (0, 6, None)
    assert not row.is_interrupted and row.epochs_per_minute is None


def test_a_changed_plan_is_recorded(store):
    submit(store, "more")
    submit(store, "more", seeds=5)
    assert store.queue().studies[0].runs_known == 15


def test_active_studies_come_first_and_ended_ones_by_their_recency(store, holder):
    for name in ("old", "failed", "runs", "waits"):
        _, study_id = submit(store, name)
        if name != "waits":
            begin(store, study_id, holder)
        if name in ("old", "failed"):
            state = StudyState.ENDED if name == "old" else StudyState.FAILED
            set_state(store, study_id, state, None if name == "old" else "no data")
    queue = store.queue()
    assert names(queue) == ["runs", "waits", "failed", "old"] and queue.hidden == 0
    assert [row.problem for row in queue.studies] == [None, None, "no data", None]
    shorter = store.queue(ended=1)
    assert names(shorter) == ["runs", "waits", "failed"] and shorter.hidden == 1
    assert names(store.queue(ended=None)) == names(queue)


def test_an_ended_study_knows_its_recorded_runs_only(store, holder):
    _, study_id = submit(store, "short")
    begin(store, study_id, holder)
    set_state(store, study_id, StudyState.ENDED)
    assert store.queue().studies[0].runs_known == 0


@pytest.mark.parametrize("ended", range(0, 14, 2))
def test_runs_are_counted_as_the_live_view_counts_them(store, holder, tmp_path, ended):
    """Runs that a pruned or failed trial no longer needs are not counted."""
    spec, study_id = submit(store, "s", SEARCHED, seeds=3, search=SEARCH, confirm=2, epochs=9)
    begin(store, study_id, holder)
    planner = Planner(store, study_id, spec)
    states = ("complete", "pruned", "complete", "failed")
    for number in range(ended):
        run = planner.next()
        records.train(store, run, tmp_path, states[number % 4], mean_acc=1.0)
        planner.run_ended(run)
    if run := planner.next():
        start(store, run, 2)
    (row,) = store.queue().studies
    expected = count_runs(store.trials(study_id), spec)
    assert (row.runs_done, row.runs_known) == (expected.runs_done, expected.runs_known)
    assert row.epochs_left == expected.epochs_known - expected.epochs_done - 2


def test_the_speed_is_that_of_the_last_ten_minutes(store, holder):
    _, study_id = submit(store, "fast")
    begin(store, study_id, holder)
    records.open_study(store, "fast")
    first, second, *_ = records.runs_of(store, study_id)
    start(store, first, 3)
    for number, seconds in ((1, 3600), (2, 80), (3, 20)):
        shift(store, "epoch", "recorded_at", f"epoch = {number}", seconds)
    assert store.queue().studies[0].epochs_per_minute == pytest.approx(1, abs=0.1)
    start(store, second, 1)  # a second worker, after 20 seconds
    assert store.queue().studies[0].epochs_per_minute == pytest.approx(2 * 60 / 80, abs=0.1)


def test_a_study_that_waits_for_a_worker_has_no_speed(store, holder):
    _, study_id = submit(store, "set-down")
    begin(store, study_id, holder)
    records.open_study(store, "set-down")
    run = records.runs_of(store, study_id)[0]
    store.release_run(start(store, run, 3))
    assert store.queue().studies[0].epochs_per_minute is None


def test_a_running_study_without_its_launcher_is_interrupted(store, holder, dead):
    for name, launcher in (("alive", holder), ("crashed", dead)):
        _, study_id = submit(store, name)
        store.holder = launcher
        begin(store, study_id, launcher)
        records.open_study(store, name)
        start(store, records.runs_of(store, study_id)[0], 1)
    rows = {row.name: row for row in store.queue().studies}
    assert rows["crashed"].is_interrupted and not rows["alive"].is_interrupted
    assert [run.study for run in store.queue().running] == ["alive"]


def test_a_study_of_a_silent_service_is_interrupted_when_its_standby_may_take_over(store):
    far = dataclasses.replace(Holder.here(), host="far")  # only heartbeats tell
    assert store.acquire_service(far, "local")
    _, study_id = submit(store, "served")
    begin(store, study_id, far)
    queue = store.queue()
    assert queue.service.is_alive and not queue.studies[0].is_interrupted
    for table in ("service", "study"):
        shift(store, table, "beat_at", "true", 25)
    queue = store.queue()
    assert not queue.service.is_alive
    assert queue.studies[0].is_interrupted and queue.studies[0].is_served


def test_running_runs_say_where_they_run(store, holder):
    _, study_id = submit(store, "where")
    begin(store, study_id, holder)
    records.open_study(store, "where")
    start(store, records.runs_of(store, study_id)[-1], 2, host="node1", gpus="0", device="cuda")
    (run,) = store.queue().running
    assert (run.study, run.arm, run.params, run.seed) == ("where", "laplace", {"b": 0.5}, 1)
    assert (run.host, run.gpus, run.device) == ("node1", "0", "cuda")
    assert (run.last_epoch, run.epochs) == (2, 3) and run.started_at is not None


def test_a_race_is_counted_as_the_live_view_counts_it(store, holder):
    """The total is what is known so far, and is never passed."""
    race = {"race": True, "at_least": 2, "at_most": 6}
    spec, study_id = submit(store, "s", seeds=race)
    begin(store, study_id, holder)
    planner = Planner(store, study_id, spec)
    totals = set()
    while (run := planner.next()) is not None:
        attempt = store.claim(run.id, records.ENVIRONMENT)
        store.finish_run(attempt, "complete", max_acc=80.0 + run.id % 3)
        planner.run_ended(run)
        (study,) = store.queue().studies
        progress = count_runs(store.trials(study_id), spec)
        assert (study.runs_done, study.runs_known) == (progress.runs_done, progress.runs_known)
        assert study.runs_done <= study.runs_known
        totals.add(study.runs_known)
    assert len(totals) > 1 and study.runs_done == study.runs_known
