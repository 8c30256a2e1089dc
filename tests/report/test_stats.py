"""Samples and differences: against scipy.stats, by hand, and against `weigh`."""

import math

import numpy as np
import pytest
from scipy import stats

from ressmooth.evidence import log_e_value, weigh
from ressmooth.report.stats import Sample, difference


def sample(*values, first=0):
    return Sample(dict(enumerate(values, start=first)))


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_a_sample_is_described_as_scipy_does(n):
    values = np.random.default_rng(n).normal(90, 0.4, n)
    ours = sample(*values)
    assert (ours.n, ours.mean) == (n, pytest.approx(values.mean()))
    assert ours.sd == pytest.approx(values.std(ddof=1))
    expected = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    assert ours.interval == pytest.approx(expected)


def test_an_interval_by_hand():
    """1, 2, 3: sd 1, standard error 1/sqrt(3), t of 2 degrees of freedom at 97.5 % is 4.303."""
    low, high = sample(1.0, 2.0, 3.0).interval
    assert (low, high) == (pytest.approx(2 - 2.4841, abs=1e-3), pytest.approx(4.4841, abs=1e-3))


def test_one_seed_has_no_spread_and_no_interval():
    assert (sample(90.0).sd, sample(90.0).interval) == (None, None)


def test_equal_seeds_have_no_interval_either():
    assert sample(90.1 + 0.2, 90.3).interval is None  # apart by rounding only


@pytest.mark.parametrize("comparisons", [1, 4])
@pytest.mark.parametrize("n", [4, 5, 20])
def test_the_same_seeds_are_weighed_and_the_t_test_of_scipy_is_kept(n, comparisons):
    generator = np.random.default_rng(n)
    base = generator.normal(90, 1.0, n)
    ours = base + generator.normal(0.3, 0.2, n)
    found = difference(sample(*ours), sample(*base), comparisons)
    weighed = weigh(list(ours - base), comparisons)
    assert (found.test, found.n, found.unpaired) == ("paired", n, 0)
    assert found.mean == pytest.approx((ours - base).mean())
    assert (found.p, found.interval) == (weighed.p, weighed.interval)
    assert found.is_decided == weighed.is_decided and found.evidence == weighed
    expected = stats.ttest_rel(ours, base)
    assert found.fixed_n.p == pytest.approx(min(1, comparisons * expected.pvalue))
    assert found.fixed_n.p < found.p  # looking as often as one likes has a price
    interval = expected.confidence_interval(1 - 0.05 / comparisons)
    assert found.fixed_n.interval == pytest.approx((interval.low, interval.high))


def test_seeds_are_weighed_in_the_order_of_their_numbers():
    """Later seeds that undo a verdict cannot be moved before it."""
    differences = {0: 1.0, 1: 1.1, 2: 0.9, 3: 1.0, 4: 1.05, 5: -3.0}
    base = dict.fromkeys(differences, 90.0)
    in_order = difference(Sample({s: 90 + d for s, d in differences.items()}), Sample(base))
    backwards = difference(
        Sample({s: 90 + d for s, d in reversed(differences.items())}), Sample(base)
    )
    renumbered = difference(Sample({5 - s: 90 + d for s, d in differences.items()}), Sample(base))
    assert in_order == backwards and in_order.evidence.decided_after == 4
    assert in_order.is_decided and not renumbered.is_decided


def test_a_verdict_keeps_its_sign_when_later_seeds_disagree():
    values = [1.0, 1.1, 0.9, 1.0, -9.0]
    found = difference(sample(*values), sample(*[0.0] * 5))
    assert found.mean < 0 and found.is_decided and found.is_positive


def test_only_common_seeds_are_paired():
    """Seeds 2 to 5 of seven and of four, in whatever order they were recorded."""
    ours = Sample({seed: 90.0 + seed + 0.1 * (seed % 2) for seed in (6, 5, 4, 3, 2, 1, 0)})
    base = Sample({seed: 89.0 + seed for seed in (2, 3, 4, 5)})
    found = difference(ours, base)
    assert (found.n, found.unpaired, found.test) == (4, 3, "paired")
    assert found.mean == pytest.approx(1.05)  # of the pairs, not 93.04 - 92.5
    assert found.evidence == weigh([ours.by_seed[s] - base.by_seed[s] for s in (2, 3, 4, 5)])


@pytest.mark.parametrize("common", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 3), (5, 5), (3, 12)])
def test_different_seeds_are_tested_by_welch_as_in_scipy(sizes, common):
    generator = np.random.default_rng(sum(sizes))
    ours, base = generator.normal(90.5, 0.2, sizes[0]), generator.normal(90, 0.6, sizes[1])
    found = difference(sample(*ours, first=sizes[1] - common), sample(*base), 2)
    expected = stats.ttest_ind(ours, base, equal_var=False)
    assert (found.test, found.evidence, found.more_seeds) == ("Welch", None, None)
    assert found.p == pytest.approx(min(1, 2 * expected.pvalue))
    interval = expected.confidence_interval(1 - 0.05 / 2)
    assert found.interval == pytest.approx((interval.low, interval.high))
    assert found.fixed_n.p == found.p


def test_a_t_test_by_hand():
    """Differences 1, 2, 3: mean 2, t = 2 sqrt(3) = 3.464, p = 0.0742 with 2 degrees of freedom."""
    found = difference(sample(11.0, 22.0, 33.0), sample(10.0, 20.0, 30.0))
    assert (found.test, found.mean) == ("paired", 2.0)
    assert found.fixed_n.p == pytest.approx(0.0742, abs=1e-4)
    assert not found.is_decided


@pytest.mark.parametrize(
    "ours, base",
    [
        ((91.0,), (90.0,)),
        ((91.0,), (90.0, 90.1)),
        ((91.0, 91.5, 92.0), (90.0, 90.5, 91.0)),  # the difference is 1 each time
        (
            (90.3, 91.3, 91.9),
            (90.3 - 0.28, 91.3 - 0.28, 91.9 - 0.28),
        ),  # constant too, up to rounding
    ],
    ids=["one seed each", "one seed", "no spread", "no spread but rounding"],
)
def test_one_or_equal_seeds_are_never_tested(ours, base):
    found = difference(sample(*ours), sample(*base))
    assert (found.p, found.interval, found.test, found.more_seeds) == (None,) * 4
    assert found.fixed_n is None and not found.is_decided and found.mean > 0


@pytest.mark.parametrize(
    "ours, base",
    [((91.0, 91.6), (90.0, 90.5, 90.2)), ((91.0,) * 3, (90.0,) * 3)],
    ids=["two seeds", "no spread"],
)
def test_other_seeds_that_are_few_or_equal_are_never_tested(ours, base):
    found = difference(sample(*ours, first=10), sample(*base))
    assert (found.p, found.fixed_n, found.is_paired, found.is_decided) == (None, None, False, False)


def test_two_seeds_decide_nothing_however_large_the_gain():
    found = difference(sample(91.0, 99.000001), sample(1.0, 9.0))
    assert found.p > 0.3 and found.interval is None and not found.is_decided
    assert (found.fixed_n, found.more_seeds) == (None, 2)  # four are the fewest


@pytest.mark.parametrize("seed", range(40))
def test_an_interval_excludes_zero_exactly_when_it_is_decided(seed):
    generator = np.random.default_rng(seed)
    ours, base = generator.normal(90.7, 0.3, 8), generator.normal(90, 0.3, 8)
    found = difference(sample(*ours), sample(*base), 3)
    low, high = found.interval
    assert found.is_decided == (low > 0 or high < 0) == (found.p <= 0.05)
    assert found.more_seeds is None or not found.is_decided


@pytest.mark.parametrize("seed", range(20))
def test_the_suggested_seeds_decide_if_the_difference_stays_as_it_is(seed):
    """Seeds whose mean and standard deviation stay those observed."""
    drawn = np.random.default_rng(seed).normal(0.5, 1.0, 6)
    found = difference(sample(*drawn), sample(*[0.0] * 6), 2)
    effect, n = abs(drawn.mean()) / drawn.std(ddof=1), 6 + (found.more_seeds or 994)
    assert found.is_decided or log_e_value(n, effect * math.sqrt(n)) >= math.log(40) or n == 1000
    assert log_e_value(n - 1, effect * math.sqrt(n - 1)) < math.log(40)


def test_no_difference_is_never_decided():
    found = difference(sample(90.0, 91.0, 92.0), sample(92.0, 91.0, 90.0))
    assert (found.mean, found.more_seeds, found.is_decided) == (0.0, None, False)


def test_chance_is_called_a_difference_less_than_once_in_twenty():
    """Each look counts: a verdict at any of 5 to 12 seeds is a false one."""
    generator = np.random.default_rng(0)
    decided = 0
    for _ in range(1000):
        ours, base = generator.normal(90, 0.3, (2, 12))
        looks = (difference(sample(*ours[:n]), sample(*base[:n])) for n in (5, 8, 12))
        decided += any(look.is_decided for look in looks)
    assert 0.005 < decided / 1000 < 0.035
