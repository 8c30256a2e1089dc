"""Weigh paired differences so that a verdict stays valid however often one looks.

The evidence after n seeds is an e-value E_n: under no difference it is a martingale with mean 1, so
by Ville's inequality it ever reaches 1 / level with a probability of at most `level`. Stopping when
one likes, or adding seeds because the evidence is not enough yet, changes nothing about that.

E_n is the likelihood ratio of "the effect is normal with mean 0 and standard deviation c, in units
of the seeds' standard deviation" to "there is none", with the right Haar prior on that standard
deviation (Lai 1976; Pérez-Ortiz et al. 2022; Wang and Ramdas 2024).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import exp, fsum, inf, log, sqrt

LEVEL = 0.05  # at most this share of studies without a difference ever gets a verdict
PRIOR_SD = 2.0  # c: by simulation (tests/helpers/peeking.py), never fitted to results
MAX_SEEDS = 1_000  # a difference that needs more is not worth training for
ROUNDING = 1e-9  # smaller standard deviations count as zero
MAX_T = 1e100  # its square is finite
MAX_LOG = 700.0  # of an e-value: its exponential is finite

Interval = tuple[float, float]


@dataclass(frozen=True)
class Evidence:
    """What paired differences say, after all looks from the first seed to the last."""

    n: int  # seeds
    mean: float
    sd: float
    e_value: float  # the largest so far: the evidence against "no difference" is e_value : 1
    p: float  # anytime-valid, corrected for the number of comparisons
    interval: Interval | None  # the intersection of all looks; None if it is unbounded or empty
    decided_after: int | None  # seeds until the first decisive look
    is_gain: bool  # the sign of the decision, or of the mean if there is none

    @property
    def is_decided(self) -> bool:
        return self.decided_after is not None


def weigh(differences: Sequence[float], comparisons: int = 1) -> Evidence | None:
    """Weigh at least two differences, in the order of their seeds. None if they are all equal."""
    threshold = comparisons / LEVEL
    best, decided_after, sign = 0.0, None, 0.0
    low, high = -inf, inf
    mean = squares = sd = 0.0
    for n, value in enumerate(differences, start=1):
        step = value - mean  # Welford's update: one pass over all looks
        mean += step / n
        squares += step * (value - mean)
        sd = sqrt(squares / (n - 1)) if n > 1 else 0.0
        if sd < ROUNDING:  # equal so far: rounded figures would make a difference certain
            continue
        look = log_e_value(n, sqrt(n) * mean / sd)
        if decided_after is None and look >= log(threshold):
            decided_after, sign = n, mean
        best = max(best, look)
        reach = critical_t(n, threshold) * sd / sqrt(n)
        low, high = max(low, mean - reach), min(high, mean + reach)
    if sd < ROUNDING:
        return None
    return Evidence(
        n=len(differences),
        mean=mean,
        sd=sd,
        e_value=exp(min(best, MAX_LOG)),
        p=min(1.0, comparisons * exp(-best)),
        interval=(low, high) if -inf < low <= high < inf else None,
        decided_after=decided_after,
        is_gain=(sign or mean) > 0,
    )


def log_e_value(n: float, t: float, freedom: float | None = None) -> float:
    """Return the logarithm of E_n for the t statistic of n differences.

    `freedom` are the degrees of freedom of the standard deviation: n - 1 unless it is pooled.
    """
    v = n - 1 if freedom is None else freedom
    g = 1 + n * PRIOR_SD**2
    t = min(abs(t), MAX_T)
    return ((v + 1) * (log(1 + t * t / v) - log(1 + t * t / (g * v))) - log(g)) / 2


def critical_t(n: float, threshold: float, freedom: float | None = None) -> float:
    """Return the t statistic at which E_n reaches the threshold, inf if none does."""
    v = n - 1 if freedom is None else freedom
    g = 1 + n * PRIOR_SD**2
    ratio = exp((2 * log(threshold) + log(g)) / (v + 1))
    return sqrt(v * (ratio - 1) / (1 - ratio / g)) if ratio < g else inf


def least_seeds(comparisons: int = 1) -> int:
    """Return the fewest seeds that can decide at all, however large the difference is."""
    return next(n for n in count(2) if critical_t(n, comparisons / LEVEL) < inf)


def seeds_to_decide(effect: float, comparisons: int = 1, already: int = 0) -> int | None:
    """Return how many seeds would decide a true difference of `effect` standard deviations.

    None if more than MAX_SEEDS are needed.
    """

    def evidence(n: int) -> float:  # once above the threshold, it stays there
        return log_e_value(n, effect * sqrt(n))

    seeds = range(MAX_SEEDS + 1)
    least = max(2, already + 1)
    n = bisect_left(seeds, log(comparisons / LEVEL), lo=min(least, len(seeds)), key=evidence)
    return n if n <= MAX_SEEDS else None


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation of a sample of at least two values."""
    mean = fsum(values) / len(values)
    return mean, sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
