"""Rules that drop configurations from a race, at the same quality of the winners.

`python tests/helpers/dropping.py` prints tables of tests/README.md. Each rule has a level. The
cost is that of the level at which 95 % of the winners are the full grid's or as good, as `ressmooth
bench --verdict` counts them. Seeds are shuffled or drawn by random.Random(0).
"""

import random
from math import sqrt
from statistics import fmean, variance

import numpy as np
from scipy.special import ndtr, stdtr

from ressmooth.bench import verdict
from ressmooth.search import racing
from ressmooth.search.racing import Racer
from ressmooth.store import Placing, RaceResult

GOOD = 0.95
SEEDS = 20
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(41)


class Field(racing._Field):
    """A field that drops by another rule."""

    rule, level = None, 0.0

    def drop(self, at_most, sd, freedom):
        leader = self.leader
        means = np.array([self._mean(racer) for racer in self.racers])
        chances = type(self).rule(means, sd, freedom, self.seeds, at_most)
        dropped = []
        for chance, racer in sorted(
            zip(chances, self.racers, strict=True), key=lambda each: each[0]
        ):
            if racer is leader or self.spent + chance > self.level:
                break
            self.spent += chance if type(self).rule in SUMMED else 0.0
            self.racers.remove(racer)
            dropped.append(
                Placing(racer.trial, RaceResult.DROPPED, self.seeds, leader.trial, float(chance))
            )
        return dropped


def summed(means, sd, freedom, n, most):
    """The rule of a race: the chances to pass the leader add up to the level at most."""
    lead = (means.max() - means) / sd + 1 / (2 * sqrt(most))
    return stdtr(freedom, -lead * sqrt(n / 2 * most / (most - n)))


def saved(means, sd, freedom, n, most):
    """The chance of each, per share of its seeds that dropping saves, is below the level."""
    return summed(means, sd, freedom, n, most) * most / (most - n)


def best(means, sd, freedom, n, most):
    """The chances to become the best of all, not only to pass the leader, add up to the level."""
    spread = sd * sqrt((most - n) / (n * most))
    reached = means[:, None] + spread * NODES - sd / (2 * sqrt(most))  # [racer, node]
    passed = ndtr((reached[:, None] - means[:, None]) / spread)  # [racer, other, node]
    passed[np.arange(len(means)), np.arange(len(means))] = 1.0
    return passed.prod(1) @ WEIGHTS / WEIGHTS.sum()


def shrunk(means, sd, freedom, n, most):
    """The chance to be truly better than the leader, with means shrunk to that of the arm."""
    error = sd**2 / n
    kept = max(0.01, 1 - error / max(variance(means), 1e-12))
    lead = kept * (means.max() - means) + sd / (2 * sqrt(most))
    return stdtr(freedom, -lead / sqrt(2 * kept * error)) * most / (most - n)


RULES = (summed, saved, best, shrunk)
SUMMED = (summed, best)
LEVELS = (0.01, 0.03, 0.06, 0.12, 0.25)


def simulated(rng):
    """Draw a study: 3 arms of 4 configurations, whose means spread by 0.7 of a run's sd."""
    by_seed = [rng.gauss(0, 2) for _ in range(SEEDS)]
    racers = []
    for trial in range(12):
        mean = rng.gauss(0, 0.7)
        values = [mean + effect + rng.gauss(0, 1) for effect in by_seed]
        arm = (verdict.REFERENCE, "a", "b")[trial // 4]
        racers.append(Racer(trial, arm, "simulated", 1, values, values))
    return racers


def shuffled(racers):
    """Return a source of studies: recorded runs, with their seeds in any order."""

    def draw(rng):
        order = verdict._shuffled(racers, rng)
        return [verdict._in_order(racer, order) for racer in racers]

    return draw


def assess(draw, seeds, replays):
    """Return the epochs, race / full grid, and the share of winners that are as good."""
    rng, costs, good = random.Random(0), [], []
    for _ in range(replays):
        racers = draw(rng)
        grid, race = verdict.full_grid(racers, seeds), verdict.run_race(racers, seeds)
        costs.append(race.epochs / grid.epochs)
        for arm, winner in grid.winners.items():
            good.append(verdict._is_as_good(racers, race.winners[arm], winner))
    return fmean(costs), fmean(good)


def least_cost(draw, seeds, replays):
    """Return the cost if all but the full grid's winners were dropped at the first look."""
    rng, costs = random.Random(0), []
    for _ in range(replays):
        racers = draw(rng)
        grid = verdict.full_grid(racers, seeds)
        winners = [racer for racer in racers if racer.trial in grid.winners.values()]
        others = sum(racer.epochs for racer in racers) - sum(racer.epochs for racer in winners)
        race = verdict.run_race(winners, seeds)
        costs.append((race.epochs + verdict.AT_LEAST * others) / grid.epochs)
    return fmean(costs)


def second_grid(racers, seeds, replays=1000):
    """Return how often a full grid on other seeds has winners as good, and the same verdicts."""
    rng, good, same = random.Random(0), [], []
    for _ in range(replays):
        order = verdict._shuffled(racers, rng)
        halves = order[: SEEDS // 2], order[SEEDS // 2 :]
        first, second = (
            verdict.full_grid([verdict._in_order(racer, half) for racer in racers], seeds)
            for half in halves
        )
        same.append(second.verdicts == first.verdicts)
        for arm, winner in first.winners.items():
            good.append(verdict._is_as_good(racers, second.winners[arm], winner))
    return fmean(good), fmean(same)


def main(replays=300, seeds=verdict.SIZES[0]):
    recorded = {name: shuffled(racers) for name, racers in verdict.recorded().items()}
    sources = {"simulated": simulated, **recorded}
    print("| rule |", " | ".join(sources), "|\n|---|---|---|---|")
    racing._Field = Field
    for Field.rule in RULES:
        costs = []
        for draw in sources.values():
            found = []
            for Field.level in LEVELS:
                found.append(assess(draw, seeds, replays)[::-1])
            costs.append(np.interp(GOOD, *zip(*sorted(found), strict=True)))
        _print(Field.rule.__doc__, costs)
    Field.rule, Field.level = summed, racing.ERROR
    known = [least_cost(draw, seeds, replays) for draw in sources.values()]
    _print("The full grid's winners are known after the first look.", known)
    for name, racers in verdict.recorded().items():
        for size in verdict.SIZES:
            good, same = second_grid(racers, size)
            print(f"second grid, {name}, {size} seeds: winners {good:.3f}, verdicts {same:.3f}")


def _print(rule, costs):
    print(f"| {rule} |", " | ".join(f"{cost:.2f}" for cost in costs), "|", flush=True)


if __name__ == "__main__":
    main()
