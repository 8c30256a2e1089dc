"""Statistics of a few seeds: intervals, differences, and how many seeds would decide.

All of it is Student's t. The interval of a difference excludes 0 exactly when its p is below 5 %,
because both have the same Bonferroni correction for the number of comparisons. SciPy is imported
where it is needed, because that takes a quarter of a second; scipy.stats would take two.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import fmean

LEVEL = 0.05
MIN_SEEDS = 3  # of a test: in paper-table2-eighth, p = 0.034 with two seeds became 0.24 with three
MAX_SEEDS = 1_000  # a difference that needs more is not worth training for
POWER = 0.8  # of a test with the suggested number of seeds
ROUNDING = 1e-9  # smaller spreads count as zero

Interval = tuple[float, float]


class Sample:
    """One statistic of a configuration, by seed."""

    def __init__(self, by_seed: Mapping[int, float]) -> None:
        self.by_seed, self.values = by_seed, list(by_seed.values())
        self.n, self.mean = len(by_seed), fmean(self.values)
        self.sd = _sd(self.values) if self.n > 1 else None

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean. None for one seed or equal seeds."""
        if self.sd is None or self.sd < ROUNDING:
            return None
        return _t_interval(self.mean, self.sd / sqrt(self.n), self.n - 1, LEVEL)


@dataclass(frozen=True)
class Difference:
    """The difference of two means, with its test."""

    mean: float
    test: str | None = None  # paired | Welch; None if the seeds are too few or equal
    interval: Interval | None = None
    p: float | None = None
    more_seeds: int | None = None  # per arm; None if decided, unknown, or beyond MAX_SEEDS

    @property
    def is_decided(self) -> bool:
        return self.p is not None and self.p < LEVEL


def difference(ours: Sample, reference: Sample, comparisons: int = 1) -> Difference:
    """Test our mean minus the reference's, corrected for the number of comparisons.

    The test is paired if both were trained with the same seeds, which share the subset of the
    data, the initial weights and the batches. Otherwise it is Welch's.
    """
    mean = ours.mean - reference.mean
    seeds = min(ours.n, reference.n)
    if seeds < MIN_SEEDS:
        return Difference(mean)
    is_paired = ours.by_seed.keys() == reference.by_seed.keys()
    spread, error, freedom = _paired(ours, reference) if is_paired else _welch(ours, reference)
    if error < ROUNDING:  # a constant difference would be certain after two seeds
        return Difference(mean)
    from scipy.special import stdtr

    level = LEVEL / comparisons
    p = min(1.0, comparisons * 2 * float(stdtr(freedom, -abs(mean) / error)))
    needed = seeds_to_decide(abs(mean) / spread, freedom / (seeds - 1), level)
    return Difference(
        mean,
        test="paired" if is_paired else "Welch",
        interval=_t_interval(mean, error, freedom, level),
        p=p,
        more_seeds=needed - seeds if p >= LEVEL and needed < MAX_SEEDS else None,
    )


def seeds_to_decide(effect: float, freedom_per_seed: float, level: float) -> int:
    """Return the seeds per arm that detect `effect` standard deviations, at most MAX_SEEDS."""
    from scipy.special import nctdtr, stdtrit

    def power(n: int) -> float:
        freedom = freedom_per_seed * (n - 1)
        critical = stdtrit(freedom, 1 - level / 2)
        return 1 - float(nctdtr(freedom, effect * sqrt(n), critical))

    return bisect_left(range(MAX_SEEDS), POWER, lo=MIN_SEEDS, key=power)


def _paired(ours: Sample, reference: Sample) -> tuple[float, float, float]:
    """Return the standard deviation of a seed's difference, standard error, degrees of freedom."""
    spread = _sd([value - reference.by_seed[seed] for seed, value in ours.by_seed.items()])
    return spread, spread / sqrt(ours.n), ours.n - 1.0


def _welch(ours: Sample, reference: Sample) -> tuple[float, float, float]:
    """Return the same as `_paired` for independent seeds."""
    a, b = _sd(ours.values) ** 2, _sd(reference.values) ** 2
    squared = a / ours.n + b / reference.n
    if squared < ROUNDING**2:
        return 0.0, 0.0, 1.0
    rest = (a / ours.n) ** 2 / (ours.n - 1) + (b / reference.n) ** 2 / (reference.n - 1)
    return sqrt(a + b), sqrt(squared), squared**2 / rest


def _sd(values: Sequence[float]) -> float:
    """Return what statistics.stdev does, which is a hundred times slower."""
    mean = fmean(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _t_interval(mean: float, error: float, freedom: float, level: float) -> Interval:
    from scipy.special import stdtrit

    reach = float(stdtrit(freedom, 1 - level / 2)) * error
    return mean - reach, mean + reach
