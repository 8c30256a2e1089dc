"""Replays of recorded runs: what the full grid and a race find in them."""

import random
from collections import Counter

from click.testing import CliRunner

from ressmooth.bench.verdict import (
    _without_difference,
    full_grid,
    measure,
    recorded,
    run_race,
)
from ressmooth.cli import main
from ressmooth.search.racing import Racer


def table(**means):
    """Return arms with one configuration per mean, and noise that differs by configuration."""
    rng, racers = random.Random(0), []
    for arm, of_arm in means.items():
        for mean in of_arm:
            values = [mean + rng.gauss(0, 0.1) for _ in range(20)]
            racers.append(Racer(len(racers), arm, "c", 3, values, values))
    return racers


def test_the_recorded_table_is_complete():
    for name, racers in recorded().items():
        assert {len(racer.values) for racer in racers} == {20}, name
        assert {len(racer.tested) for racer in racers} == {20}, name
        assert [racer.trial for racer in racers] == list(range(len(racers)))
        arms = Counter(racer.arm for racer in racers)
        assert "sgd" in arms and len(arms) > 1
    assert len(recorded()["digits"]) == 14


def test_grid_and_race_find_a_clear_winner_and_the_race_is_cheaper():
    racers = table(sgd=(90, 85, 80), ours=(95, 85, 80))
    grid, race = full_grid(racers, 5), run_race(racers, 5)
    assert grid.winners == race.winners == {"sgd": 0, "ours": 3}
    assert {**grid.verdicts} == {**race.verdicts} == {"ours": "gain"}
    assert grid.epochs == 6 * 5 * 3
    assert 6 * 2 * 3 < race.epochs <= (4 * 2 + 2 * 5) * 3


def test_a_race_trains_only_what_it_asked_for():
    racers = table(sgd=(90, 90), ours=(90, 90))
    assert run_race(racers, 5).epochs <= full_grid(racers, 5).epochs


def test_without_a_difference_the_arms_are_equal_and_share_no_seed():
    racers = table(sgd=(90, 85), ours=(99, 98))
    order = list(range(20))
    null = _without_difference(racers, order)
    assert Counter(racer.arm for racer in null) == {"sgd": 2, "copy": 2}
    assert len({racer.trial for racer in null}) == 4
    for ours, other in zip(null[:2], null[2:], strict=True):
        assert [*ours.values, *other.values] == list(racers[ours.trial].values)


def test_the_command_prints_a_row_per_figure():
    done = CliRunner().invoke(main, ["bench", "--verdict", "--quick"])
    assert done.exit_code == 0, done.output
    assert "epochs to the verdicts, race / full grid" in done.output
    assert len([r for r in measure(quick=True) if r.at_most]) == 3 * len(recorded())
    refused = CliRunner().invoke(main, ["bench", "--verdict", "--study"])
    assert refused.exit_code == 2 and "give one of them" in refused.output
