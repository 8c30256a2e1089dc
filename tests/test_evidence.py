"""Evidence by hand, its exact properties, and simulated studies that are looked at often."""

from math import exp, inf, log, sqrt

import numpy as np
import pytest
from helpers import peeking
from scipy import integrate, stats

from ressmooth.evidence import (
    LEVEL,
    critical_t,
    least_seeds,
    log_e_value,
    seeds_to_decide,
    weigh,
)


def drawn(seed, n=12, effect=0.0):
    return list(np.random.default_rng(seed).normal(effect, 1.0, n))


def test_evidence_by_hand():
    """Differences 1, 2, 3, with c = 2.

    Two: t = 3, g = 9, E = 1/3 * (1 + 9) / (1 + 9/9) = 5/3.
    Three: t^2 = 12, g = 13, E = 13^-1/2 * ((1 + 12/2) / (1 + 12/26))^(3/2) = 2.9071.
    """
    assert weigh([1.0, 2.0]).e_value == pytest.approx(5 / 3)
    found = weigh([1.0, 2.0, 3.0], comparisons=2)
    assert (found.n, found.mean, found.sd) == (3, 2.0, 1.0)
    assert found.e_value == pytest.approx(2.9071, abs=1e-4)
    assert found.p == pytest.approx(2 / 2.9071, abs=1e-4)
    assert not found.is_decided and found.interval is None and found.is_gain


def test_a_decision_by_hand():
    """Four seeds decide at t = 7.214, where (1 + t^2/3) / (1 + t^2/51) = (20^2 * 17)^(1/4)."""
    assert critical_t(4, 20) == pytest.approx(7.2140, abs=1e-4)
    values = [-0.9, -1.1, -0.9, -1.1]  # mean -1, sd 0.11547, t = -17.32
    found = weigh(values)
    assert (found.decided_after, found.is_decided, found.is_gain) == (4, True, False)
    assert found.interval == pytest.approx((-1.41649, -0.58351), abs=1e-4)  # 7.214 * 0.057735
    assert weigh(values, comparisons=2).is_decided  # E is 48.6, above 40
    assert not weigh(values, comparisons=3).is_decided


@pytest.mark.parametrize("n, freedom", [(2, None), (3, None), (5, None), (20, None), (3.0, 8.0)])
def test_without_a_difference_the_mean_evidence_is_one(n, freedom):
    """The exact integral over the t distribution, for pooled standard deviations too."""
    v = freedom or n - 1

    def density(t):
        return exp(log_e_value(n, t, freedom) + stats.t.logpdf(t, v))

    assert 2 * integrate.quad(density, 0, inf, limit=500)[0] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("comparisons", [1, 3])
@pytest.mark.parametrize("n", [4, 6, 20, 1000])
def test_the_interval_is_the_inversion_of_the_evidence(n, comparisons):
    threshold = comparisons / LEVEL
    assert log_e_value(n, critical_t(n, threshold)) == pytest.approx(log(threshold))


@pytest.mark.parametrize("seed", range(60))
def test_an_interval_excludes_zero_exactly_when_decided(seed):
    values = drawn(seed, effect=(seed % 3) * 0.8)
    for n in range(2, 13):
        found = weigh(values[:n], comparisons=2)
        if found.interval is not None:
            low, high = found.interval
            assert found.is_decided == (low > 0 or high < 0) == (found.p <= LEVEL)
            assert not found.is_decided or found.is_gain == (low > 0)


@pytest.mark.parametrize("seed", range(20))
def test_more_seeds_never_take_evidence_back(seed):
    looks = [weigh(drawn(seed, effect=1.0)[:n]) for n in range(2, 13)]
    for before, after in zip(looks, looks[1:], strict=False):
        assert after.e_value >= before.e_value and after.p <= before.p
        if before.interval and after.interval:
            assert before.interval[0] <= after.interval[0] <= after.interval[1]
            assert after.interval[1] <= before.interval[1]
        if before.is_decided:
            assert (after.decided_after, after.is_gain) == (before.decided_after, before.is_gain)


def test_the_order_of_the_seeds_counts():
    """A verdict after five seeds stays, and the same seeds in another order give none."""
    values = [1.0, 1.1, 0.9, 1.0, 1.05, -3.0]
    assert weigh(values).decided_after == 4
    assert not weigh(values[::-1]).is_decided


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [0.3, 0.1 + 0.2, 0.3]])
def test_one_or_equal_differences_are_no_evidence(values):
    assert weigh(values) is None


def test_equal_differences_are_not_a_certain_one_when_the_next_differs():
    """Looks at equal differences do not count: their t would be infinite."""
    assert weigh([1.0, 1.0, 1.0, 1.0, 2.0]).decided_after == 5  # t = 6, critical 5.4
    assert weigh([1.0, 1.0, 1.0, 1.0, 3.0]).decided_after is None  # t = 3.5


@pytest.mark.parametrize("comparisons", [1, 2, 3, 4, 50])
def test_the_fewest_seeds_decide_only_what_is_large_enough(comparisons):
    least = least_seeds(comparisons)
    assert {1: 4, 2: 4, 3: 4, 4: 5, 50: 6}[comparisons] == least
    large = [1.0, *[1.0 + 1e-6] * (least - 1)]
    assert weigh(large, comparisons).decided_after == least
    assert not weigh(large[:-1], comparisons).is_decided


def test_two_seeds_are_at_most_evidence_of_three_to_one():
    assert weigh([1.0, 1.0 + 1e-6]).e_value == pytest.approx(3.0)


def test_huge_differences_do_not_overflow():
    assert log_e_value(5, 1e300) == log_e_value(5, -1e300) == pytest.approx(2 * log(21))
    found = weigh([1.0 + 1e-8 * (n % 2) for n in range(1000)])
    assert found.e_value > 1e300 and found.p < 1e-300 and found.is_decided


def test_evidence_has_no_unit():
    values = drawn(3, effect=1.0)
    assert weigh(values).e_value == pytest.approx(weigh([1000 * v for v in values]).e_value)


def test_seeds_to_decide_is_where_the_evidence_reaches_the_threshold():
    assert [seeds_to_decide(effect) for effect in (5.0, 3.0, 2.0, 1.0)] == [4, 5, 6, 15]
    assert seeds_to_decide(2.0, comparisons=4) == 8
    assert seeds_to_decide(5.0, already=6) == 7
    assert seeds_to_decide(0.01) is None and seeds_to_decide(0.0) is None
    assert seeds_to_decide(5.0, already=999) == 1000 and seeds_to_decide(5.0, already=2000) is None


@pytest.mark.parametrize("comparisons", [1, 3, 50])
@pytest.mark.parametrize("effect", np.geomspace(0.05, 50, 20))
def test_no_fewer_seeds_would_decide_and_more_would_too(effect, comparisons):
    n = seeds_to_decide(effect, comparisons) or 1001
    reached = [log_e_value(k, effect * sqrt(k)) >= log(comparisons / LEVEL) for k in range(2, 1001)]
    assert reached == [k >= n for k in range(2, 1001)]


def test_the_simulated_looks_are_those_of_the_product():
    simulated = peeking.studies(150, effect=0.7, seeds=20)
    first = peeking.seeds_needed(peeking.decisions(simulated, comparisons=2))
    expected = [weigh(study, 2).decided_after or peeking.NEVER for study in simulated[:, 0]]
    assert list(first) == expected and len(set(expected)) > 8


@pytest.mark.slow
@pytest.mark.parametrize("policy", peeking.POLICIES, ids=lambda policy: policy.__name__)
def test_however_one_looks_at_most_five_percent_are_false_alarms(policy):
    assert 0.001 < peeking.false_verdicts(policy, 2000) <= LEVEL


@pytest.mark.slow
def test_the_same_looks_mislead_a_t_test():
    """The simulation would notice a test that is valid for one look only."""
    shares = [peeking.false_verdicts(each, 2000, peeking.t_tests) for each in peeking.POLICIES]
    assert shares[0] == pytest.approx(LEVEL, abs=0.015)
    assert shares[1] > 0.2 and min(shares[2:]) > 0.08


@pytest.mark.slow
@pytest.mark.parametrize("effect", [1.0, 2.0, 3.0])
def test_the_advice_is_about_right(effect):
    needed = peeking.seeds_needed(peeking.decisions(peeking.studies(2000, effect)))
    assert abs(np.mean(needed) - seeds_to_decide(effect)) < 1.5
