"""Decide which configurations of a race get another seed: a pure function of recorded values.

Every trial is trained with `at_least` seeds. Then the race goes in rounds. In each, whoever is
still in the race gets one more seed, in all arms and under all conditions at once. A look at n
seeds uses the first n seeds of each configuration, so that the race can be replayed at any time
from what is recorded, whatever ran where and in which order.

In an arm, a configuration is dropped once it will hardly be the arm's best after N = `at_most`
seeds. Let it be d behind the leader after n seeds. With s, the standard deviation of a run, the
chance that its mean over N seeds will be half a standard error above the leader's is

    P(T > (d / s + 1 / (2 sqrt(N))) sqrt(n / 2) sqrt(N / (N - n)))        T: Student's t

s comes from the two-way fit (configuration + seed) over those that are still in the race, in all
arms of the condition, so that two seeds of many configurations already tell. The chances of all
that an arm drops add up to at most ERROR: the rate at which a race selects another configuration
than the full grid with `at_most` seeds, and a worse one. Other rules cost about as much for winners
that are as good (tests/helpers/dropping.py).

The leader of each arm races the leader of its reference until the verdict is decided, or until
`at_most` seeds will hardly decide it. Verdicts are valid however often one looks (evidence.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, sqrt
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
    races = [_Race(each, at_least, at_most, references) for each in conditions.values()]
    rounds = [race.replay() for race in races]
    epochs = {racer.trial: racer.epochs for each in conditions.values() for racer in each}
    runs = [run for each in rounds for run in each.runs]
    return Round(
        placings=[placing for each in rounds for placing in each.placings],
        runs=sorted(runs, key=lambda run: (-epochs[run[0]], run)),  # the longest begin first
    )


class _Field:
    """The configurations of an arm that are still in the race, after some seeds of each."""

    def __init__(self, racers: list[Racer], seeds: int) -> None:
        self.racers, self.seeds = racers, seeds
        self.spent = 0.0  # of ERROR

    @property
    def leader(self) -> Racer:
        return max(self.racers, key=lambda racer: (self._mean(racer), -racer.trial))

    @property
    def freedom(self) -> int:
        """Return the degrees of freedom of the residuals."""
        return (len(self.racers) - 1) * (self.seeds - 1)

    def _mean(self, racer: Racer) -> float:
        return fmean(racer.values[: self.seeds])

    def squares(self) -> float:
        """Return the squared residuals of the two-way fit (configuration + seed)."""
        centred = []
        for racer in self.racers:
            mean = self._mean(racer)
            centred.append([value - mean for value in racer.values[: self.seeds]])
        by_seed = [fmean(seed) for seed in zip(*centred, strict=True)]
        return fsum(
            (each - effect) ** 2
            for values in centred
            for each, effect in zip(values, by_seed, strict=True)
        )

    def missing(self, seeds: int) -> list[tuple[int, int]]:
        """Return the runs that are missing for a look at so many seeds."""
        return [(r.trial, seed) for r in self.racers for seed in range(len(r.values), seeds)]

    def drop(self, at_most: int, sd: float, freedom: int) -> list[Placing]:
        """Drop those that will hardly pass the leader, the worst first, and return them."""
        leader, n = self.leader, self.seeds
        dropped = []
        for racer in sorted(self.racers, key=self._mean)[: len(self.racers) - 1]:
            lead = (self._mean(leader) - self._mean(racer)) / sd + 1 / (2 * sqrt(at_most))
            chance = _tail(lead * sqrt(n / 2 * at_most / (at_most - n)), freedom)
            if racer is leader or self.spent + chance > ERROR:
                break
            self.spent += chance
            self.racers.remove(racer)
            dropped.append(Placing(racer.trial, RaceResult.DROPPED, n, leader.trial, chance))
        return dropped

    def finish(self) -> list[Placing]:
        """End the race after the last seed. Return those behind the leader."""
        leader, behind = self.leader, RaceResult.BEHIND
        others = [racer for racer in self.racers if racer is not leader]
        self.racers = [leader]
        return [Placing(racer.trial, behind, self.seeds, leader.trial) for racer in others]


class _Race:
    """The race of the arms under one condition."""

    def __init__(
        self, racers: list[Racer], at_least: int, at_most: int, references: References
    ) -> None:
        self.at_least, self.at_most, self.references = at_least, at_most, references
        arms = dict.fromkeys(racer.arm for racer in racers)
        self.fields = {arm: _Field([r for r in racers if r.arm == arm], at_least) for arm in arms}

    def replay(self) -> Round:
        """Look at more and more seeds, until a run is missing or the race is over."""
        placings: list[Placing] = []
        for n in range(self.at_least, self.at_most):
            placings += self._drop(n)
            racing = self._racing(self._verdicts())
            if missing := [run for field in racing for run in field.missing(n + 1)]:
                return Round(placings, missing)
            for field in racing:
                field.seeds = n + 1
        for field in self.fields.values():
            placings += field.finish()
        return Round([*placings, *self._verdicts().values()], [])

    def _drop(self, n: int) -> list[Placing]:
        """Drop until nobody can be dropped. The spread falls if an outlier has left the race."""
        placings: list[Placing] = []
        fields = [field for field in self.fields.values() if len(field.racers) > 1]
        while fields:
            freedom = sum(field.freedom for field in fields)
            sd = sqrt(fsum(field.squares() for field in fields) / freedom)
            if sd < ROUNDING:  # rounded figures would make a difference certain
                break
            dropped = [each for field in fields for each in field.drop(self.at_most, sd, freedom)]
            placings += dropped
            fields = [field for field in fields if len(field.racers) > 1] if dropped else []
        return placings

    def _racing(self, verdicts: Mapping[str, Placing]) -> list[_Field]:
        """Return the fields that need another seed."""
        arms = {arm for arm, field in self.fields.items() if len(field.racers) > 1}
        references = self.references(self._leaders())
        for arm, verdict in verdicts.items():
            if verdict.result == RaceResult.UNDECIDED and (verdict.chance or 0.0) >= ERROR:
                arms |= {arm, references[arm]}
        return [field for arm, field in self.fields.items() if arm in arms]

    def _leaders(self) -> Leaders:
        """Return the leaders with the seeds that were looked at."""
        found = {}
        for arm, field in self.fields.items():
            leader, n = field.leader, field.seeds
            found[arm] = replace(leader, values=leader.values[:n], tested=leader.tested[:n])
        return found

    def _verdicts(self) -> dict[str, Placing]:
        """Return the verdict about the leader of each arm, on the seeds it shares."""
        leaders = self._leaders()
        references = self.references(leaders)
        comparisons = sum(references[arm] != arm for arm in leaders)
        found = {}
        for arm, ours in leaders.items():
            other = leaders[references[arm]]
            found[arm] = Placing(ours.trial, RaceResult.REFERENCE, len(ours.values))
            if other is not ours:
                pairs = zip(ours.tested, other.tested, strict=False)  # the common seeds
                differences = [a - b for a, b in pairs]
                found[arm] = _verdict(ours, other, differences, self.at_most, comparisons)
        return found


def _verdict(
    ours: Racer, other: Racer, differences: Sequence[float], at_most: int, comparisons: int
) -> Placing:
    n, evidence = len(differences), weigh(differences, comparisons)
    result, chance = RaceResult.UNDECIDED, None
    if evidence is None:  # all differences are equal: another seed may tell
        return Placing(ours.trial, result, n, other.trial, 1.0 if n < at_most else 0.0)
    if evidence.is_decided:
        result = RaceResult.GAIN if evidence.is_gain else RaceResult.LOSS
    else:
        chance = _chance_to_decide(evidence, at_most, comparisons)
    return Placing(ours.trial, result, n, other.trial, chance, evidence.e_value)


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
