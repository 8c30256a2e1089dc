"""Count a study's runs and epochs: finished, and expected in total."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ressmooth.config import METRIC
from ressmooth.spec import StudySpec
from ressmooth.store import State, TrialRow


@dataclass
class Progress:
    """Runs and epochs: finished, and expected in total."""

    runs_done: int
    runs_known: int
    epochs_done: int
    epochs_known: int


def count_runs(
    trials: Sequence[TrialRow], spec: StudySpec, *, out_of_time: bool = False
) -> Progress:
    """Return the progress of a study with these trials. Out of time, no more are added."""
    runs = [run for trial in trials for run in trial.runs]
    recorded = Counter(trial.branch for trial in trials)
    planned = {} if out_of_time else spec.planned
    to_come = sum(max(0, number - recorded[key]) for key, number in planned.items())
    known = sum(_runs_of(trial, spec) for trial in trials) + to_come * spec.seeds
    if spec.confirm:
        known += _confirmations_to_come(trials, spec, to_come) * spec.confirm
    epochs = [run.config["epochs"] for run in runs]
    done = [run.config["epochs"] for run in runs if run.state.is_terminal]
    missing = (known - len(runs)) * fmean(epochs) if epochs else 0
    return Progress(len(done), known, sum(done), round(sum(epochs) + missing))


def _runs_of(trial: TrialRow, spec: StudySpec) -> int:
    """Return how many runs a trial will have. After a pruned or failed seed it gets no more."""
    is_confirmation = trial.confirms is not None
    if not is_confirmation and {State.PRUNED, State.FAILED} & {run.state for run in trial.runs}:
        return len(trial.runs)
    return len({*spec.trial_seeds(is_confirmation), *(run.seed for run in trial.runs)})


def _confirmations_to_come(trials: Sequence[TrialRow], spec: StudySpec, to_come: int) -> int:
    """Return how many configurations are still to be confirmed: the selected ones in the end."""
    confirmed = {trial.confirms for trial in trials if trial.confirms is not None}
    searched = [trial for trial in trials if trial.confirms is None]
    if to_come or any(not trial.state.is_terminal for trial in searched):
        return max(0, len(spec.confirming) - len(confirmed))
    if spec.is_race:  # the best value may be of one that has lost the race
        arms = {(trial.arm, str(trial.condition)) for trial in searched if trial.value is not None}
        return len(arms - {(t.arm, str(t.condition)) for t in trials if t.confirms is not None})
    return len({trial.id for trial in selected(searched, spec.metric)} - confirmed)


def selected(trials: Iterable[TrialRow], metric: str) -> list[TrialRow]:
    """Return the best complete trials by arm and condition, as the Store selects."""
    is_higher_better = METRIC[metric].is_higher_better
    best: dict[tuple[str, str], TrialRow] = {}
    for trial in trials:
        if trial.value is not None and trial.confirms is None:
            key = trial.arm, str(trial.condition)
            before = best.setdefault(key, trial).value or 0.0
            if (trial.value > before) if is_higher_better else (trial.value < before):
                best[key] = trial
    return list(best.values())
