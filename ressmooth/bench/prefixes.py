"""Count what shared prefixes add to a race: part of `ressmooth bench --verdict`.

The runs of verdict.csv are those of cutoff 0. What a cutoff of 0.001 changes is far below the
spread of seeds, so the same race is counted with prefixes that are trained once.
"""

import csv
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from math import sqrt
from statistics import fmean, stdev

from ressmooth.bench.timing import Row
from ressmooth.bench.verdict import SIZES, _in_order, _shuffled, full_grid, recorded, run_race
from ressmooth.config import parse
from ressmooth.prefix import Prefix, prefix_of, shared_epochs
from ressmooth.search.notes import CUTOFF

Prefixes = Sequence[Prefix | None]  # by trial


def measure(*, quick: bool) -> list[Row]:
    """Return a row per data set and number of seeds."""
    replays, prefixes = 100 if quick else 1000, recorded_prefixes()
    return [
        _measure(name, seeds, prefixes[name], replays) for name in recorded() for seeds in SIZES
    ]


def recorded_prefixes() -> dict[str, Prefixes]:
    """Return the prefixes of the configurations of verdict.csv, in their order, by data set."""
    found: dict[str, dict[str, Prefix | None]] = defaultdict(dict)
    with files("ressmooth.bench").joinpath("verdict.csv").open() as file:
        for row in csv.DictReader(file):
            setting, _, value = row["configuration"].partition("=")
            settings = {
                "dataset": row["dataset"].partition(" ")[0],  # it has the weight decay
                "epochs": int(row["epochs"]),
                "cutoff": CUTOFF,
                setting: float(value),
            }
            smooths = {"method": "smoothing", "distribution": row["arm"]}
            settings |= {"method": "mse"} if row["arm"] == "sgd" else smooths
            key = f"{row['arm']} {row['configuration']}"
            found[row["dataset"]][key] = prefix_of(parse(settings).model_dump())
    return {name: list(each.values()) for name, each in found.items()}


def shared(seeds: Mapping[int, int], prefixes: Prefixes) -> int:
    """Return how many epochs are not trained again, if trials have so many seeds."""
    saved = 0
    for seed in range(max(seeds.values())):
        groups: dict[str, list[int]] = defaultdict(list)
        for trial, prefix in enumerate(prefixes):
            if prefix and seeds[trial] > seed:
                groups[prefix.key].append(prefix.epochs)
        saved += sum(shared_epochs(plain, sorted(plain)) for plain in groups.values())
    return saved


def _measure(name: str, seeds: int, prefixes: Prefixes, replays: int) -> Row:
    rng, racers, ratios = random.Random(0), recorded()[name], []
    for _ in range(replays):
        order = _shuffled(racers, rng)
        race = run_race([_in_order(racer, order) for racer in racers], seeds)
        trained = race.epochs - shared(race.seeds, prefixes)
        ratios.append(trained / full_grid(racers, seeds).epochs)
    mean, half = fmean(ratios), 2 * stdev(ratios) / sqrt(replays)
    what = f"{name}, {seeds} seeds: epochs to the verdicts, race with shared prefixes / full grid"
    return Row("G15", what, mean, mean - half, mean + half, 0.45, at_most=True)
