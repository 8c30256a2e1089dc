"""Decide which run is next, and what follows from a run's end. Both engines share this.

Trials become rows before anything is trained, so a launcher that dies leaves nothing behind that
the next one does not find. What a trial needs next is a pure function of its row: `next_step`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ressmooth.config import parse
from ressmooth.search.entries import round_of
from ressmooth.search.forks import awaits_prefix, forks
from ressmooth.search.progress import Finished, Progress, count_runs
from ressmooth.search.sampler import Proposal, Sampler
from ressmooth.search.steps import AddRuns, Finish, aggregate, next_step
from ressmooth.spec import StudySpec
from ressmooth.store import RunRow, State, Store, TrialRow, pruned_outcome

LOOK_AHEAD = 1000  # runs that wait at most, while a grid is searched for one to start now


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
        for page in store.trial_pages(study_id):
            reports = self._reports(page)
            for trial in page:
                self.sampler.replay(self._before_the_race(trial), reports.get(trial.runs[0].id, {}))
            self._track(page)

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
        before = self.training.pop(run_id, None)
        failures = self.store.fail_worker(run_id, reason)
        retries = self.spec.resources.retries
        if failures > retries:
            self.store.give_up(run_id, f"{reason}; gave up after {retries} retries")
        run = self.store.run(run_id)
        if run.state.is_terminal:  # also if the worker died just after the run had finished
            self.run_ended(run)
            return reason
        # What died at once lets another run go first, which shows whether the place is broken.
        is_at_once = before is not None and before.last_epoch == run.last_epoch
        self.waiting.insert(1 if is_at_once else 0, run)
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
        curve = self.store.curve(run.id)
        self.store.finish_run(run.next_attempt, State.PRUNED, **pruned_outcome(curve))

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
        self._track([trial])

    def _add_round(self) -> None:
        """Add the next round of a race, once all trials have their results, and record the race."""
        if self.trials:
            return
        trials = {trial.id: trial for trial in self.store.trials(self.study_id)}
        found = round_of(list(trials.values()), self.spec)
        self.store.record_race(self.study_id, found.placings)
        configs: dict[int, list[dict[str, Any]]] = {}
        for trial_id, seed in found.runs:
            config = {**trials[trial_id].runs[0].config, "seed": seed}
            configs.setdefault(trial_id, []).append(config)
        if configs:
            self.store.add_runs(configs, is_racing=True)
        for trial_id in configs:
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
            self._track([trial])

    def _track(self, trials: Sequence[TrialRow]) -> None:
        """Queue what trials wait for. An earlier launch may have died before their next step."""
        steps = {trial.id: next_step(trial, self.spec) for trial in trials}
        added = {id: step.configs for id, step in steps.items() if isinstance(step, AddRuns)}
        grown: dict[int, TrialRow] = {}
        if added:
            self.store.add_runs(added)
            grown = {trial.id: trial for trial in self.store.trials_with_ids(added)}
        for trial in trials:
            self._enqueue(grown.get(trial.id, trial))
            if trial.id not in grown:
                self._close(trial, steps[trial.id])

    def _enqueue(self, trial: TrialRow) -> None:
        self.trials[trial.id] = trial
        self.waiting.extend(run for run in trial.runs if not run.state.is_terminal)

    def _advance(self, trial: TrialRow) -> None:
        """Carry out a trial's next step."""
        step = next_step(trial, self.spec)
        if isinstance(step, AddRuns):
            self.store.add_runs({trial.id: step.configs})
            self._enqueue(self.store.trial(trial.id))
        else:
            self._close(trial, step)

    def _close(self, trial: TrialRow, step: AddRuns | Finish | None) -> None:
        """Finish a trial if that is its next step. A finished one is counted, once, and forgotten.

        Keep an unfinished one.
        """
        if isinstance(step, Finish):
            self.store.finish_trial(trial.id, step.state, step.value)
            trial = replace(trial, state=step.state, value=step.value)
            if trial.confirms is None:
                number = trial.number_in_branch
                self.sampler.tell(trial.branch, number, step.state, step.value)
        if not trial.state.is_terminal:
            self.trials[trial.id] = trial
        elif self.trials.pop(trial.id, None):
            self.finished.add(trial, self.spec.metric)

    def _reports(self, trials: Iterable[TrialRow]) -> dict[int, dict[int, float]]:
        """Return the best values by epoch, which the pruner saw, by the id of each first run."""
        if self.spec.search.pruner == "none":
            return {}
        first = [trial.runs[0].id for trial in trials]
        return self.store.best_by_epoch(first, self.spec.metric)

    def _before_the_race(self, trial: TrialRow) -> TrialRow:
        """Return a trial as the sampler was told of it: with the seeds that all trials have."""
        first = [run for run in trial.runs if run.seed < self.spec.seeds]
        if not self.spec.is_race or trial.confirms is not None or len(first) == len(trial.runs):
            return trial
        told = replace(trial, runs=first)
        state, value = aggregate(told, self.spec.metric, self.spec.search.objective)
        return replace(told, state=state, value=value)
