"""What a trial needs next, and its value: pure functions of its row."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ressmooth.spec import StudySpec
from ressmooth.store import State, TrialRow


@dataclass(frozen=True)
class AddRuns:
    """The trial needs more seeds: one run per config."""

    configs: list[dict[str, Any]]


@dataclass(frozen=True)
class Finish:
    """The trial has all its results."""

    state: State
    value: float | None


def next_step(trial: TrialRow, spec: StudySpec) -> AddRuns | Finish | None:
    """Return what a trial needs next, or None while it trains or if it is finished."""
    if any(not run.state.is_terminal for run in trial.runs):
        return None
    # a search trial with a failed seed has no value; a confirmation reports the seeds it has
    is_confirmation = trial.confirms is not None
    if is_confirmation or all(run.state == State.COMPLETE for run in trial.runs):
        missing = set(spec.trial_seeds(is_confirmation)) - {run.seed for run in trial.runs}
        if missing:
            return AddRuns([{**trial.runs[0].config, "seed": seed} for seed in sorted(missing)])
    if trial.state.is_terminal:
        return None
    return Finish(*aggregate(trial, spec.metric, spec.search.objective))


def aggregate(trial: TrialRow, metric: str, objective: str) -> tuple[State, float | None]:
    """Return a trial's state, and the mean over its seeds if all of them completed."""
    states = {run.state for run in trial.runs}
    for state in (State.FAILED, State.PRUNED):
        if state in states:
            return state, None
    values = [run.result(metric, objective) for run in trial.runs]
    return State.COMPLETE, fmean(value for value in values if value is not None)
