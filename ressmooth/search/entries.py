"""Enter the trials of a study into its race, and find the reference of each arm there."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ressmooth.config import METRIC
from ressmooth.search.racing import Leaders, Racer, References, Round, next_round
from ressmooth.spec import StudySpec
from ressmooth.spec.reference import reference_or_itself
from ressmooth.store import State, TrialRow


@dataclass(frozen=True)
class Entry:
    """An arm with its leader, for the rule that finds references."""

    name: str
    named: str | None
    config: Mapping[str, Any]
    params: Mapping[str, Any]
    score: float
    study: str = ""


def round_of(trials: Iterable[TrialRow], spec: StudySpec) -> Round:
    """Return the next round of a study's race. Failed and pruned trials take no part."""
    entered = {
        trial.id: trial
        for trial in trials
        if trial.confirms is None and trial.state == State.COMPLETE
    }
    racers = [_racer(trial, spec) for trial in entered.values()]
    return next_round(racers, spec.seeds, spec.at_most, _references(entered, spec))


def _racer(trial: TrialRow, spec: StudySpec) -> Racer:
    # With a held-out validation set, that one selects, and the verdict is about the test set.
    is_held_out = trial.runs[0].config["selection"] == "holdout"
    return Racer(
        trial=trial.id,
        arm=trial.arm,
        condition=str(sorted(trial.condition.items())),
        epochs=trial.runs[0].config["epochs"],
        values=_values(trial, spec.metric, spec.search.objective),
        tested=_values(trial, spec.metric, "test" if is_held_out else spec.search.objective),
    )


def _values(trial: TrialRow, metric: str, statistic: str) -> list[float]:
    """Return the results by seed, so that higher is better."""
    sign = 1 if METRIC[metric].is_higher_better else -1
    results = [run.result(metric, statistic) for run in trial.runs]
    return [sign * value for value in results if value is not None]


def _references(trials: Mapping[int, TrialRow], spec: StudySpec) -> References:
    def find(leaders: Leaders) -> dict[str, str]:
        entries = [_entry(trials[leaders[a].trial], leaders[a]) for a in spec.arms if a in leaders]
        found = {}
        for entry in entries:
            reference = reference_or_itself(entry, entries, lambda other: other.score)
            found[entry.name] = entry.name if reference is None else reference.name
        return found

    def _entry(trial: TrialRow, leader: Racer) -> Entry:
        config, score = trial.runs[0].config, fmean(leader.values)
        return Entry(trial.arm, spec.reference, config, trial.params, score)

    return find
