"""Count a study's runs and epochs: finished, and expected in total."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

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


Best = dict[tuple[str, str], TrialRow]  # by arm and condition


@dataclass
class Finished:
    """What a planner keeps of finished trials. Its size does not grow with their number."""

    trials: Counter[str] = field(default_factory=Counter)  # by branch
    runs: int = 0
    epochs: int = 0
    best: Best = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)  # trial ids

    @classmethod
    def of(cls, trials: Iterable[TrialRow], metric: str) -> Self:
        finished = cls()
        for trial in trials:
            finished.add(trial, metric)
        return finished

    def add(self, trial: TrialRow, metric: str) -> None:
        self.trials[trial.branch] += 1
        self.runs += len(trial.runs)
        self.epochs += sum(run.config["epochs"] for run in trial.runs)
        if trial.confirms is not None:
            self.confirmed.add(trial.confirms)
        _select(self.best, replace(trial, runs=[]), metric)


def count_runs(
    trials: Sequence[TrialRow],
    spec: StudySpec,
    finished: Finished | None = None,
    *,
    out_of_time: bool = False,
) -> Progress:
    """Return the progress of a study with these trials, and those counted as `finished`.

    Out of time, no more are added.
    """
    finished = finished or Finished()
    recorded = Counter(trial.branch for trial in trials)
    planned = {} if out_of_time else spec.planned
    to_come = sum(max(0, n - recorded[key] - finished.trials[key]) for key, n in planned.items())
    known = sum(_runs_of(trial, spec) for trial in trials) + finished.runs + to_come * spec.seeds
    if spec.confirm:
        known += _confirmations_to_come(trials, spec, finished, to_come) * spec.confirm
    runs = [run for trial in trials for run in trial.runs]
    done = [run.config["epochs"] for run in runs if run.state.is_terminal]
    number = len(runs) + finished.runs
    epochs = sum(run.config["epochs"] for run in runs) + finished.epochs
    return Progress(
        len(done) + finished.runs,
        known,
        sum(done) + finished.epochs,
        round(epochs * known / number) if number else 0,
    )


def _runs_of(trial: TrialRow, spec: StudySpec) -> int:
    """Return how many runs a trial will have. After a pruned or failed seed it gets no more."""
    is_confirmation = trial.confirms is not None
    if not is_confirmation and {State.PRUNED, State.FAILED} & {run.state for run in trial.runs}:
        return len(trial.runs)
    return len({*spec.trial_seeds(is_confirmation), *(run.seed for run in trial.runs)})


def _confirmations_to_come(
    trials: Sequence[TrialRow], spec: StudySpec, finished: Finished, to_come: int
) -> int:
    """Return how many configurations are still to be confirmed: the selected ones in the end."""
    confirming = {trial.confirms for trial in trials if trial.confirms is not None}
    confirmed = finished.confirmed | confirming
    searched = [trial for trial in trials if trial.confirms is None]
    if to_come or any(not trial.state.is_terminal for trial in searched):
        return max(0, len(spec.confirming) - len(confirmed))
    best = selected([*finished.best.values(), *searched], spec.metric)
    if spec.is_race:  # the best value may be of one that has lost the race
        return max(0, len(best) - len(confirmed))
    return len({trial.id for trial in best} - confirmed)


def selected(trials: Iterable[TrialRow], metric: str) -> list[TrialRow]:
    """Return the best complete trials by arm and condition, as the Store selects."""
    best: Best = {}
    for trial in trials:
        _select(best, trial, metric)
    return list(best.values())


def _select(best: Best, trial: TrialRow, metric: str) -> None:
    """Replace the best trial so far by a better one, or by an older one that is as good."""
    sign = 1 if METRIC[metric].is_higher_better else -1

    def rank(trial: TrialRow) -> tuple[float, int]:
        return sign * (trial.value or 0.0), -trial.id

    if trial.value is not None and trial.confirms is None:
        key = trial.arm, str(trial.condition)
        best[key] = max(best.get(key, trial), trial, key=rank)
