"""Races of seeds in a study, without training anything."""

import random
from dataclasses import replace

import pytest
from helpers import specs
from helpers.planning import finish

from ressmooth.search.planner import Planner


@pytest.fixture
def open_study(store):
    def make(spec):
        return Planner(store, store.open_study(spec), spec)

    return make


RACE = {"race": True, "at_least": 2, "at_most": 6}
B = {"b": {"grid": [0.1, 0.3, 0.9]}}


def racing(arms=None, **settings):
    return specs.study(arms or {"sgd": {"method": "mse"}, "laplace": B}, seeds=RACE, **settings)


def accuracy_of(config, seed):
    """Return a known accuracy: b = 0.9 is bad, 0.1 and 0.3 are close, both are better than SGD."""
    noise = random.Random(f"{config['method']} {config['b']} {seed}").gauss(0, 0.1)
    gain = {0.1: 1.5, 0.3: 1.45, 0.9: -5.0}.get(config["b"], 0.0)
    return 90.0 + (gain if config["method"] == "smoothing" else 0.0) + noise


def run_race(planner, order=None):
    """Finish runs, each at its known accuracy. With an `order`, four at a time in any order."""
    at_once, running = 4 if order else 1, []
    while True:
        while len(running) < at_once and (run := planner.next()) is not None:
            running.append(run)
        if not running:
            return
        run = running.pop(order.randrange(len(running)) if order else 0)
        finish(planner, run, accuracy=accuracy_of(run.config, run.seed))
        progress = planner.progress()
        assert progress.runs_done <= progress.runs_known


def rows(store, planner):
    trials = store.trials(planner.study_id)
    return (
        [
            (t.arm, t.params, t.state, t.value, [(r.seed, r.max_acc) for r in t.runs])
            for t in trials
        ],
        store.race(planner.study_id),
    )


def test_seeds_race(open_study, store):
    planner = open_study(racing())
    run_race(planner)
    trials, placings = rows(store, planner)
    seeds = {(arm, params.get("b")): len(runs) for arm, params, *_, runs in trials}
    results = {store.trial(p.trial_id).params.get("b"): (p.result, p.seeds) for p in placings}
    assert seeds["laplace", 0.9] == 2 and results[0.9] == ("dropped", 2)
    assert results[None][0] == "reference" and "gain" in (results[0.1][0], results[0.3][0])
    assert 2 < max(seeds.values()) <= 6
    assert planner.progress().runs_done == planner.progress().runs_known == sum(seeds.values())
    winners = {w.trial.arm: w.trial for w in store.winners(planner.study_id)}
    assert len(winners["laplace"].runs) == max(seeds["laplace", 0.1], seeds["laplace", 0.3])


@pytest.mark.parametrize("seed", range(3))
def test_a_race_does_not_depend_on_the_order_in_which_runs_end(open_study, store, seed):
    first, other = open_study(racing(name="first")), open_study(racing(name="other"))
    run_race(first)
    run_race(other, random.Random(seed))
    (trials, placings), (other_trials, other_placings) = rows(store, first), rows(store, other)
    assert trials == other_trials
    assert [p.result for p in placings] == [p.result for p in other_placings]


def test_a_race_that_is_killed_anywhere_goes_on_as_if_it_was_not(open_study, store):
    whole = open_study(racing(name="whole"))
    run_race(whole)
    planner = open_study(racing(name="killed"))
    while (run := planner.next()) is not None:
        finish(planner, run, accuracy=accuracy_of(run.config, run.seed))
        planner = open_study(racing(name="killed"))  # a new launch, which knows only the Store
    assert rows(store, planner)[0] == rows(store, whole)[0]
    assert [p.seeds for p in store.race(planner.study_id)] == [
        p.seeds for p in store.race(whole.study_id)
    ]


def test_a_round_that_is_only_half_recorded_is_completed(open_study, store):
    whole = open_study(racing(name="whole"))
    run_race(whole)
    planner = open_study(racing(name="half"))
    for _ in range(8):
        run = planner.next()
        finish(planner, run, accuracy=accuracy_of(run.config, run.seed))
    (trial,) = [t for t in store.trials(planner.study_id) if t.arm == "sgd"]
    store.add_runs({trial.id: [{**trial.runs[0].config, "seed": 2}]}, is_racing=True)  # and died
    planner = open_study(racing(name="half"))
    run_race(planner)
    assert rows(store, planner)[0] == rows(store, whole)[0]


def test_a_comparison_during_a_race_shows_the_race_so_far(open_study, store):
    planner = open_study(racing())
    for _ in range(9):
        run = planner.next()
        finish(planner, run, accuracy=accuracy_of(run.config, run.seed))
    assert {w.trial.arm for w in store.winners(planner.study_id)} == {"sgd", "laplace"}
    assert any(t.state == "running" for t in store.trials(planner.study_id))


def test_who_has_lost_a_race_is_not_selected_by_lucky_seeds(open_study, store):
    """Seeds 0 and 1 are easy for all, so that the mean of two is higher than that of six."""
    planner = open_study(racing())
    while (run := planner.next()) is not None:
        finish(planner, run, accuracy=accuracy_of(run.config, run.seed) + 20 * (run.seed < 2))
    lost = [p.trial_id for p in store.race(planner.study_id) if p.result in ("dropped", "behind")]
    values = {t.id: t.value for t in store.trials(planner.study_id) if t.arm == "laplace"}
    assert max(values, key=values.get) in lost
    assert not {w.trial.id for w in store.winners(planner.study_id)} & set(lost)


def test_the_winners_of_a_race_are_confirmed_after_it(open_study, store):
    planner = open_study(racing(confirm=2))
    run_race(planner)
    winners = store.winners(planner.study_id)
    assert all([run.seed for run in w.confirmation.runs] == [10_000, 10_001] for w in winners)
    assert planner.progress().runs_done == planner.progress().runs_known


def test_a_failed_seed_leaves_the_race(open_study, store):
    planner = open_study(racing())
    failed = None
    while (run := planner.next()) is not None:
        if run.seed == 2 and run.config["b"] == 0.1:
            failed = run.trial_id
            finish(planner, run, "failed")
        else:
            finish(planner, run, accuracy=accuracy_of(run.config, run.seed))
    placed = {p.trial_id: p.result for p in store.race(planner.study_id)}
    assert failed and failed not in placed and "gain" in placed.values()


def test_raising_at_most_goes_on_with_the_race(open_study, store):
    close = {"sgd": {"method": "mse"}, "laplace": {"b": {"grid": [0.1, 0.3]}}}
    short = racing(close, name="x")
    short = replace(short, most_seeds=3)
    run_race(open_study(short))
    longer = open_study(racing(close, name="x"))
    run_race(longer)
    at_once = open_study(racing(close, name="y"))
    run_race(at_once)
    assert rows(store, longer)[0] == rows(store, at_once)[0]


def test_a_race_may_become_a_full_grid(open_study, store):
    run_race(open_study(racing()))
    planner = open_study(specs.study({"sgd": {"method": "mse"}, "laplace": B}, seeds=6))
    run_race(planner)
    trials, placings = rows(store, planner)
    assert placings == [] and {len(runs) for *_, runs in trials} == {6}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_sampler_learns_from_the_seeds_before_the_race(open_study, store, sampler):
    arms = {"smooth": {"b": {"low": 0.1, "high": 1.0}}}

    def study(trials, name):
        search = {"sampler": sampler, "trials": trials}
        return racing(arms, name=name, search=search, reference="smooth")

    raised = open_study(study(12, "raised"))
    run_race(raised)
    raised = open_study(study(14, "raised"))
    run_race(raised)
    at_once = open_study(study(14, "at-once"))
    run_race(at_once)
    (trials, placings), (others, other_placings) = rows(store, raised), rows(store, at_once)
    assert [params for _, params, *_ in trials] == [params for _, params, *_ in others]
    decided = [[(p.result, p.seeds, p.chance) for p in each] for each in (placings, other_placings)]
    assert decided[0] == decided[1]


def test_a_pruned_trial_takes_no_part_in_the_race(open_study, store):
    search = {"sampler": "random", "pruner": "median", "trials": 4}
    planner = open_study(racing({"smooth": {"b": {"low": 0.1, "high": 1.0}}}, search=search))
    pruned = planner.next()
    finish(planner, pruned, "pruned")
    run_race(planner)
    assert pruned.trial_id not in {p.trial_id for p in store.race(planner.study_id)}
    assert len(store.trial(pruned.trial_id).runs) == 1
