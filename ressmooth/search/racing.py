"""Decide which configurations of a race get another seed: a pure function of recorded values.

Every trial is trained with `at_least` seeds. Then the race goes in rounds. In each, whoever is
still in the race gets one more seed, in all arms and under all conditions at once. A look at n
seeds uses the first n seeds of each configuration, so that the race can be replayed at any time
from what is recorded, whatever ran where and in which order.

In an arm, a configuration is dropped once it will hardly be the arm's best after `at_most` seeds.
The chance that its mean will still pass the leader's is Student's t: the lead after n of N seeds is
d, the lead over the other N - n seeds is predicted from it, and a run's standard deviation s comes
from the two-way fit (configuration + seed) over the arm:

    chance = P(T > d / s * sqrt(n / 2) * sqrt(N / (N - n)))

The chances of all that an arm drops add up to at most ERROR. This is the rate at which a race
selects another configuration than the full grid with `at_most` seeds would.

The leader of each arm races the leader of its reference until the verdict is decided, or until
`at_most` seeds will hardly decide it. Verdicts are valid however often one looks (evidence.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from ressmooth.evidence import LEVEL, ROUNDING, Evidence, critical_t, weigh
from ressmooth.store import Placing, RaceResult

ERROR = 0.05  # chances that are neglected: of an arm's dropped configurations, of a verdict


@dataclass(frozen=True)
class Racer:
    """A complete trial. Its values are in the order of the seeds, which begin with 0."""

    trial: int
    arm: str
    condition: str
    epochs: int
    values: Sequence[float]  # that select; higher is better
    tested: Sequence[float]  # that the verdict compares; higher is better


@dataclass(frozen=True)
class Round:
    """The race so far, and the runs of its next round. There are none once it is over."""

    placings: list[Placing]
    runs: list[tuple[int, int]]  # trial, seed


Leaders = Mapping[str, Racer]  # by arm
References = Callable[[Leaders], Mapping[str, str]]  # arm -> the arm that it is compared with


def next_round(
    racers: Iterable[Racer], at_least: int, at_most: int, references: References
) -> Round:
    """Replay a race and return its next round."""
    conditions: dict[str, list[Racer]] = {}
    for racer in sorted(racers, key=lambda racer: racer.trial):
        conditions.setdefault(racer.condition, []).append(racer)
    rounds = [_Race(each, at_most, references).replay(at_least) for each in conditions.values()]
    epochs = {racer.trial: racer.epochs for each in conditions.values() for racer in each}
    runs = [run for each in rounds for run in each.runs]
    return Round(
        placings=[placing for each in rounds for placing in each.placings],
        runs=sorted(runs, key=lambda run: (-epochs[run[0]], run)),  # the longest begin first
    )


class _Field:
    """The configurations of an arm that are still in the race, after some seeds of each."""

    def __init__(self, racers: list[Racer]) -> None:
        self.racers, self.seeds = racers, 1
        self.squares, self.freedom = 0.0, 0  # of the residuals of the two-way fit
        self.spent = 0.0  # of ERROR

    @property
    def leader(self) -> Racer:
        return max(self.racers, key=lambda racer: (self._mean(racer), -racer.trial))

    def _mean(self, racer: Racer) -> float:
        return fmean(racer.values[: self.seeds])

    def missing(self, seeds: int) -> list[tuple[int, int]]:
        """Return the runs that are missing for a look at so many seeds."""
        return [(r.trial, seed) for r in self.racers for seed in range(len(r.values), seeds)]

    def advance(self, seeds: int) -> None:
        """Take further seeds into account. Dropped configurations keep their share of the fit."""
        for n in range(self.seeds, seeds):
            news = [(r.values[n] - self._mean(r)) * sqrt(n / (n + 1)) for r in self.racers]
            mean = fmean(news)
            self.squares += sum((each - mean) ** 2 for each in news)
            self.freedom += len(news) - 1
            self.seeds = n + 1

    def drop(self, at_most: int) -> list[Placing]:
        """Drop those that will hardly pass the leader, the worst first, and return them."""
        leader, n = self.leader, self.seeds
        others = [racer for racer in self.racers if racer is not leader]
        if n == at_most:
            self.racers = [leader]
            return [Placing(r.trial, RaceResult.BEHIND, n, leader.trial) for r in others]
        if not others or self.squares < self.freedom * ROUNDING**2:
            return []  # rounded figures would make a difference certain
        sd = sqrt(self.squares / self.freedom)
        dropped = []
        for racer in sorted(others, key=self._mean):
            t = (self._mean(leader) - self._mean(racer)) / sd * sqrt(n / 2)
            chance = _tail(t * sqrt(at_most / (at_most - n)), self.freedom)
            if self.spent + chance > ERROR:
                break
            self.spent += chance
            dropped.append(Placing(racer.trial, RaceResult.DROPPED, n, leader.trial, chance))
            self.racers.remove(racer)
        return dropped


class _Race:
    """The race of the arms under one condition."""

    def __init__(self, racers: list[Racer], at_most: int, references: References) -> None:
        self.at_most, self.references = at_most, references
        arms = dict.fromkeys(racer.arm for racer in racers)
        self.fields = {arm: _Field([r for r in racers if r.arm == arm]) for arm in arms}

    def replay(self, at_least: int) -> Round:
        placings: list[Placing] = []
        for field in self.fields.values():
            field.advance(at_least)
        for n in range(at_least, self.at_most + 1):
            for field in self.fields.values():
                if field.seeds == n:
                    placings += field.drop(self.at_most)
            verdicts = self._verdicts()
            racing = self._racing(verdicts) if n < self.at_most else []
            if missing := [run for field in racing for run in field.missing(n + 1)]:
                return Round(placings, missing)
            for field in racing:
                field.advance(n + 1)
            if not racing:
                break
        return Round(placings + list(verdicts.values()), [])

    def _racing(self, verdicts: Mapping[str, Placing]) -> list[_Field]:
        """Return the fields that need another seed."""
        arms = {arm for arm, field in self.fields.items() if len(field.racers) > 1}
        references = self.references(self._leaders())
        for arm, verdict in verdicts.items():
            if verdict.result == RaceResult.UNDECIDED and (verdict.chance or 0.0) >= ERROR:
                arms |= {arm, references[arm]}
        return [field for arm, field in self.fields.items() if arm in arms]

    def _leaders(self) -> Leaders:
        return {arm: field.leader for arm, field in self.fields.items()}

    def _verdicts(self) -> dict[str, Placing]:
        """Return the verdict about the leader of each arm, on the seeds it shares."""
        leaders = self._leaders()
        references = self.references(leaders)
        comparisons = sum(references[arm] != arm for arm in leaders)
        found = {}
        for arm, ours in leaders.items():
            other, field = references[arm], self.fields[arm]
            n = min(field.seeds, self.fields[other].seeds)
            found[arm] = Placing(ours.trial, RaceResult.REFERENCE, field.seeds)
            if other != arm:
                pairs = zip(ours.tested[:n], leaders[other].tested[:n], strict=True)
                evidence = weigh([a - b for a, b in pairs], comparisons)
                rival = leaders[other].trial
                found[arm] = _verdict(ours.trial, rival, n, evidence, self.at_most, comparisons)
        return found


def _verdict(
    trial: int, rival: int, n: int, evidence: Evidence | None, at_most: int, comparisons: int
) -> Placing:
    if evidence is None:  # all differences are equal: another seed may tell
        return Placing(trial, RaceResult.UNDECIDED, n, rival, 1.0 if n < at_most else 0.0)
    if evidence.is_decided:
        result = RaceResult.GAIN if evidence.is_gain else RaceResult.LOSS
        return Placing(trial, result, n, rival, e_value=evidence.e_value)
    chance = _chance_to_decide(evidence, at_most, comparisons)
    return Placing(trial, RaceResult.UNDECIDED, n, rival, chance, evidence.e_value)


def _chance_to_decide(evidence: Evidence, at_most: int, comparisons: int) -> float:
    """Return the chance that `at_most` seeds decide for the sign that the seeds have now."""
    n, left = evidence.n, at_most - evidence.n
    if not left:
        return 0.0
    critical = critical_t(at_most, comparisons / LEVEL) / sqrt(at_most)
    effect = abs(evidence.mean) / evidence.sd
    needed = (at_most * critical - n * effect) / left  # mean of the seeds that are left
    return _tail((needed - effect) / sqrt(1 / left + 1 / n), n - 1)


def _tail(t: float, freedom: int) -> float:
    """Return the probability that Student's t is above t."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))
