"""Proposals and pruning, without training anything."""

from types import MappingProxyType, SimpleNamespace

import pytest
from helpers import specs

from ressmooth.search.sampler import Sampler, distribution

SPACE = {
    "b": {"low": 0.05, "high": 2.0, "log": True},
    "mu": {"low": 0.5, "high": 1.0},
    "layers": {"low": 1, "high": 3},
    "distribution": {"choices": ["laplace", "logistic"]},
}


def study(arms=None, **search):
    return specs.study(
        arms or {"smooth": {"method": "smoothing", **SPACE}}, search=search, epochs=9
    )


def score(params):
    return 90 - (params["b"] - 0.4) ** 2 - params["mu"] + (params["distribution"] == "laplace")


def past_trials(proposals, reports=None):
    return [
        (
            SimpleNamespace(
                branch=p.branch.key,
                number_in_branch=p.number,
                params=p.params,
                sampler_state=p.sampler_state,
                state="complete",
                value=score(p.params),
            ),
            (reports or {}).get(p.number, {}),
        )
        for p in proposals
    ]


def restart(spec, past, warm=MappingProxyType({})):
    """Return the sampler of a study that is launched again."""
    sampler = Sampler(spec, warm)
    for trial, reports in past:
        sampler.replay(trial, reports)
    return sampler


def search(spec, sampler=None):
    """Ask for each trial after the previous one has ended, as with one worker."""
    sampler = sampler or Sampler(spec)
    proposals = []
    while (proposal := sampler.ask()) is not None:
        proposals.append(proposal)
        sampler.tell(proposal.branch.key, proposal.number, "complete", score(proposal.params))
    return proposals


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes"])
@pytest.mark.parametrize("stopped_after", [1, 7, 15])
def test_a_restarted_search_proposes_the_same_trials_as_an_uninterrupted_one(
    sampler, stopped_after
):
    spec = study(sampler=sampler, trials=18)
    whole = search(spec)
    resumed = search(spec, restart(spec, past_trials(whole[:stopped_after])))
    assert [p.params for p in resumed] == [p.params for p in whole[stopped_after:]]


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes"])
def test_no_proposal_repeats_another(sampler):
    proposals = search(study(sampler=sampler, trials=12))
    assert len({str(p.params) for p in proposals}) == 12


def test_random_proposals_do_not_depend_on_the_order_of_completion():
    spec = study(sampler="random", trials=6)
    sampler = Sampler(spec)
    together = [sampler.ask() for _ in range(6)]
    assert [p.params for p in together] == [p.params for p in search(spec)]


def test_the_number_of_trials_is_a_total():
    first = search(study(sampler="random", trials=4))
    more = study(sampler="random", trials=7)
    assert [p.number for p in search(more, restart(more, past_trials(first)))] == [4, 5, 6]


def test_another_study_seed_gives_other_proposals():
    one, two = (search(study(sampler="random", trials=3, seed=seed)) for seed in (1, 2))
    assert [p.params for p in one] != [p.params for p in two]


def test_tpe_finds_better_trials_with_time():
    proposals = search(study(sampler="tpe", trials=40))
    early = sum(score(p.params) for p in proposals[:10])
    late = sum(score(p.params) for p in proposals[-10:])
    assert late > early


def test_grids_are_asked_once_each_in_the_order_of_the_file():
    arms = {
        "sgd": {"method": "mse", "weight_decay": {"grid": [1e-2, 1e-3]}},
        "laplace": {"b": {"grid": [0.1, 0.3, 0.5]}},
    }
    sampler = Sampler(study(arms))
    asked = [sampler.ask() for _ in range(5)]
    assert sampler.ask() is None
    expected = [("weight_decay", 1e-2), ("weight_decay", 1e-3), ("b", 0.1), ("b", 0.3), ("b", 0.5)]
    assert [next(iter(p.params.items())) for p in asked] == expected


def test_fixed_arms_are_one_trial_beside_searched_ones():
    arms = {"sgd": {"method": "mse"}, "smooth": {**SPACE}}
    sampler = Sampler(study(arms, sampler="random", trials=3))
    asked = []
    while (proposal := sampler.ask()) is not None:
        asked.append(proposal.branch.arm)
    assert asked == ["sgd", "smooth", "smooth", "smooth"]


@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_a_bad_curve_is_pruned_and_a_good_one_is_not(pruner):
    sampler = Sampler(study(sampler="random", trials=10, pruner=pruner))
    for quality in (90, 91, 92, 93, 94, 95):
        p = sampler.ask()
        for epoch in range(1, 10):
            sampler.should_prune(p.branch.key, p.number, epoch, quality)
        sampler.tell(p.branch.key, p.number, "complete", quality)
    bad, good = sampler.ask(), sampler.ask()
    assert any(sampler.should_prune(bad.branch.key, bad.number, e, 20) for e in range(1, 10))
    assert not any(sampler.should_prune(good.branch.key, good.number, e, 99) for e in range(1, 10))


def first_decision(**search):
    """Return the first epoch of 9 at which a bad trial is pruned after six good ones."""
    sampler = Sampler(study(sampler="random", trials=10, **search))
    for _ in range(6):
        p = sampler.ask()
        for epoch in range(1, 10):
            sampler.should_prune(p.branch.key, p.number, epoch, 90)
        sampler.tell(p.branch.key, p.number, "complete", 90)
    p = sampler.ask()
    epochs = range(1, 10)
    return next((e for e in epochs if sampler.should_prune(p.branch.key, p.number, e, 20)), None)


def test_pruners_begin_where_their_options_say():
    assert first_decision(pruner="asha") == 1
    assert first_decision(pruner="asha", min_epochs=4) == 4
    assert first_decision(pruner="median") == 2
    assert first_decision(pruner="median", warmup=7) == 7
    assert first_decision(pruner="median", warmup=0) == 1


def test_the_reduction_of_asha_decides_how_many_pass():
    def is_pruned(reduction):
        """The third best of nine."""
        search = {"pruner": "asha", "min_epochs": 5, "reduction": reduction}
        sampler = Sampler(study(sampler="random", trials=9, **search))
        accuracies = [81, 82, 83, 84, 85, 86, 87, 88, 86.5]
        asked = [(sampler.ask(), accuracy) for accuracy in accuracies]
        return [sampler.should_prune(p.branch.key, p.number, 5, value) for p, value in asked][-1]

    assert [is_pruned(reduction) for reduction in (2, 3, 4, 9)] == [False, False, True, True]


@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_pruning_decides_the_same_after_a_restart(pruner):
    spec = study(sampler="random", trials=8, pruner=pruner)
    curves = {n: {epoch: 90.0 + n for epoch in range(1, 10)} for n in range(6)}
    sampler = Sampler(spec)
    done = []
    for number in range(6):
        p = sampler.ask()
        for epoch, accuracy in curves[number].items():
            sampler.should_prune(p.branch.key, p.number, epoch, accuracy)
        sampler.tell(p.branch.key, p.number, "complete", score(p.params))
        done.append(p)
    restarted = restart(spec, past_trials(done, curves))
    ours, theirs = sampler.ask(), restarted.ask()
    assert ours.params == theirs.params
    for epoch in range(1, 10):
        accuracy = 92.5
        assert sampler.should_prune(
            ours.branch.key, ours.number, epoch, accuracy
        ) == restarted.should_prune(theirs.branch.key, theirs.number, epoch, accuracy)


def test_optuna_learns_the_state_of_each_trial():
    sampler = Sampler(study(sampler="tpe", trials=5, pruner="median"))
    for state in ("complete", "failed", "pruned"):
        p = sampler.ask()
        key = p.branch.key
        sampler.should_prune(key, p.number, 1, 50.0)
        sampler.tell(key, p.number, state, 90.0 if state == "complete" else None)
    states = [trial.state.name for trial in sampler.searches[key].study.trials]
    assert states == ["COMPLETE", "FAIL", "PRUNED"]


def test_an_integer_setting_is_sampled_as_an_integer():
    spec = study(sampler="random", trials=5)
    (branch,) = spec.branches
    assert distribution("layers", branch.space["layers"]).__class__.__name__ == "IntDistribution"
    assert all(isinstance(p.params["layers"], int) for p in search(spec))


POINTS = [{"b": 0.5, "mu": 0.75, "layers": 2, "distribution": "logistic"}, {"b": 1.0}, {"mu": 0.6}]


def with_points(**search):
    return study({"smooth": {"method": "smoothing", **SPACE, "enqueue": POINTS}}, **search)


@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes"])
@pytest.mark.parametrize("stopped_after", [1, 2, 4, 14])
def test_enqueued_points_are_tried_first_and_a_restart_continues_with_them(sampler, stopped_after):
    spec = with_points(sampler=sampler, trials=18)
    whole = search(spec)
    assert len(whole) == 18
    for proposal, point in zip(whole, POINTS, strict=False):
        assert proposal.params.items() >= point.items()
        assert proposal.params.keys() == SPACE.keys()
    resumed = search(spec, restart(spec, past_trials(whole[:stopped_after])))
    assert [p.params for p in resumed] == [p.params for p in whole[stopped_after:]]


def test_enqueued_points_are_tried_in_each_branch():
    arm = {"b": SPACE["b"], "layers": {"grid": [1, 2]}, "enqueue": [{"b": 0.5}, {"b": 0.6}]}
    sampler = Sampler(study({"smooth": arm}, sampler="random", trials=6))
    asked = [sampler.ask() for _ in range(6)]
    assert [(p.params["layers"], p.params["b"]) for p in asked[:4]] == [
        *((1, 0.5), (2, 0.5), (1, 0.6), (2, 0.6))
    ]
    assert len({p.params["b"] for p in asked}) == 4


def warm_trials(number):
    """Return trials of another study, near the best point."""
    return {
        "smooth": [
            ({"b": 0.4 + n / 100, "mu": 0.5, "layers": 1, "distribution": "laplace"}, 89.0 + n / 50)
            for n in range(number)
        ]
    }


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
@pytest.mark.parametrize("stopped_after", [0, 1, 7])
def test_a_warm_started_search_proposes_the_same_after_a_restart(sampler, stopped_after):
    spec, warm = study(sampler=sampler, trials=10), warm_trials(20)
    whole = search(spec, Sampler(spec, warm=warm))
    assert len(whole) == 10 and [p.number for p in whole] == list(range(10))
    again = restart(spec, past_trials(whole[:stopped_after]), warm)
    assert [p.params for p in search(spec, again)] == [p.params for p in whole[stopped_after:]]
    assert [p.params for p in search(spec)] != [p.params for p in whole]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_a_warm_started_search_begins_near_the_good_trials(sampler):
    spec = study(sampler=sampler, trials=8)

    def distance(warm):
        found = search(spec, Sampler(spec, warm=warm))
        return sum(abs(p.params["b"] - 0.55) + abs(p.params["mu"] - 0.5) for p in found)

    assert distance(warm_trials(40)) < 0.7 * distance({})


@pytest.mark.parametrize("number", [1, 9, 10])
@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_any_number_of_warm_trials_can_be_told(sampler, number):
    spec = study(sampler=sampler, trials=3)
    assert len(search(spec, Sampler(spec, warm=warm_trials(number)))) == 3


@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_warm_trials_do_not_prune(pruner):
    def decisions(warm):
        sampler = Sampler(study(sampler="tpe", trials=8, pruner=pruner), warm=warm)
        found = []
        for quality in (90, 20, 91, 30, 92, 93, 40):
            p = sampler.ask()
            found += [
                sampler.should_prune(p.branch.key, p.number, e, quality) for e in range(1, 10)
            ]
            sampler.tell(p.branch.key, p.number, "complete", quality)
        return found

    assert decisions(warm_trials(12)) == decisions({})
    assert any(decisions({}))


@pytest.mark.parametrize("step", [1, 4], ids=["every epoch", "rungs are passed at once"])
@pytest.mark.parametrize("pruner", ["median", "asha"])
def test_a_replayed_trial_is_what_optuna_made_of_it(pruner, step):
    """Ended trials are added at once, with what the pruner has noted of them."""
    spec = study(pruner=pruner, sampler="tpe", trials=40)
    live, past = Sampler(spec), []
    while (proposal := live.ask()) is not None:
        key, number, value = proposal.branch.key, proposal.number, score(proposal.params)
        reports, state = {}, "complete"
        for epoch in range(step, 10, step):
            reports[epoch] = value - (9 - epoch) * number % 7
            if live.should_prune(key, number, epoch, reports[epoch]) and epoch < 9:
                state = "pruned"
                break
        value = value if state == "complete" else None
        live.tell(key, number, state, value)
        trial = {"branch": key, "number_in_branch": number, "params": proposal.params}
        trial |= {"sampler_state": proposal.sampler_state, "state": state, "value": value}
        past.append((SimpleNamespace(**trial), reports))
    assert {trial.state for trial, _ in past} == {"complete", "pruned"}
    told, again = (
        [
            (t.state, t.value, t.params, t.intermediate_values, t.system_attrs)
            for t in sampler.searches[key].study.get_trials()
        ]
        for sampler in (live, restart(spec, past))
    )
    assert told == again
