"""A race of seeds: who is dropped when, who gets another seed, and how often that is wrong."""

import random
from math import sqrt
from statistics import fmean

import pytest
from helpers import dropping

from ressmooth.bench import verdict
from ressmooth.evidence import weigh
from ressmooth.search import racing
from ressmooth.search.racing import ERROR, Racer, next_round
from ressmooth.store import RaceResult

NOISE = (0.1, -0.1, 0.05, -0.05, 0.08, -0.08, 0.02, -0.02, 0.06, -0.06)


def racer(trial, arm, values, *, condition="c", epochs=1, tested=None):
    return Racer(trial, arm, condition, epochs, values, values if tested is None else tested)


def values(mean, seeds, phase=0):
    """Return values around a mean, whose noise differs between phases."""
    return [mean + NOISE[(seed * (2 * phase + 1) + phase) % len(NOISE)] for seed in range(seeds)]


def with_sgd(leaders):
    return {arm: "sgd" if "sgd" in leaders else arm for arm in leaders}


def alone(leaders):
    return {arm: arm for arm in leaders}


def results(found):
    return {each.trial_id: (str(each.result), each.seeds) for each in found.placings}


def test_who_is_far_behind_is_dropped_and_the_others_get_a_seed():
    means = [90.0, 89.98, 80.0, 79.0]
    racers = [racer(n, "a", values(mean, 2, n)) for n, mean in enumerate(means)]
    found = next_round(racers, 2, 5, alone)
    assert results(found) == {2: ("dropped", 2), 3: ("dropped", 2)}
    assert all(each.rival_id in (0, 1) and each.chance < ERROR for each in found.placings)
    assert found.runs == [(0, 2), (1, 2)]


def test_after_the_last_seed_the_best_mean_leads():
    racers = [racer(n, "a", values(90.0 + n / 10, 5, n)) for n in range(2)]
    found = next_round(racers, 5, 5, alone)
    assert results(found) == {0: ("behind", 5), 1: ("reference", 5)} and not found.runs


def test_the_leaders_race_until_the_verdict_is_decided():
    seeds, found = 2, None
    while found is None or found.runs:
        sgd, ours = values(90.0, seeds), values(91.0, seeds, 1)
        found = next_round([racer(0, "sgd", sgd), racer(1, "a", ours)], 2, 10, with_sgd)
        seeds += bool(found.runs)
    evidence = weigh([a - b for a, b in zip(ours, sgd, strict=True)])
    assert evidence.decided_after == seeds < 10
    assert results(found) == {0: ("reference", seeds), 1: ("gain", seeds)}
    assert found.placings[1].e_value == evidence.e_value and found.placings[1].rival_id == 0


def test_a_verdict_that_the_last_seed_will_hardly_decide_ends_the_race():
    sgd, ours = values(90.0, 4), values(90.0, 4, 1)
    found = next_round([racer(0, "sgd", sgd), racer(1, "a", ours)], 2, 10, with_sgd)
    (verdict,) = [each for each in found.placings if each.trial_id == 1]
    assert verdict.result == RaceResult.UNDECIDED and verdict.chance < ERROR and not found.runs


def test_the_verdict_is_about_the_tested_values():
    selected = values(90.0, 8)
    tested = values(95.0, 8, 1)
    racers = [racer(0, "sgd", selected), racer(1, "a", selected, tested=tested)]
    assert results(next_round(racers, 2, 8, with_sgd))[1][0] == "gain"


def test_conditions_race_by_themselves_in_common_rounds():
    racers = [racer(n, "a", values(90.0, 2, n), condition=str(n // 2)) for n in range(4)]
    assert sorted(next_round(racers, 2, 5, alone).runs) == [(n, 2) for n in range(4)]
    alone_in_it = next_round([*racers[:2], racers[2]], 2, 5, alone)
    assert sorted(alone_in_it.runs) == [(0, 2), (1, 2)]
    assert results(alone_in_it) == {2: ("reference", 2)}


def test_the_longest_runs_of_a_round_begin_first():
    racers = [racer(n, "a", values(90.0, 2, n), epochs=epochs) for n, epochs in enumerate((5, 9))]
    assert next_round(racers, 2, 5, alone).runs == [(1, 2), (0, 2)]


def test_later_seeds_do_not_change_earlier_decisions():
    """A trial that was added later, or that lost its value, is compared on the common seeds."""
    short = [racer(n, "a", values(mean, 2, n)) for n, mean in enumerate((90, 89.98, 80))]
    long = [
        racer(n, "a", [*r.values, 0.0, 0.0] if n == 2 else r.values) for n, r in enumerate(short)
    ]
    assert next_round(short, 2, 5, alone) == next_round(long, 2, 5, alone)
    ahead = [racer(0, "a", values(90.0, 5)), *short[1:]]
    assert next_round(ahead, 2, 5, alone).runs == [(1, 2)]


def test_equal_values_are_no_evidence():
    racers = [racer(n, "a", [mean, mean]) for n, mean in enumerate((90.0, 80.0))]
    found = next_round(racers, 2, 5, alone)
    assert not found.placings and found.runs == [(0, 2), (1, 2)]


def test_an_outlier_does_not_keep_others_in_the_race():
    rng = random.Random(0)
    good = [
        racer(n, "a", [mean + rng.gauss(0, 0.1) for _ in range(3)])
        for n, mean in enumerate((90, 89, 89, 89))
    ]
    wild = racer(9, "a", [10.0, 60.0, 30.0])
    assert results(next_round([*good, wild], 3, 10, alone)).keys() == {1, 2, 3, 9, 0}


def test_nobody_races_alone():
    found = next_round([racer(0, "a", values(90.0, 2))], 2, 5, alone)
    assert results(found) == {0: ("reference", 2)} and not found.runs
    assert next_round([], 2, 5, alone).runs == []


def race(table, at_least, at_most, references=with_sgd):
    """Race the rows of a table, by (trial, arm). Return the placings and the seeds of each."""
    seeds = dict.fromkeys(table, at_least)
    while True:
        racers = [racer(*key, table[key][:n]) for key, n in seeds.items()]
        found = next_round(racers, at_least, at_most, references)
        if not found.runs:
            return found.placings, {trial: n for (trial, _), n in seeds.items()}
        keys = dict(found.runs)
        seeds = {key: max(n, keys.get(key[0], -1) + 1) for key, n in seeds.items()}


def simulated(rng, means, seeds, sds):
    """Return values with an effect of the seed that all configurations share."""
    shared = [rng.gauss(0, 2) for _ in range(seeds)]
    return [
        [mean + effect + rng.gauss(0, sd) for effect in shared]
        for mean, sd in zip(means, sds, strict=True)
    ]


# means of the configurations in standard deviations of a run, their standard deviations
FIELDS = {
    "equal": ([0.0] * 8, [1.0] * 8),
    "slightly worse": ([0.0] + [-0.5] * 7, [1.0] * 8),
    "spread": ([0.0, -0.5, -1, -1.5, -2, -3, -4, -8], [1.0] * 8),
    "an outlier": ([0.0, -0.5, -1, -1.5, -2, -3, -4, -8], [1.0] * 7 + [8.0]),
    "unequal spreads": ([0.0, -0.5, -1, -1.5, -2, -3, -4, -8], [1.5, 0.7] * 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("at_most", [5, 10])
@pytest.mark.parametrize("name", FIELDS)
def test_a_race_selects_as_well_as_the_full_grid(name, at_most):
    """2,000 races: at most 5 % select another configuration than the grid, and a worse one.

    Worse means: by more than half a standard error, over the same `at_most` seeds.
    """
    means, sds = FIELDS[name]
    rng, worse, trained = random.Random(0), 0, 0
    for _ in range(2000):
        rows = simulated(rng, means, at_most, sds)
        placings, seeds = race({(n, "a"): row for n, row in enumerate(rows)}, 2, at_most, alone)
        (winner,) = [p.trial_id for p in placings if p.result == RaceResult.REFERENCE]
        best = max(map(fmean, rows))
        worse += fmean(rows[winner]) < best - fmean(sds) / sqrt(at_most) / 2
        trained += sum(seeds.values())
    print(
        f"{name}, {at_most}: {worse / 20:.1f} % worse, {trained / 2000 / 8 / at_most:.2f} of grid"
    )
    assert worse / 2000 <= 0.05


def test_the_rule_that_others_are_compared_with_is_that_of_a_race(monkeypatch):
    source = dropping.shuffled(verdict.recorded()["digits"])
    expected = dropping.assess(source, 10, replays=10)
    monkeypatch.setattr(racing, "_Field", dropping.Field)
    monkeypatch.setattr(dropping.Field, "rule", dropping.summed)
    monkeypatch.setattr(dropping.Field, "level", ERROR)
    assert dropping.assess(source, 10, replays=10) == expected
    monkeypatch.setattr(dropping.Field, "level", 2 * ERROR)
    assert dropping.assess(source, 10, replays=10)[0] < expected[0]


@pytest.mark.slow
@pytest.mark.parametrize("at_most", [5, 10])
def test_races_without_a_difference_have_few_verdicts(at_most):
    """2,000 races of two arms and a reference whose configurations are all equal."""
    rng, false = random.Random(1), 0
    for _ in range(2000):
        rows = simulated(rng, [0.0] * 9, at_most, [1.0] * 9)
        arms = ["sgd", "a", "b"] * 3
        table = {(n, arm): row for n, (arm, row) in enumerate(zip(arms, rows, strict=True))}
        placings, _ = race(table, 2, at_most)
        false += any(p.result in (RaceResult.GAIN, RaceResult.LOSS) for p in placings)
    print(f"{at_most}: {false / 20:.1f} % false verdicts")
    assert false / 2000 <= 0.05
