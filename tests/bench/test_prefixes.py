"""What shared prefixes add to a race."""

from ressmooth.bench.prefixes import recorded_prefixes, shared
from ressmooth.bench.verdict import recorded
from ressmooth.prefix import Prefix


def test_the_prefixes_are_those_of_the_recorded_configurations():
    found = recorded_prefixes()
    assert {name: len(each) for name, each in found.items()} == {
        name: len(racers) for name, racers in recorded().items()
    }
    *others, sgd = found["digits"][:4]
    narrow = found["digits"][4]
    assert sgd.epochs == 12 and narrow == Prefix(sgd.key, 8)  # b = 0.1 at the same weight decay
    assert sgd.key not in {each.key for each in others}


def test_a_prefix_is_shared_by_the_runs_of_a_seed():
    prefixes = [Prefix("a", 12), Prefix("a", 8), Prefix("a", 6), None, Prefix("b", 8)]
    assert shared({0: 1, 1: 1, 2: 1, 3: 1, 4: 1}, prefixes) == 8 + 6
    assert shared({0: 2, 1: 3, 2: 1, 3: 5, 4: 5}, prefixes) == (8 + 6) + 8 + 0
