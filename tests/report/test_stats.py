"""Student's t against scipy.stats, against cases computed by hand, and against simulations."""

import math

import numpy as np
import pytest
from scipy import stats

from ressmooth.report.stats import MAX_SEEDS, Sample, difference, seeds_to_decide


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
@pytest.mark.parametrize("n", [3, 5, 20])
def test_the_same_seeds_are_paired_as_in_scipy(n, comparisons):
    generator = np.random.default_rng(n)
    base = generator.normal(90, 1.0, n)
    ours = base + generator.normal(0.3, 0.2, n)
    found = difference(sample(*ours), sample(*base), comparisons)
    expected = stats.ttest_rel(ours, base)
    assert found.test == "paired"
    assert found.mean == pytest.approx((ours - base).mean())
    assert found.p == pytest.approx(min(1, comparisons * expected.pvalue))
    interval = expected.confidence_interval(1 - 0.05 / comparisons)
    assert found.interval == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("sizes", [(3, 3), (5, 5), (3, 12)])
def test_different_seeds_are_tested_by_welch_as_in_scipy(sizes):
    generator = np.random.default_rng(sum(sizes))
    ours, base = generator.normal(90.5, 0.2, sizes[0]), generator.normal(90, 0.6, sizes[1])
    found = difference(sample(*ours, first=100), sample(*base), 2)
    expected = stats.ttest_ind(ours, base, equal_var=False)
    assert found.test == "Welch"
    assert found.p == pytest.approx(min(1, 2 * expected.pvalue))
    interval = expected.confidence_interval(1 - 0.05 / 2)
    assert found.interval == pytest.approx((interval.low, interval.high))


def test_a_paired_difference_by_hand():
    """Differences 1, 2, 3: mean 2, t = 2 sqrt(3) = 3.464, p = 0.0742 with 2 degrees of freedom."""
    found = difference(sample(11.0, 22.0, 33.0), sample(10.0, 20.0, 30.0))
    assert (found.test, found.mean) == ("paired", 2.0)
    assert found.p == pytest.approx(0.0742, abs=1e-4)
    assert not found.is_decided


@pytest.mark.parametrize(
    "ours, base",
    [
        ((91.0,), (90.0,)),
        ((91.0,), (90.0, 90.1)),
        ((91.0, 91.6), (90.0, 90.5)),
        ((91.0, 91.5, 92.0), (90.0, 90.5, 91.0)),  # the difference is 1 each time
        (
            (90.3, 91.3, 91.9),
            (90.3 - 0.28, 91.3 - 0.28, 91.9 - 0.28),
        ),  # constant too, up to rounding
    ],
    ids=["one seed each", "one seed", "two seeds", "no spread", "no spread but rounding"],
)
def test_too_few_or_equal_seeds_are_never_tested(ours, base):
    found = difference(sample(*ours), sample(*base))
    assert (found.p, found.interval, found.test, found.more_seeds) == (None,) * 4
    assert not found.is_decided and found.mean > 0


@pytest.mark.parametrize("seed", range(40))
def test_an_interval_excludes_zero_exactly_when_p_is_small(seed):
    generator = np.random.default_rng(seed)
    ours, base = generator.normal(90.4, 0.3, 4), generator.normal(90, 0.3, 4)
    found = difference(sample(*ours), sample(*base), 3)
    low, high = found.interval
    assert found.is_decided == (low > 0 or high < 0)
    assert not (found.more_seeds is not None and found.is_decided)


@pytest.mark.parametrize("effect, level", [(1.0, 0.05), (0.5, 0.05), (1.0, 0.05 / 3)])
def test_the_suggested_seeds_decide_four_times_in_five(effect, level):
    n = seeds_to_decide(effect, 1, level)
    drawn = np.random.default_rng(0).normal(effect, 1.0, (4000, n))
    decided = (stats.ttest_1samp(drawn, 0, axis=1).pvalue < level).mean()
    assert 0.77 < decided < 0.86
    fewer = np.random.default_rng(1).normal(effect, 1.0, (4000, math.ceil(n * 0.7)))
    assert (stats.ttest_1samp(fewer, 0, axis=1).pvalue < level).mean() < 0.75


def test_no_difference_is_never_decided():
    assert seeds_to_decide(0.0, 1, 0.05) == MAX_SEEDS
    assert seeds_to_decide(100.0, 1, 0.05) == 3
    found = difference(sample(90.0, 91.0, 92.0), sample(92.0, 91.0, 90.0))
    assert (found.mean, found.more_seeds, found.is_decided) == (0.0, None, False)


def test_chance_is_called_a_difference_once_in_twenty():
    generator = np.random.default_rng(0)
    decided = sum(
        difference(
            sample(*generator.normal(90, 0.3, 5)), sample(*generator.normal(90, 0.3, 5))
        ).is_decided
        for _ in range(2000)
    )
    assert 0.035 < decided / 2000 < 0.065
