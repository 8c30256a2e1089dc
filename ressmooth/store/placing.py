"""What a race of seeds has decided about a trial: a row of the table `race`."""

from dataclasses import dataclass
from enum import StrEnum


class RaceResult(StrEnum):
    """How a configuration left a race, or ended it as its arm's leader."""

    DROPPED = "dropped"  # it would hardly have passed the leader
    BEHIND = "behind"  # of the leader, after the last seed
    GAIN = "gain"  # the leader is better than its reference
    LOSS = "loss"
    UNDECIDED = "undecided"
    REFERENCE = "reference"  # the leader of the arm that others are compared with


@dataclass(frozen=True)
class Placing:
    """What a race has decided about a trial."""

    trial_id: int
    result: RaceResult
    seeds: int  # after which it was decided
    rival_id: int | None = None  # the trial ahead of it, or the leader of the reference
    chance: float | None = None  # of passing the rival, or that more seeds decide a verdict
    e_value: float | None = None  # of a verdict
