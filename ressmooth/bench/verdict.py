"""Replay recorded runs: what a race of seeds costs and finds: `ressmooth bench --verdict`.

verdict.csv has 20 seeds of each configuration. A replay shuffles the seeds. The full grid gets the
first of them for every configuration, and the race gets what it asks for. No run is trained.
"""

import csv
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from math import sqrt
from statistics import fmean, stdev

from ressmooth.bench.timing import Row
from ressmooth.evidence import weigh
from ressmooth.search.racing import Leaders, Racer, next_round
from ressmooth.store import Placing, RaceResult

SIZES = (5, 10)  # seeds of the full grid, and of the race at most
AT_LEAST = 2
REFERENCE = "sgd"

Verdicts = dict[str, RaceResult]  # by arm


@dataclass(frozen=True)
class Finding:
    """What a design found, and at which cost."""

    winners: dict[str, int]  # trials by arm
    verdicts: Verdicts
    epochs: int
    seeds: Mapping[int, int]  # by trial


def measure(*, quick: bool) -> list[Row]:
    """Return the rows of each data set."""
    replays = 100 if quick else 1000
    return [row for name, racers in recorded().items() for row in _measure(name, racers, replays)]


def recorded() -> dict[str, list[Racer]]:
    """Return the configurations of verdict.csv by data set, with all their seeds."""
    found: dict[str, dict[tuple[str, str], Racer]] = {}
    with files("ressmooth.bench").joinpath("verdict.csv").open() as file:
        for row in csv.DictReader(file):
            racers = found.setdefault(row["dataset"], {})
            key = row["arm"], row["configuration"]
            new = Racer(len(racers), row["arm"], row["dataset"], int(row["epochs"]), [], [])
            racer = racers.setdefault(key, new)
            assert isinstance(racer.values, list) and isinstance(racer.tested, list)
            racer.values.append(float(row["value"]))
            racer.tested.append(float(row["tested"]))
    return {name: list(racers.values()) for name, racers in found.items()}


def _measure(name: str, racers: list[Racer], replays: int) -> list[Row]:
    rows = [row for seeds in SIZES for row in _compare(name, racers, seeds, replays)]
    rng, false = random.Random(0), []
    for _ in range(replays):
        null = run_race(_without_difference(racers, _shuffled(racers, rng)), SIZES[-1])
        false.append(RaceResult.UNDECIDED not in null.verdicts.values())
    return [*rows, _share(f"{name}: false verdicts of races without a difference", false, 0.05)]


def _compare(name: str, racers: list[Racer], seeds: int, replays: int) -> list[Row]:
    """Compare a race to so many seeds with the full grid that has them."""
    rng = random.Random(0)
    ratios, winners, verdicts = [], [], []
    for _ in range(replays):
        order = _shuffled(racers, rng)
        shuffled = [_in_order(racer, order) for racer in racers]
        grid, race = full_grid(shuffled, seeds), run_race(shuffled, seeds)
        ratios.append(race.epochs / grid.epochs)
        winners += [_is_as_good(racers, race.winners[a], grid.winners[a]) for a in grid.winners]
        verdicts.append(race.verdicts == grid.verdicts)
    mean, half = fmean(ratios), 2 * stdev(ratios) / sqrt(replays)
    what = f"{name}, {seeds} seeds: epochs to the verdicts, race / full grid"
    return [
        Row("G15", what, mean, mean - half, mean + half, 0.6, at_most=True),
        _share(f"{name}, {seeds} seeds: arms with the grid's winner or one as good", winners),
        _share(f"{name}, {seeds} seeds: replays with the grid's verdicts", verdicts),
    ]


def _shuffled(racers: list[Racer], rng: random.Random) -> list[int]:
    seeds = len(racers[0].values)
    return rng.sample(range(seeds), seeds)


def _share(what: str, found: list[bool], at_most: float | None = None) -> Row:
    """Return the share of True, which should be at least 95 % unless it has another limit."""
    share = fmean(found)
    half = 2 * sqrt(share * (1 - share) / len(found))
    low, high = max(0.0, share - half), min(1.0, share + half)
    must = 0.95 if at_most is None else at_most
    return Row("G15", what, share, low, high, must, at_most=at_most is not None)


def _in_order(racer: Racer, order: Iterable[int]) -> Racer:
    values, tested = ([each[seed] for seed in order] for each in (racer.values, racer.tested))
    return replace(racer, values=values, tested=tested)


def _without_difference(racers: list[Racer], order: list[int]) -> list[Racer]:
    """Return two arms with the configurations of the reference. They share no seed."""
    sgd = [racer for racer in racers if racer.arm == REFERENCE]
    other = [replace(racer, arm="copy", trial=len(sgd) + n) for n, racer in enumerate(sgd)]
    half = len(order) // 2
    first = [_in_order(racer, order[:half]) for racer in sgd]
    return first + [_in_order(racer, order[half:]) for racer in other]


def _is_as_good(racers: list[Racer], ours: int, other: int) -> bool:
    """Tell whether a mean over all seeds is at most half its standard error below another."""
    values = racers[ours].values
    error = stdev(values) / sqrt(len(values))
    return fmean(values) >= fmean(racers[other].values) - error / 2


def full_grid(racers: list[Racer], seeds: int) -> Finding:
    """Return what the same number of seeds of each configuration finds."""
    leaders: dict[str, Racer] = {}
    for racer in racers:
        best = leaders.setdefault(racer.arm, racer)
        if fmean(racer.values[:seeds]) > fmean(best.values[:seeds]):
            leaders[racer.arm] = racer
    verdicts = {
        arm: _verdict(leader, leaders[REFERENCE], seeds, len(leaders) - 1)
        for arm, leader in leaders.items()
        if arm != REFERENCE
    }
    winners = {arm: leader.trial for arm, leader in leaders.items()}
    epochs = seeds * sum(racer.epochs for racer in racers)
    return Finding(winners, verdicts, epochs, {racer.trial: seeds for racer in racers})


def _verdict(ours: Racer, reference: Racer, seeds: int, comparisons: int) -> RaceResult:
    pairs = zip(ours.tested[:seeds], reference.tested[:seeds], strict=True)
    evidence = weigh([a - b for a, b in pairs], comparisons)
    if evidence is None or not evidence.is_decided:
        return RaceResult.UNDECIDED
    return RaceResult.GAIN if evidence.is_gain else RaceResult.LOSS


def run_race(racers: list[Racer], at_most: int) -> Finding:
    """Return what a race finds that knows only the runs it asked for."""
    seeds = {racer.trial: AT_LEAST for racer in racers}
    while True:
        known = [_in_order(racer, range(seeds[racer.trial])) for racer in racers]
        found = next_round(known, AT_LEAST, at_most, _references)
        if not found.runs:
            return _finding(racers, found.placings, seeds)
        for trial, seed in found.runs:
            seeds[trial] = max(seeds[trial], seed + 1)


def _finding(racers: list[Racer], placings: list[Placing], seeds: Mapping[int, int]) -> Finding:
    by_trial = {racer.trial: racer for racer in racers}
    lost = (RaceResult.DROPPED, RaceResult.BEHIND)
    leaders = {by_trial[p.trial_id].arm: p for p in placings if p.result not in lost}
    return Finding(
        winners={arm: placing.trial_id for arm, placing in leaders.items()},
        verdicts={arm: p.result for arm, p in leaders.items() if arm != REFERENCE},
        epochs=sum(racer.epochs * seeds[racer.trial] for racer in racers),
        seeds=seeds,
    )


def _references(leaders: Leaders) -> Mapping[str, str]:
    return dict.fromkeys(leaders, REFERENCE)
