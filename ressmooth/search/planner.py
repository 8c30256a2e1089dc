"""Decide which run is next, and what follows from a run's end. Both engines share this.

Trials become rows before anything is trained, so a launcher that dies leaves nothing behind that
the next one does not find. What a trial needs next is one pure function of its row: `next_step`.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ressmooth.config import best_by_epoch, parse
from ressmooth.search.entries import round_of
from ressmooth.search.forks import awaits_prefix, forks
from ressmooth.search.progress import Finished, Progress, count_runs
from ressmooth.search.sampler import Proposal, Sampler
from ressmooth.spec import StudySpec
from ressmooth.store import Attempt, RunRow, State, Store, TrialRow, pruned_outcome

LOOK_AHEAD = 1000  # runs that wait at most, while a grid is searched for one to start now


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


class Planner:
    """The queue of a study's runs, backed by the Store."""

    def __init__(self, store: Store, study_id: int, spec: StudySpec) -> None:
        self.store, self.study_id, self.spec = store, study_id, spec
        self.trials: dict[int, TrialRow] = {}  # unfinished
        self.finished = Finished()
        warm_start = store.warm_start(spec)
        self.sampler = Sampler(spec, warm_start.trials if warm_start else {})
        self.waiting: deque[RunRow] = deque()
        self.training: dict[int, RunRow] = {}  # by id
        self.has_forks = bool(forks(spec))
        self.out_of_time = False
        self.is_racing = spec.is_race
        if not spec.is_race:  # it may have raced in an earlier launch
            store.record_race(study_id, [])
        for trial in store.each_trial(study_id):
            self.sampler.replay(self._before_the_race(trial), self._reports(trial))
            self._track(trial)

    def peek(self) -> RunRow | None:
        """Return the next run, or None if there is none until another ends, or at all."""
        while not self.waiting and not self.out_of_time:
            proposal = self.sampler.ask()
            if proposal is None:
                break
            self._add(proposal)
        if not self.waiting and self.is_racing:
            self._add_round()
        if not self.waiting and self.spec.confirm:
            self._add_confirmations()
        return self.waiting[0] if self.waiting else None

    def next(self) -> RunRow | None:
        """Return the next run and remove it from the queue.

        A run whose prefix is being trained waits while others can start. No place stands idle:
        if all wait, the one with the shortest prefix trains it as well.
        """
        if self.peek() is None:
            return None
        run = next(self._startable(), None) or min(self.waiting, key=lambda r: r.plain_epochs or 0)
        self.waiting.remove(run)
        self.training[run.id] = run
        return run

    def requeue(self, run_id: int) -> None:
        """Queue a run again that was set down after an epoch."""
        self.training.pop(run_id, None)
        self.waiting.appendleft(self.store.run(run_id))

    def worker_died(self, run_id: int, reason: str) -> str:
        """Queue the run again, at most `retries` times. Return what happened, for the view."""
        self.training.pop(run_id, None)
        failures = self.store.fail_worker(run_id, reason)
        retries = self.spec.resources.retries
        if failures > retries:
            self.store.give_up(run_id, f"{reason}; gave up after {retries} retries")
        run = self.store.run(run_id)
        if run.state.is_terminal:  # also if the worker died just after the run had finished
            self.run_ended(run)
            return reason
        self.waiting.appendleft(run)
        return f"{reason}, retry {failures}/{retries} from epoch {run.last_epoch}"

    def should_prune(self, run: RunRow, epoch: int, best: float | None) -> bool:
        """Ask the pruner, which judges a trial by its first seed and before its last epoch."""
        if self.spec.search.pruner == "none" or run.seed != 0 or best is None:
            return False
        trial = self.trials[run.trial_id]
        number = trial.number_in_branch
        # the last epoch is reported too, because other trials are compared with it
        is_behind = self.sampler.should_prune(trial.branch, number, epoch, best)
        return is_behind and epoch < run.config["epochs"]

    def prune(self, run: RunRow) -> None:
        """Record a pruned run for its Ray worker, which waits between two epochs."""
        # `run` was read before the worker claimed it, which added 1 to the attempt
        attempt = Attempt(run.id, run.attempt + 1, run.last_epoch)
        curve = self.store.curve(run.id)
        self.store.finish_run(attempt, State.PRUNED, **pruned_outcome(curve))

    def run_ended(self, run: RunRow) -> None:
        """Take the next step of a trial after one of its runs has reached a terminal state."""
        self.training.pop(run.id, None)
        self._advance(self.store.trial(run.trial_id))

    def progress(self) -> Progress:
        # a copy, because the live view calls this from its own thread
        trials = list(self.trials.values())
        return count_runs(trials, self.spec, self.finished, out_of_time=self.out_of_time)

    def best(self) -> list[TrialRow]:
        """Return the best trials so far by arm and condition, without their runs."""
        return list(self.finished.best.values())

    def _startable(self) -> Iterator[RunRow]:
        """Yield the runs that wait for no prefix. More of a grid is added until there is one."""
        training = list(self.training.values()) if self.has_forks else []
        reached = self.store.reached(self.study_id) if training else {}
        seen: set[int] = set()
        while True:
            for run in [run for run in self.waiting if run.id not in seen]:
                seen.add(run.id)
                if not awaits_prefix(run, training, reached):
                    yield run
            proposal = self.sampler.ask() if self._may_look_ahead(len(seen)) else None
            if proposal is None:
                return
            self._add(proposal)

    def _may_look_ahead(self, waiting: int) -> bool:
        """Tell whether trials may be added early: no result or time budget decides on them."""
        search = self.spec.search
        return search.sampler == "grid" and search.hours is None and waiting < LOOK_AHEAD

    def _add(self, proposal: Proposal) -> None:
        """Record a proposed trial. A pruner sees its first seed before the others are added."""
        may_be_pruned = self.spec.search.pruner != "none" and proposal.branch.space
        seeds = range(1 if may_be_pruned else self.spec.seeds)
        threads = self.spec.resources.threads
        settings = {"threads": threads, **proposal.branch.values, **proposal.params}
        plugins = self.spec.plugins
        configs = [parse({**settings, "seed": seed}, plugins).model_dump() for seed in seeds]
        trial = self.store.add_trial(
            self.study_id,
            arm=proposal.branch.arm,
            condition=self.spec.condition(configs[0]),
            branch=proposal.branch.key,
            number_in_branch=proposal.number,
            params=proposal.params,
            configs=configs,
            sampler_state=proposal.sampler_state,
        )
        self._track(trial)

    def _add_round(self) -> None:
        """Add the next round of a race, once all trials have their results, and record the race."""
        if self.trials:
            return
        trials = {trial.id: trial for trial in self.store.trials(self.study_id)}
        found = round_of(list(trials.values()), self.spec)
        self.store.record_race(self.study_id, found.placings)
        for trial_id, seed in found.runs:
            config = {**trials[trial_id].runs[0].config, "seed": seed}
            self.store.add_runs(trial_id, [config], is_racing=True)
        for trial_id in dict.fromkeys(trial_id for trial_id, _ in found.runs):
            del trials[trial_id]  # it is not finished any more
            self._enqueue(self.store.trial(trial_id))
        self.finished = Finished.of(trials.values(), self.spec.metric)
        self.is_racing = bool(found.runs)

    def _add_confirmations(self) -> None:
        """Add runs with fresh seeds for each selected configuration, once selection is final."""
        if self.trials:
            return
        for winner in self.store.winners(self.study_id):
            if winner.confirmation is not None:
                continue
            chosen = winner.trial
            first = chosen.runs[0].config
            trial = self.store.add_trial(
                self.study_id,
                arm=chosen.arm,
                condition=chosen.condition,
                branch=f"confirm {chosen.branch}",
                number_in_branch=chosen.number_in_branch,
                params=chosen.params,
                configs=[{**first, "seed": seed} for seed in self.spec.trial_seeds(True)],
                sampler_state={},
                confirms=chosen.id,
            )
            self._track(trial)

    def _track(self, trial: TrialRow) -> None:
        self._enqueue(trial)
        self._advance(trial)  # an earlier launch may have died before this step

    def _enqueue(self, trial: TrialRow) -> None:
        self.trials[trial.id] = trial
        self.waiting.extend(run for run in trial.runs if not run.state.is_terminal)

    def _advance(self, trial: TrialRow) -> None:
        """Carry out a trial's next step."""
        match next_step(trial, self.spec):
            case AddRuns(configs):
                self.store.add_runs(trial.id, configs)
                self._enqueue(self.store.trial(trial.id))
                return
            case Finish(state, value):
                self.store.finish_trial(trial.id, state, value)
                trial = replace(trial, state=state, value=value)
                if trial.confirms is None:
                    self.sampler.tell(trial.branch, trial.number_in_branch, state, value)
        self._keep(trial)

    def _keep(self, trial: TrialRow) -> None:
        """Keep an unfinished trial. A finished one is counted, once, and forgotten."""
        if not trial.state.is_terminal:
            self.trials[trial.id] = trial
        elif self.trials.pop(trial.id, None):
            self.finished.add(trial, self.spec.metric)

    def _reports(self, trial: TrialRow) -> dict[int, float]:
        """Return a trial's best value by epoch, which the pruner saw."""
        if self.spec.search.pruner == "none":
            return {}
        return best_by_epoch(self.store.curve(trial.runs[0].id), self.spec.metric)

    def _before_the_race(self, trial: TrialRow) -> TrialRow:
        """Return a trial as the sampler was told of it: with the seeds that all trials have."""
        first = [run for run in trial.runs if run.seed < self.spec.seeds]
        if not self.spec.is_race or trial.confirms is not None or len(first) == len(trial.runs):
            return trial
        told = replace(trial, runs=first)
        state, value = aggregate(told, self.spec.metric, self.spec.search.objective)
        return replace(told, state=state, value=value)
