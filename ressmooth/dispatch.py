"""Which run is next, and what follows from a run's end: the part both engines share.

Trials come from the proposer and become rows before anything is trained, so that a launcher that
dies leaves nothing behind that the next one does not find.
"""

from collections import deque
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ressmooth.config import parse
from ressmooth.search import Past, Proposal, Proposer
from ressmooth.spec import FRESH_SEED, StudySpec
from ressmooth.store import Attempt, RunRow, Store, TrialRow
from ressmooth.store.rows import TERMINAL


@dataclass
class Progress:
    """What is done of what is known to come, in epochs and runs."""

    runs_done: int
    runs_known: int
    epochs_done: int
    epochs_known: int


class Dispatcher:
    def __init__(self, store: Store, study_id: int, spec: StudySpec) -> None:
        self.store, self.study_id, self.spec = store, study_id, spec
        self.trials = {trial.id: trial for trial in store.trials(study_id)}
        self.proposer = Proposer(spec, [self._past(trial) for trial in self.trials.values()])
        self.waiting: deque[RunRow] = deque()
        self.out_of_time = False
        for trial in list(self.trials.values()):
            self._take_up(trial)

    def peek(self) -> RunRow | None:
        """The run that is next; None if there is none until another ends, or for good."""
        while not self.waiting and not self.out_of_time:
            proposal = self.proposer.ask()
            if proposal is None:
                break
            self._add(proposal)
        if not self.waiting and self.spec.confirm:
            self._confirm()
        return self.waiting[0] if self.waiting else None

    def next(self) -> RunRow | None:
        """The same, taken off the queue."""
        run = self.peek()
        if run is not None:
            self.waiting.popleft()
        return run

    def lost(self, run_id: int, reason: str) -> str:
        """A run's worker died: it is tried again, at most `retries` times; the whole story."""
        failures = self.store.fail_worker(run_id, reason)
        retries = self.spec.resources.retries
        if failures > retries:
            self.store.give_up(run_id, f"{reason}; gave up after {retries} retries")
        run = self.store.run(run_id)
        if run.state in TERMINAL:  # or the worker died just after it had finished
            self.ended(run)
            return reason
        self.waiting.appendleft(run)
        return f"{reason}, retry {failures}/{retries} from epoch {run.last_epoch}"

    def should_prune(self, run: RunRow, epoch: int, accuracy: float) -> bool:
        """Pruning looks at a trial's first seed; the others are trained once that has passed."""
        if self.spec.search.pruner == "none" or run.seed != 0:
            return False
        trial = self.trials[run.trial_id]
        return self.proposer.should_prune(trial.branch, trial.number_in_branch, epoch, accuracy)

    def prune(self, run: RunRow, best: float) -> None:
        """End a run whose worker is not told so: one that Ray stops hears nothing more."""
        attempt = Attempt(run.id, run.attempt + 1, run.last_epoch)  # as our worker claimed it
        seconds = sum(epoch.seconds or 0.0 for epoch in self.store.curve(run.id))
        self.store.finish_run(attempt, "pruned", max_acc=best, seconds=seconds)

    def ended(self, run: RunRow) -> None:
        """A run reached a terminal state: add its trial's other seeds, or judge the trial."""
        trial = self._reload(run.trial_id)
        if any(run.state not in TERMINAL for run in trial.runs):
            return
        passed = all(run.state == "complete" for run in trial.runs)
        if (passed or trial.confirms is not None) and self._add_seeds(trial):
            return
        state, value = judge(trial, self.spec.search.objective)
        self.store.finish_trial(trial.id, state, value)
        self.trials[trial.id] = replace(trial, state=state, value=value)
        if trial.confirms is None:
            self.proposer.tell(trial.branch, trial.number_in_branch, state, value)

    def progress(self) -> Progress:
        # a copy: the live view asks from its own thread
        runs = [run for trial in list(self.trials.values()) for run in trial.runs]
        known = max(len(runs), self._planned_runs())
        per_run = fmean(run.config["epochs"] for run in runs) if runs else 0
        done = [run for run in runs if run.state in TERMINAL]
        epochs = sum(run.config["epochs"] for run in runs)
        return Progress(
            len(done),
            known,
            sum(run.config["epochs"] for run in done),
            round(epochs + per_run * (known - len(runs))),
        )

    def _planned_runs(self) -> int:
        searched = sum(map(self.spec.planned_trials, self.spec.branches)) * self.spec.seeds
        return searched + len(self.spec.confirming) * self.spec.confirm

    def _add(self, proposal: Proposal) -> None:
        prunes = self.spec.search.pruner != "none" and proposal.branch.space
        seeds = range(1 if prunes else self.spec.seeds)
        configs = [run_config(self.spec, proposal, seed) for seed in seeds]
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
        self._take_up(trial)

    def _confirm(self) -> None:
        """Train what the search has chosen with fresh seeds, once nothing can change the choice."""
        if any(trial.state not in TERMINAL for trial in self.trials.values()):
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
                configs=[{**first, "seed": seed} for seed in self._seeds(confirming=True)],
                sampler_state={},
                confirms=chosen.id,
            )
            self._take_up(trial)

    def _seeds(self, *, confirming: bool) -> range:
        if confirming:
            return range(FRESH_SEED, FRESH_SEED + self.spec.confirm)
        return range(self.spec.seeds)

    def _add_seeds(self, trial: TrialRow) -> bool:
        """Let a trial have all its seeds; were any missing?"""
        known = {run.seed for run in trial.runs}
        seeds = self._seeds(confirming=trial.confirms is not None)
        missing = [{**trial.runs[0].config, "seed": seed} for seed in seeds if seed not in known]
        if missing:
            self.store.add_runs(trial.id, missing)
            self._take_up(self._reload(trial.id))
        return bool(missing)

    def _take_up(self, trial: TrialRow) -> None:
        """Queue what a trial still needs; after a restart that may be seeds or its judgement."""
        self.trials[trial.id] = trial
        unfinished = [run for run in trial.runs if run.state not in TERMINAL]
        if unfinished:
            queued = {run.id for run in self.waiting}
            self.waiting.extend(run for run in unfinished if run.id not in queued)
        elif trial.state not in TERMINAL:
            self.ended(trial.runs[-1])
        elif trial.state == "complete" or trial.confirms is not None:
            self._add_seeds(trial)

    def _reload(self, trial_id: int) -> TrialRow:
        trial = self.store.trial(trial_id)
        self.trials[trial_id] = trial
        return trial

    def _past(self, trial: TrialRow) -> Past:
        reports: dict[int, float] = {}
        if self.spec.search.pruner != "none":
            best = 0.0
            for epoch in self.store.curve(trial.runs[0].id):
                best = max(best, epoch.val_acc or 0.0)
                reports[epoch.epoch] = best
        return Past(
            trial.branch,
            trial.number_in_branch,
            trial.params,
            trial.sampler_state,
            trial.state,
            trial.value,
            reports,
        )


def run_config(spec: StudySpec, proposal: Proposal, seed: int) -> dict[str, Any]:
    """The whole configuration of a run, as it is stored."""
    values = {
        "threads": spec.resources.threads,
        **proposal.branch.values,
        **proposal.params,
        "seed": seed,
    }
    return parse(values).model_dump()


def judge(trial: TrialRow, objective: str) -> tuple[str, float | None]:
    """A trial's state and value: the mean over its seeds, if all of them completed."""
    states = {run.state for run in trial.runs}
    if "failed" in states:
        return "failed", None
    if "pruned" in states:
        return "pruned", None
    values = [run.max_acc if objective == "max" else run.mean_acc for run in trial.runs]
    return "complete", fmean(value for value in values if value is not None)
