"""The order of runs and the results of trials, without training anything."""

import gc
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers import records, specs
from helpers.large import fill, large_spec, statements
from helpers.planning import ENVIRONMENT, drain, finish

from ressmooth.errors import StaleAttempt
from ressmooth.search.planner import Planner
from ressmooth.search.steps import AddRuns, Finish, next_step
from ressmooth.store import RunRow, State, open_store, queries

ARMS = {"sgd": {"method": "mse"}, "laplace": {"b": {"grid": [0.1, 0.3]}}}
SEARCHED = {"smooth": {"b": {"low": 0.1, "high": 1.0}}}


@pytest.fixture
def open_study(store):
    def make(spec):
        return Planner(store, store.open_study(spec), spec)

    return make


def test_every_cell_is_trained_with_every_seed(open_study):
    planner = open_study(specs.study(ARMS, seeds=2))
    planned = []
    while (run := planner.next()) is not None:
        planned.append((run.config["method"], run.config["b"], run.seed))
    assert planned == [
        ("mse", 0.5, 0),
        ("mse", 0.5, 1),
        ("smoothing", 0.1, 0),
        ("smoothing", 0.1, 1),
        ("smoothing", 0.3, 0),
        ("smoothing", 0.3, 1),
    ]


def test_a_stored_configuration_includes_the_defaults(open_study):
    run = open_study(specs.study(ARMS, resources={"cpus_per_run": 2})).next()
    assert run.config["lr"] == 0.1 and run.config["weight_decay"] == 1e-4
    assert run.config["threads"] == 2


def test_the_value_of_a_trial_is_the_mean_of_its_seeds(open_study, store):
    planner = open_study(specs.study({"sgd": {"method": "mse"}}, seeds=3))
    drain(planner)
    (trial,) = store.trials(planner.study_id)
    assert (trial.state, trial.value) == ("complete", 81.0)


def test_the_objective_may_be_the_mean_accuracy(open_study, store):
    spec = specs.study({"sgd": {"method": "mse"}}, search={"objective": "mean"})
    planner = open_study(spec)
    drain(planner)
    assert store.trials(planner.study_id)[0].value == 79.0


def test_one_failed_seed_fails_the_trial(open_study, store):
    planner = open_study(specs.study({"sgd": {"method": "mse"}}, seeds=2))
    finish(planner, planner.next())
    finish(planner, planner.next(), "failed")
    (trial,) = store.trials(planner.study_id)
    assert (trial.state, trial.value) == ("failed", None)


def confirming(**settings):
    return specs.study(ARMS, seeds=2, confirm=3, grid={"fraction": [0.2, 0.4]}, **settings)


def test_selected_configurations_are_confirmed_with_fresh_seeds(open_study, store):
    planner = open_study(confirming())
    assert planner.progress().runs_known == 6 * 2 + 4 * 3
    assert drain(planner) == 6 * 2 + 4 * 3
    winners = store.winners(planner.study_id)
    assert [(w.trial.arm, w.trial.condition["fraction"], w.tried) for w in winners] == [
        ("sgd", 0.2, 1),
        ("sgd", 0.4, 1),
        ("laplace", 0.2, 2),
        ("laplace", 0.4, 2),
    ]
    for winner in winners:
        fresh = winner.confirmation
        assert [run.seed for run in fresh.runs] == [10_000, 10_001, 10_002]
        chosen = {**winner.trial.runs[0].config, "seed": None}
        assert all({**run.config, "seed": None} == chosen for run in fresh.runs)
        assert fresh.state == "complete" and fresh.params == winner.trial.params


def test_nothing_is_confirmed_before_the_search_has_ended(open_study, store):
    planner = open_study(confirming())
    runs = [planner.next() for _ in range(12)]
    assert planner.next() is None  # all are being trained: the selection may still change
    for run in runs[:-1]:
        finish(planner, run)
    assert planner.next() is None
    finish(planner, runs[-1])
    assert planner.next().seed == 10_000


def test_a_spent_time_budget_still_confirms(open_study):
    planner = open_study(confirming(search={"hours": 1.0}))
    finish(planner, planner.next())
    finish(planner, planner.next())
    planner.out_of_time = True
    assert [planner.next().seed for _ in range(3)] == [10_000, 10_001, 10_002]
    assert planner.next() is None


def test_a_restart_confirms_only_with_additional_seeds(open_study, store):
    drain(open_study(confirming()))
    assert open_study(confirming()).next() is None
    more = specs.study(ARMS, seeds=2, confirm=5, grid={"fraction": [0.2, 0.4]})
    planner = open_study(more)
    assert sorted({planner.next().seed for _ in range(8)}) == [10_003, 10_004]
    assert planner.next() is None


def test_more_fresh_seeds_are_trained_even_if_one_failed(open_study, store):
    spec = specs.study({"sgd": {"method": "mse"}}, confirm=2)
    planner = open_study(spec)
    finish(planner, planner.next())
    finish(planner, planner.next(), "failed")
    finish(planner, planner.next())
    assert planner.next() is None
    planner = open_study(specs.study({"sgd": {"method": "mse"}}, confirm=4))
    assert drain(planner) == 2
    (winner,) = store.winners(planner.study_id)
    assert [run.state for run in winner.confirmation.runs] == ["failed", *["complete"] * 3]


def test_a_new_selection_gets_its_own_confirmation(open_study, store):
    spec = specs.study(SEARCHED, confirm=1, search={"sampler": "random", "trials": 1})
    drain(open_study(spec))
    more = specs.study(SEARCHED, confirm=1, search={"sampler": "random", "trials": 2})
    planner = open_study(more)
    finish(planner, planner.next(), accuracy=99.0)  # better than the first
    assert planner.next().seed == 10_000
    (winner,) = store.winners(planner.study_id)
    assert winner.trial.value == 99.0 and winner.confirmation.confirms == winner.trial.id


def test_with_a_pruner_the_other_seeds_wait_for_the_first(open_study, store):
    spec = specs.study(SEARCHED, seeds=3, search=dict(sampler="random", trials=2, pruner="median"))
    planner = open_study(spec)
    first, second = planner.next(), planner.next()
    assert (first.seed, second.seed) == (0, 0) and planner.next() is None
    finish(planner, first, "pruned")
    finish(planner, second)
    assert [planner.next().seed for _ in range(2)] == [1, 2]
    pruned = store.trials(planner.study_id)[0]
    assert pruned.state == "pruned" and len(pruned.runs) == 1


@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_a_run_is_never_pruned_at_its_last_epoch(open_study, pruner):
    search = {"sampler": "random", "trials": 6, "pruner": pruner}
    planner = open_study(specs.study(SEARCHED, epochs=9, search=search))
    for _ in range(5):  # as many as the median pruner needs
        run = planner.next()
        for epoch in range(1, 10):
            planner.should_prune(run, epoch, 50.0 + 10 * (epoch == 9))
        finish(planner, run)
    late = planner.next()
    decisions = [planner.should_prune(late, epoch, 51.0) for epoch in range(1, 10)]
    assert decisions == [False] * 9  # better than the others until epoch 8, worse at the last


def test_trials_are_divided_over_cells_and_older_studies_keep_what_they_have(open_study, store):
    arms = {"smooth": {"b": {"low": 0.1, "high": 1.0}, "layers": {"grid": [1, 2]}}}

    def of(trials):
        return specs.study(arms, seeds=2, search={"sampler": "random", "trials": trials})

    planner = open_study(of(5))
    assert drain(planner) == 5 * 2
    layers = [trial.params["layers"] for trial in store.trials(planner.study_id)]
    assert sorted(layers) == [1, 1, 1, 2, 2]
    older = open_study(of(3))  # trials were counted per cell: more are recorded than planned
    assert older.next() is None
    progress = older.progress()
    assert (progress.runs_done, progress.runs_known) == (10, 10)
    assert drain(open_study(of(7))) == 2 * 2


@pytest.mark.parametrize("pruner", ["none", "median"])
def test_memory_does_not_grow_with_finished_runs(open_study, monkeypatch, pruner):
    monkeypatch.setattr(queries, "PAGE", 3)

    def kept(planner):
        gc.collect()
        search = planner.sampler.searches["smooth"]
        rows = sum(type(found) is RunRow for found in gc.get_objects())
        return rows - before, len(planner.trials), len(search.trials), len(search.decisions)

    def of(trials):
        search = {"sampler": "random", "trials": trials, "pruner": pruner}
        return specs.study(SEARCHED, seeds=2, search=search)

    gc.collect()
    before = sum(type(found) is RunRow for found in gc.get_objects())
    planner = open_study(of(8))
    while (run := planner.next()) is not None:
        planner.should_prune(run, 1, 90.0)
        finish(planner, run)
    del run
    assert kept(planner) == (0, 0, 0, 0)
    ended = planner.progress()
    assert (ended.runs_done, ended.epochs_done) == (16, 48)
    del planner
    restarted = open_study(of(9))
    assert kept(restarted) == (0, 0, 0, 0)
    progress = restarted.progress()
    assert (progress.runs_done, progress.runs_known) == (16, 18)
    assert (progress.epochs_done, progress.epochs_known) == (48, 54)
    assert drain(restarted) == 2


def test_a_trial_whose_runs_end_at_once_is_counted_once(open_study, store):
    planner = open_study(specs.study({"sgd": {"method": "mse"}}, seeds=2))
    runs = [planner.next(), planner.next()]
    for run in runs:  # both are recorded before the planner hears of the first
        store.finish_run(store.claim(run.id, ENVIRONMENT), "complete", max_acc=90.0, mean_acc=89.0)
    for run in runs:
        planner.run_ended(run)
    progress = planner.progress()
    assert (progress.runs_done, progress.runs_known) == (2, 2)


def test_the_best_trials_are_those_that_the_store_selects(open_study, store):
    arms = {"laplace": {"b": {"grid": [0.1, 0.3, 0.5, 0.7]}}}
    planner = open_study(specs.study(arms, grid={"fraction": [0.2, 0.4]}))
    runs = [planner.next() for _ in range(8)]
    for run in reversed(runs):  # equal results: the oldest trial is selected
        finish(planner, run, accuracy=80.0 + runs.index(run) // 4)
    winners = [winner.trial.id for winner in store.winners(planner.study_id)]
    assert sorted(trial.id for trial in planner.best()) == winners
    restarted = open_study(planner.spec)
    assert [trial.id for trial in restarted.best()] == winners


def test_a_restarted_planner_returns_only_missing_runs(open_study):
    spec = specs.study(ARMS, seeds=2)
    planner = open_study(spec)
    for _ in range(3):
        finish(planner, planner.next())
    lost = planner.next()  # never finished
    restarted = open_study(spec)
    assert restarted.next().id == lost.id
    assert drain(restarted) == 2


def test_a_run_whose_worker_died_at_once_lets_another_one_go_first(open_study, store):
    """The other one shows whether the place is broken, before retries are used up there."""
    planner = open_study(specs.study({"sgd": {"method": "mse"}}, seeds=3))
    runs = [planner.next()]
    for expected in (1, 0, 1, 0):
        planner.worker_died(runs[-1].id, "killed")
        runs.append(planner.next())
        assert runs[-1].seed == expected
    attempt = store.claim(runs[-1].id, ENVIRONMENT)
    store.record_epoch(attempt, records.epoch(1), None)
    planner.worker_died(runs[-1].id, "killed")
    assert planner.next().seed == 0  # it has trained


def test_a_run_whose_worker_died_after_finishing_is_not_trained_again(open_study, store):
    planner = open_study(specs.study({"sgd": {"method": "mse"}}))
    run = planner.next()
    store.finish_run(store.claim(run.id, ENVIRONMENT), "complete", max_acc=90.0, mean_acc=89.0)
    assert planner.worker_died(run.id, "killed") == "killed"
    assert planner.next() is None
    assert store.trials(planner.study_id)[0].value == 90.0


def test_a_trial_whose_runs_ended_is_finished_after_a_restart(open_study, store):
    """The launcher died after the run had ended, before it finished the trial."""
    spec = specs.study({"sgd": {"method": "mse"}})
    planner = open_study(spec)
    run = planner.next()
    store.finish_run(store.claim(run.id, ENVIRONMENT), "complete", max_acc=90.0, mean_acc=89.0)
    open_study(spec)
    assert store.trials(planner.study_id)[0].value == 90.0


def test_more_seeds_later_train_only_the_new_ones(open_study, store):
    drain(open_study(specs.study(ARMS, seeds=1)))
    planner = open_study(specs.study(ARMS, seeds=2))
    assert drain(planner) == 3
    assert all(len(trial.runs) == 2 for trial in store.trials(planner.study_id))


def test_more_trials_later_continue_the_search(open_study):
    assert drain(open_study(specs.study(SEARCHED, search=dict(sampler="tpe", trials=3)))) == 3
    assert drain(open_study(specs.study(SEARCHED, search=dict(sampler="tpe", trials=5)))) == 2


def test_out_of_time_finishes_started_trials_and_adds_none(open_study):
    planner = open_study(specs.study(SEARCHED, seeds=2, search=dict(sampler="tpe", hours=1)))
    finish(planner, planner.next())
    planner.out_of_time = True
    assert planner.next().seed == 1
    assert planner.next() is None


def test_progress_counts_finished_and_planned_runs(open_study):
    planner = open_study(specs.study(ARMS, seeds=2, epochs=4))
    finish(planner, planner.next())
    progress = planner.progress()
    assert (progress.runs_done, progress.runs_known) == (1, 6)
    assert (progress.epochs_done, progress.epochs_known) == (4, 24)


@pytest.mark.parametrize("confirm", [0, 2])
@pytest.mark.parametrize("pruner", ["none", "asha"])
@pytest.mark.parametrize("luck", range(4))
def test_a_counter_never_passes_its_total_and_reaches_it(open_study, confirm, pruner, luck):
    outcomes = random.Random(luck)
    search = {"sampler": "random", "trials": 4, "pruner": pruner}
    arms = {**SEARCHED, "sgd": {"method": "mse"}}
    planner = open_study(specs.study(arms, seeds=3, confirm=confirm, search=search, epochs=2))
    states = ["complete", "failed"] + ["pruned"] * (pruner != "none")
    totals = [planner.progress().runs_known]
    while (run := planner.next()) is not None:
        before = planner.progress()
        finish(planner, run, outcomes.choice(states[: 2 if run.seed else 3]))
        progress = planner.progress()
        assert progress.runs_done == before.runs_done + 1 <= progress.runs_known
        assert progress.epochs_done <= progress.epochs_known
        totals.append(progress.runs_known)
    assert progress.runs_done == progress.runs_known == totals[-1] <= totals[0] == 15 + 2 * confirm
    assert progress.epochs_done == progress.epochs_known == 2 * totals[-1]
    again = open_study(planner.spec).progress()
    assert (again.runs_done, again.runs_known) == (progress.runs_done, progress.runs_known)


def test_a_confirmation_to_come_is_counted_before_it_is_added(open_study):
    planner = open_study(specs.study({"sgd": {"method": "mse"}}, confirm=2))
    finish(planner, planner.next())
    assert planner.progress().runs_known == 3
    failed = open_study(specs.study({"sgd": {"method": "mse"}}, confirm=2, name="failed"))
    finish(failed, failed.next(), "failed")
    assert failed.progress().runs_known == 1  # nothing is selected


def test_a_spent_time_budget_adds_nothing_to_the_total(open_study):
    search = {"sampler": "random", "trials": 9, "hours": 1}
    planner = open_study(specs.study(SEARCHED, seeds=2, search=search))
    finish(planner, planner.next())
    assert planner.progress().runs_known == 18
    planner.out_of_time = True
    finish(planner, planner.next())
    assert (planner.progress().runs_done, planner.progress().runs_known) == (2, 2)


def test_a_lost_run_is_retried_until_its_retries_are_spent(open_study, store):
    resources = {"retries": 1}
    planner = open_study(specs.study({"sgd": {"method": "mse"}}, resources=resources))
    run = planner.next()
    store.claim(run.id, ENVIRONMENT)
    assert planner.worker_died(run.id, "worker killed") == "worker killed, retry 1/1 from epoch 0"
    assert planner.next().id == run.id
    store.claim(run.id, ENVIRONMENT)
    assert planner.worker_died(run.id, "worker killed") == "worker killed"
    given_up = store.run(run.id)
    assert given_up.state == "failed" and "gave up after 1 retries" in given_up.error
    assert store.trial(run.trial_id).state == "failed" and planner.next() is None


def test_a_run_that_the_launcher_prunes_keeps_its_best_and_its_time(open_study, store):
    planner = open_study(specs.study({"sgd": {"method": "mse"}}))
    run = planner.next()
    attempt = store.claim(run.id, ENVIRONMENT)
    for epoch in (1, 2):
        store.record_epoch(attempt, replace(records.epoch(epoch), val_acc=70.0 + epoch), None)
    planner.prune(run)
    pruned = store.run(run.id)
    assert (pruned.state, pruned.max_acc, pruned.seconds) == ("pruned", 72.0, 3.0)
    with pytest.raises(StaleAttempt):  # its worker reports too late
        store.record_epoch(attempt, records.epoch(3), None)


def trial_with(runs, *, state=State.RUNNING, confirms=None):
    """A trial whose runs are {seed: state}; a complete run has the accuracy 80 + seed."""
    rows = [
        SimpleNamespace(
            seed=seed,
            state=run_state,
            result=lambda metric, statistic, seed=seed: 80.0 + seed % 100,
            config={"b": 0.5},
        )
        for seed, run_state in runs.items()
    ]
    return SimpleNamespace(runs=rows, state=state, confirms=confirms)


DONE, PRUNED, FAILED = State.COMPLETE, State.PRUNED, State.FAILED
FRESH = 10_000


@pytest.mark.parametrize(
    ("trial", "step"),
    [
        (trial_with({0: State.RUNNING}), None),
        (trial_with({0: DONE, 1: State.WAITING}), None),
        (trial_with({0: DONE}), AddRuns([{"b": 0.5, "seed": 1}, {"b": 0.5, "seed": 2}])),
        (trial_with({0: DONE}, state=DONE), AddRuns([{"b": 0.5, "seed": s} for s in (1, 2)])),
        (trial_with({0: PRUNED}), Finish(PRUNED, None)),
        (trial_with({0: DONE, 1: FAILED}), Finish(FAILED, None)),
        (trial_with({0: DONE, 1: DONE, 2: DONE}), Finish(DONE, 81.0)),
        (trial_with({0: DONE, 1: DONE, 2: DONE}, state=DONE), None),
        (trial_with({0: PRUNED}, state=PRUNED), None),
        (trial_with({FRESH: FAILED}, confirms=7), AddRuns([{"b": 0.5, "seed": FRESH + 1}])),
        (trial_with({FRESH: FAILED, FRESH + 1: DONE}, confirms=7), Finish(FAILED, None)),
    ],
)
def test_the_next_step_follows_from_a_trials_row(trial, step):
    assert next_step(trial, specs.study(ARMS, seeds=3, confirm=2)) == step


@pytest.mark.parametrize("seeds", [1, 2], ids=["resume", "raise seeds"])
def test_taking_up_a_study_takes_as_many_statements_for_many_trials_as_for_few(tmp_path, seeds):
    numbers = []
    for trials in (20, 400):
        store = open_store(f"sqlite:///{tmp_path}/{trials}.db")
        study_id = fill(store, large_spec(trials), trials)
        spec = large_spec(trials, seeds=seeds)
        store.open_study(spec)
        with statements(store) as executed:
            planner = Planner(store, study_id, spec)
        numbers.append(len(executed))
        complete = sum(trial.state == State.COMPLETE for trial in store.trials(study_id))
        assert len(planner.waiting) == (0 if seeds == 1 else len(planner.trials))
        assert complete + len(planner.trials) == -(-trials // 3)
        store.close()
    assert numbers[0] == numbers[1]
