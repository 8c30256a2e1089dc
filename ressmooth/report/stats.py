"""What a few seeds can tell: intervals, differences and how many seeds would decide.

Student's t throughout. An interval of a difference excludes 0 exactly when its p is below 5 %, as
both carry the same (Bonferroni's) correction for the number of comparisons.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import fmean

from scipy.special import nctdtr, stdtr, stdtrit  # scipy.stats takes two seconds to load

LEVEL = 0.05
FEWEST = 3  # seeds for a test: paper-table2-eighth has seen p = 0.034 of two become 0.24 of three
POWER = 0.8  # with which so many seeds would decide
MOST_SEEDS = 1_000  # beyond, the difference is none that anybody would train for
ROUNDING = 1e-9  # a spread below is none

Interval = tuple[float, float]


@dataclass(frozen=True)
class Sample:
    """One figure of a configuration, by seed."""

    by_seed: Mapping[int, float]

    @property
    def values(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def n(self) -> int:
        return len(self.by_seed)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def sd(self) -> float | None:
        return _sd(self.values) if self.n > 1 else None

    @property
    def interval(self) -> Interval | None:
        """Of the mean, 95 %; one seed has none, and equal seeds tell nothing of the next one."""
        if self.sd is None or self.sd < ROUNDING:
            return None
        return _around(self.mean, self.sd / sqrt(self.n), self.n - 1, LEVEL)


@dataclass(frozen=True)
class Difference:
    """Of two means, tested."""

    mean: float
    test: str | None = None  # paired | Welch; None if there is too little for any
    interval: Interval | None = None
    p: float | None = None
    more_seeds: int | None = None  # per arm; None if decided, not known, or beyond MOST_SEEDS

    @property
    def is_decided(self) -> bool:
        return self.p is not None and self.p < LEVEL


def difference(ours: Sample, baseline: Sample, comparisons: int = 1) -> Difference:
    """Ours minus the baseline's, corrected for so many comparisons.

    Paired where both were trained with the same seeds, which share the subset of the data, the
    initial weights and the batches; otherwise Welch's test.
    """
    mean = ours.mean - baseline.mean
    if min(ours.n, baseline.n) < FEWEST:
        return Difference(mean)
    paired = ours.by_seed.keys() == baseline.by_seed.keys()
    spread, error, freedom = _paired(ours, baseline) if paired else _welch(ours, baseline)
    if error < ROUNDING:  # a difference that never varied would be certain after two seeds
        return Difference(mean)
    level = LEVEL / comparisons
    p = min(1.0, comparisons * 2 * float(stdtr(freedom, -abs(mean) / error)))
    seeds = min(ours.n, baseline.n)
    needed = seeds_to_decide(abs(mean) / spread, freedom / (seeds - 1), level)
    more = needed - seeds if p >= LEVEL and needed < MOST_SEEDS else None
    return Difference(
        mean,
        "paired" if paired else "Welch",
        _around(mean, error, freedom, level),
        p,
        more,
    )


def seeds_to_decide(effect: float, freedom_per_seed: float, level: float) -> int:
    """Per arm, if the true difference is `effect` standard deviations; at most MOST_SEEDS."""

    def power(n: int) -> float:
        freedom = freedom_per_seed * (n - 1)
        critical = stdtrit(freedom, 1 - level / 2)
        return 1 - float(nctdtr(freedom, effect * sqrt(n), critical))

    return bisect_left(range(MOST_SEEDS), POWER, lo=FEWEST, key=power)


def _paired(ours: Sample, baseline: Sample) -> tuple[float, float, float]:
    """Standard deviation of a seed's difference, standard error, degrees of freedom."""
    spread = _sd([value - baseline.by_seed[seed] for seed, value in ours.by_seed.items()])
    return spread, spread / sqrt(ours.n), ours.n - 1.0


def _welch(ours: Sample, baseline: Sample) -> tuple[float, float, float]:
    """The same for seeds that have nothing in common."""
    a, b = _sd(ours.values) ** 2, _sd(baseline.values) ** 2
    squared = a / ours.n + b / baseline.n
    if squared < ROUNDING**2:
        return 0.0, 0.0, 1.0
    rest = (a / ours.n) ** 2 / (ours.n - 1) + (b / baseline.n) ** 2 / (baseline.n - 1)
    return sqrt(a + b), sqrt(squared), squared**2 / rest


def _sd(values: Sequence[float]) -> float:
    """statistics.stdev computes in fractions, a hundred times as long."""
    mean = fmean(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _around(mean: float, error: float, freedom: float, level: float) -> Interval:
    reach = float(stdtrit(freedom, 1 - level / 2)) * error
    return mean - reach, mean + reach
