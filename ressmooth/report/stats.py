"""Statistics of a few seeds: the interval of a mean, and the difference of two.

The verdict about a difference is that of `ressmooth.evidence`: it stays valid however often one
looks. Student's t, which is valid for one look only, gives the interval of a mean, compares arms
without common seeds, and stays in the exports. SciPy is imported where it is needed, because that
takes a quarter of a second; scipy.stats would take two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from ressmooth.evidence import (
    LEVEL,
    ROUNDING,
    Evidence,
    Interval,
    mean_and_sd,
    seeds_to_decide,
    weigh,
)

MIN_SEEDS = 3  # of a t-test: in paper-table2-eighth, p = 0.034 with two became 0.24 with three


class Sample:
    """One statistic of a configuration, by seed."""

    def __init__(self, by_seed: Mapping[int, float]) -> None:
        self.by_seed, self.values = by_seed, list(by_seed.values())
        self.n, self.mean = len(by_seed), fmean(self.values)
        self.sd = mean_and_sd(self.values)[1] if self.n > 1 else None

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean, valid for one look. None for one seed or equal seeds."""
        if self.sd is None or self.sd < ROUNDING:
            return None
        return _t_interval(self.mean, self.sd / sqrt(self.n), self.n - 1, LEVEL)


@dataclass(frozen=True)
class TTest:
    """Student's test, with the number of seeds fixed in advance: valid for one look only."""

    p: float
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """The difference of two means, and what the seeds say about it."""

    mean: float  # over the common seeds if the arms have any
    n: int  # common seeds; without any, the seeds of the smaller sample
    is_paired: bool
    evidence: Evidence | None = None  # of pairs; None if there is one, or if all are equal
    fixed_n: TTest | None = None  # None if the seeds are too few or equal
    unpaired: int = 0  # seeds of either arm that the other does not have
    more_seeds: int | None = None  # per arm; None if decided, unknown, or beyond MAX_SEEDS

    @property
    def test(self) -> str | None:
        """The test of the verdict: paired or Welch. None if there is none."""
        if self.p is None:
            return None
        return "paired" if self.is_paired else "Welch"

    @property
    def p(self) -> float | None:
        found = self.evidence if self.is_paired else self.fixed_n
        return found.p if found else None

    @property
    def interval(self) -> Interval | None:
        found = self.evidence if self.is_paired else self.fixed_n
        return found.interval if found else None

    @property
    def is_decided(self) -> bool:
        if self.is_paired:
            return self.evidence is not None and self.evidence.is_decided
        return self.fixed_n is not None and self.fixed_n.p < LEVEL

    @property
    def is_positive(self) -> bool:
        """The sign of the verdict, or of the mean if there is none."""
        return self.evidence.is_gain if self.evidence else self.mean > 0


def difference(ours: Sample, reference: Sample, comparisons: int = 1) -> Difference:
    """Compare our mean with the reference's, corrected for the number of comparisons.

    Runs with the same seed share the subset of the data, the initial weights and the batches, so
    the common seeds are paired, in the order of their numbers. Arms with fewer than two common
    seeds are compared by Welch's test if they have enough seeds for it.
    """
    seeds = sorted(ours.by_seed.keys() & reference.by_seed.keys())
    smaller = min(ours.n, reference.n)
    if not seeds or (len(seeds) == 1 and smaller >= MIN_SEEDS):
        tested = _welch(ours, reference, comparisons) if smaller >= MIN_SEEDS else None
        return Difference(ours.mean - reference.mean, smaller, is_paired=False, fixed_n=tested)
    pairs = [ours.by_seed[seed] - reference.by_seed[seed] for seed in seeds]
    mean, evidence = fmean(pairs), weigh(pairs, comparisons)
    unpaired = ours.n + reference.n - 2 * len(pairs)
    if evidence is None:
        return Difference(mean, len(pairs), is_paired=True, unpaired=unpaired)
    needed = None
    if not evidence.is_decided:
        needed = seeds_to_decide(abs(mean) / evidence.sd, comparisons, already=evidence.n)
    return Difference(
        mean,
        evidence.n,
        is_paired=True,
        evidence=evidence,
        fixed_n=_paired(evidence, comparisons) if evidence.n >= MIN_SEEDS else None,
        unpaired=unpaired,
        more_seeds=needed - evidence.n if needed else None,
    )


def _paired(evidence: Evidence, comparisons: int) -> TTest:
    n = evidence.n
    return _t_test(evidence.mean, evidence.sd / sqrt(n), n - 1.0, comparisons)


def _welch(ours: Sample, reference: Sample, comparisons: int) -> TTest | None:
    """Return Welch's test of independent seeds, or None if all are equal."""
    assert ours.sd is not None and reference.sd is not None
    a, b = ours.sd**2 / ours.n, reference.sd**2 / reference.n
    if a + b < ROUNDING**2:  # a constant difference would be certain
        return None
    freedom = (a + b) ** 2 / (a**2 / (ours.n - 1) + b**2 / (reference.n - 1))
    return _t_test(ours.mean - reference.mean, sqrt(a + b), freedom, comparisons)


def _t_test(mean: float, error: float, freedom: float, comparisons: int) -> TTest:
    from scipy.special import stdtr

    p = min(1.0, comparisons * 2 * float(stdtr(freedom, -abs(mean) / error)))
    return TTest(p, _t_interval(mean, error, freedom, LEVEL / comparisons))


def _t_interval(mean: float, error: float, freedom: float, level: float) -> Interval:
    from scipy.special import stdtrit

    reach = float(stdtrit(freedom, 1 - level / 2)) * error
    return mean - reach, mean + reach
