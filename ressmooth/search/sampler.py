"""What to try next, and what to give up: Optuna's samplers and pruners behind ask / report / tell.

Optuna keeps nothing. Each branch of a study has an Optuna study in memory, rebuilt from the Store
after a restart by replaying what was recorded. The sampler of every proposal is made anew from
(study seed, branch, number), so a resumed study proposes what the uninterrupted one would have.
Branches without ranges are one trial each: grids are rows of our own, since Optuna's GridSampler
repeats cells when it is asked in parallel.
"""

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial, TrialState

from ressmooth.config import RunConfig
from ressmooth.spec import Branch, Choices, Range, StudySpec
from ressmooth.store import State

optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

TRIAL_STATES = {
    State.COMPLETE: TrialState.COMPLETE,
    State.PRUNED: TrialState.PRUNED,
    State.FAILED: TrialState.FAIL,
}


@dataclass(frozen=True)
class Proposal:
    branch: Branch
    number: int  # within the branch
    params: dict[str, Any]
    sampler_state: dict[str, Any]  # what the sampler must find again after a restart


@dataclass(frozen=True)
class PastTrial:
    """A trial as the Store remembers it."""

    branch: str
    number: int
    params: Mapping[str, Any]
    sampler_state: Mapping[str, Any]
    state: State
    value: float | None
    reports: Mapping[int, float]  # epoch -> best accuracy so far


class Sampler:
    def __init__(self, spec: StudySpec, past: Iterable[PastTrial] = ()) -> None:
        self.spec = spec
        self.branches = {branch.key: branch for branch in spec.branches}
        self.asked = dict.fromkeys(self.branches, 0)
        self.searches = {
            key: _Search(spec, branch) for key, branch in self.branches.items() if branch.space
        }
        for trial in sorted(past, key=lambda trial: trial.number):
            if trial.branch in self.branches:
                self.asked[trial.branch] += 1
                if trial.branch in self.searches:
                    self.searches[trial.branch].replay(trial)

    def ask(self) -> Proposal | None:
        """The next trial: branches take turns; None when every branch has its number."""
        open_branches = [key for key in self.branches if self.asked[key] < self._limit(key)]
        if not open_branches:
            return None
        key = min(open_branches, key=self.asked.__getitem__)
        branch, number = self.branches[key], self.asked[key]
        self.asked[key] += 1
        if key not in self.searches:
            return Proposal(branch, number, dict(branch.cell), {})
        sampled, sampler_state = self.searches[key].ask(number)
        return Proposal(branch, number, {**branch.cell, **sampled}, sampler_state)

    def should_prune(self, branch: str, number: int, epoch: int, accuracy: float) -> bool:
        search = self.searches.get(branch)
        return search is not None and search.should_prune(number, epoch, accuracy)

    def tell(self, branch: str, number: int, state: State, value: float | None) -> None:
        if branch in self.searches:
            self.searches[branch].tell(number, state, value)

    def _limit(self, key: str) -> float:
        if key not in self.searches:
            return 1
        return self.spec.search.trials or float("inf")


class _Search:
    """One branch's Optuna study."""

    def __init__(self, spec: StudySpec, branch: Branch) -> None:
        self.spec, self.branch = spec, branch
        self.distributions = {name: distribution(name, s) for name, s in branch.space.items()}
        pruner = _pruner(spec.search.pruner, branch.example().epochs)
        self.study = optuna.create_study(direction="maximize", pruner=pruner)
        self.trials: dict[int, Trial] = {}
        self.verdicts: dict[tuple[int, int], bool] = {}  # (number, epoch) -> prune

    def ask(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self.study.sampler = _sampler(
            self.spec.search.sampler, _seed(self.spec.search.seed, self.branch.key, number)
        )
        trial = self.study.ask(fixed_distributions=self.distributions)
        self.trials[number] = trial
        return trial.params, self.study.get_trials(deepcopy=False)[trial.number].system_attrs

    def replay(self, past: PastTrial) -> None:
        """Put a recorded trial back, decision by decision."""
        self.study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params={name: past.params[name] for name in self.distributions},
                distributions=self.distributions,
                system_attrs=dict(past.sampler_state),
            )
        )
        frozen = self.study.get_trials(deepcopy=False)[-1]
        self.trials[past.number] = Trial(self.study, frozen._trial_id)
        for epoch, accuracy in sorted(past.reports.items()):
            self.should_prune(past.number, epoch, accuracy)
        if past.state in TRIAL_STATES:
            self.tell(past.number, past.state, past.value)

    def should_prune(self, number: int, epoch: int, accuracy: float) -> bool:
        if (number, epoch) not in self.verdicts:  # a resumed run asks again for its last epoch
            trial = self.trials[number]
            trial.report(accuracy, epoch)
            self.verdicts[number, epoch] = trial.should_prune()
        return self.verdicts[number, epoch]

    def tell(self, number: int, state: State, value: float | None) -> None:
        given = value if state == State.COMPLETE else None
        # a trial that was given more seeds later is told again: the first word stays
        self.study.tell(
            self.trials[number], given, state=TRIAL_STATES[state], skip_if_finished=True
        )


def distribution(name: str, search: Range | Choices) -> BaseDistribution:
    if isinstance(search, Choices):
        return CategoricalDistribution(search.choices)
    if RunConfig.model_fields[name].annotation is int:
        return IntDistribution(
            int(search.low), int(search.high), log=search.log, step=int(search.step or 1)
        )
    return FloatDistribution(search.low, search.high, log=search.log, step=search.step)


def _seed(study_seed: int, branch: str, number: int) -> int:
    digest = hashlib.sha256(f"{study_seed}/{branch}/{number}".encode()).digest()
    return int.from_bytes(digest[:4])


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(name: str, epochs: int) -> optuna.pruners.BasePruner:
    """Median waits for a quarter of the epochs; asha's rungs are at 1/9, 1/3 and all of them."""
    if name == "median":
        return optuna.pruners.MedianPruner(n_warmup_steps=epochs // 4)
    if name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=max(1, epochs // 9), reduction_factor=3
        )
    return optuna.pruners.NopPruner()
