"""Choose the next trial and prune bad ones with Optuna's samplers and pruners.

Optuna stores nothing. Each branch has an Optuna study in memory, which is rebuilt after a restart
by replaying the trials of the Store. Each proposal has a new sampler, seeded with (study seed,
branch, number), so a resumed study proposes the same trials as an uninterrupted one. A branch
without a search space is one trial: Optuna's GridSampler repeats cells when it is asked in
parallel, so the cells of a grid are branches.
"""

import hashlib
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna import distributions
from optuna.trial import Trial, TrialState

from ressmooth.config import RunConfig
from ressmooth.spec import Branch, Choices, Range, StudySpec
from ressmooth.store import State, TrialRow

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

TRIAL_STATES = {
    State.COMPLETE: TrialState.COMPLETE,
    State.PRUNED: TrialState.PRUNED,
    State.FAILED: TrialState.FAIL,
}


@dataclass(frozen=True)
class Proposal:
    """A trial to be added to the study."""

    branch: Branch
    number: int  # within the branch
    params: dict[str, Any]
    sampler_state: dict[str, Any]  # Optuna's attributes, needed to replay the trial


PastTrial = tuple[TrialRow, Mapping[int, float]]  # with the pruner's reports: epoch -> accuracy


class Sampler:
    """Proposes a study's trials, branch by branch, and learns from their results."""

    def __init__(self, spec: StudySpec, past: Iterable[PastTrial] = ()) -> None:
        self.spec = spec
        self.branches = {branch.key: branch for branch in spec.branches}
        self.asked = dict.fromkeys(self.branches, 0)  # proposals by branch
        self.searches = {b.key: _BranchSearch(spec, b) for b in spec.branches if b.space}
        for trial, reports in sorted(past, key=lambda pair: pair[0].number_in_branch):
            if trial.branch in self.branches:
                self.asked[trial.branch] += 1
                if trial.branch in self.searches:
                    self.searches[trial.branch].replay(trial, reports)

    def ask(self) -> Proposal | None:
        """Return the next trial, or None if every branch has its trials. Branches take turns."""
        open_branches = [
            key
            for key, branch in self.branches.items()
            if self.asked[key] < (self.spec.planned_trials(branch) or math.inf)
        ]
        if not open_branches:
            return None
        key = min(open_branches, key=self.asked.__getitem__)
        branch, number = self.branches[key], self.asked[key]
        self.asked[key] += 1
        sampled, sampler_state = self.searches[key].ask(number) if branch.space else ({}, {})
        return Proposal(branch, number, {**branch.cell, **sampled}, sampler_state)

    def should_prune(self, branch: str, number: int, epoch: int, accuracy: float) -> bool:
        """Report a trial's best accuracy so far and return the pruner's decision."""
        search = self.searches.get(branch)
        return search is not None and search.should_prune(number, epoch, accuracy)

    def tell(self, branch: str, number: int, state: State, value: float | None) -> None:
        if branch in self.searches:
            self.searches[branch].tell(number, state, value)


class _BranchSearch:
    """The Optuna study of one branch."""

    def __init__(self, spec: StudySpec, branch: Branch) -> None:
        self.spec, self.branch = spec, branch
        self.distributions = {name: distribution(name, s) for name, s in branch.space.items()}
        pruner = _pruner(spec.search.pruner, branch.example().epochs)
        self.study = optuna.create_study(direction="maximize", pruner=pruner)
        self.trials: dict[int, Trial] = {}
        self.decisions: dict[tuple[int, int], bool] = {}  # (number, epoch) -> prune

    def ask(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters and the sampler's state of a new trial."""
        search = self.spec.search
        self.study.sampler = _sampler(search.sampler, f"{search.seed}/{self.branch.key}/{number}")
        trial = self.study.ask(fixed_distributions=self.distributions)
        self.trials[number] = trial
        return trial.params, self.study.get_trials(deepcopy=False)[trial.number].system_attrs

    def replay(self, past: TrialRow, reports: Mapping[int, float]) -> None:
        """Add a recorded trial and repeat its reports and its result."""
        number = past.number_in_branch
        self.study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params={name: past.params[name] for name in self.distributions},
                distributions=self.distributions,
                system_attrs=dict(past.sampler_state),
            )
        )
        frozen = self.study.get_trials(deepcopy=False)[-1]
        self.trials[number] = Trial(self.study, frozen._trial_id)
        for epoch, accuracy in sorted(reports.items()):
            self.should_prune(number, epoch, accuracy)
        if past.state in TRIAL_STATES:
            self.tell(number, past.state, past.value)

    def should_prune(self, number: int, epoch: int, accuracy: float) -> bool:
        if (number, epoch) not in self.decisions:  # a resumed run may report its last epoch twice
            trial = self.trials[number]
            trial.report(accuracy, epoch)
            self.decisions[number, epoch] = trial.should_prune()
        return self.decisions[number, epoch]

    def tell(self, number: int, state: State, value: float | None) -> None:
        # a trial that got more seeds later ends twice; Optuna keeps its first result
        self.study.tell(self.trials[number], value, TRIAL_STATES[state], skip_if_finished=True)


def distribution(name: str, search: Range | Choices) -> distributions.BaseDistribution:
    """Return Optuna's distribution for the search space of a setting."""
    if isinstance(search, Choices):
        return distributions.CategoricalDistribution(search.choices)
    if RunConfig.model_fields[name].annotation is int:
        low, high, step = int(search.low), int(search.high), int(search.step or 1)
        return distributions.IntDistribution(low, high, search.log, step)
    return distributions.FloatDistribution(search.low, search.high, search.log, search.step)


def _sampler(name: str, identity: str) -> optuna.samplers.BaseSampler:
    seed = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4])
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(name: str, epochs: int) -> optuna.pruners.BasePruner:
    if name == "median":  # starts after a quarter of the epochs
        return optuna.pruners.MedianPruner(n_warmup_steps=epochs // 4)
    if name == "asha":  # rungs at 1/9, 1/3 and all of the epochs
        return optuna.pruners.SuccessiveHalvingPruner(max(1, epochs // 9), reduction_factor=3)
    return optuna.pruners.NopPruner()
