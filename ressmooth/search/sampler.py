"""Choose the next trial and prune bad ones with Optuna's samplers and pruners.

Optuna stores nothing. Each branch has an Optuna study in memory, which is rebuilt after a restart
by replaying the trials of the Store. Each proposal has a new sampler, seeded with (study seed,
branch, number), so a resumed study proposes the same trials as an uninterrupted one. A branch
without a search space is one trial: Optuna's GridSampler repeats cells when it is asked in
parallel, so the cells of a grid are branches. Trials of another study that a search begins with
are in Optuna's study, but have no number in the branch.
"""

import hashlib
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import optuna
from optuna import distributions
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ressmooth.config import METRIC
from ressmooth.search.notes import COMPLETED_TRIALS, MIN_SOURCE_TRIALS, RANDOM_TRIALS
from ressmooth.spec import Branch, Choices, Range, Search, StudySpec
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


Space = dict[str, distributions.BaseDistribution]
WarmTrial = tuple[Mapping[str, Any], float]  # parameters and value in another study


class Sampler:
    """Proposes a study's trials, branch by branch, and learns from their results."""

    def __init__(
        self,
        spec: StudySpec,
        warm: Mapping[str, Sequence[WarmTrial]] = MappingProxyType({}),  # by branch
    ) -> None:
        self.spec = spec
        self.branches = {branch.key: branch for branch in spec.branches}
        self.asked = dict.fromkeys(self.branches, 0)  # proposals by branch
        is_limited = spec.search.trials is not None
        self.limits = {
            key: spec.planned[key] if is_limited or not branch.space else math.inf
            for key, branch in self.branches.items()
        }
        self.searches = {
            b.key: _BranchSearch(spec, b, warm.get(b.key, ())) for b in spec.branches if b.space
        }

    def replay(self, trial: TrialRow, reports: Mapping[int, float]) -> None:
        """Repeat a recorded trial, with the pruner's reports by epoch. The oldest comes first."""
        if trial.branch in self.branches:
            self.asked[trial.branch] += 1
        if trial.branch in self.searches:
            self.searches[trial.branch].replay(trial, reports)

    def ask(self) -> Proposal | None:
        """Return the next trial, or None if every branch has its trials. Branches take turns."""
        open_branches = [key for key, limit in self.limits.items() if self.asked[key] < limit]
        if not open_branches:
            return None
        key = min(open_branches, key=self.asked.__getitem__)
        branch, number = self.branches[key], self.asked[key]
        self.asked[key] += 1
        sampled, sampler_state = self.searches[key].ask(number) if branch.space else ({}, {})
        return Proposal(branch, number, {**branch.cell, **sampled}, sampler_state)

    def should_prune(self, branch: str, number: int, epoch: int, best: float) -> bool:
        """Report a trial's best value so far and return the pruner's decision."""
        search = self.searches.get(branch)
        return search is not None and search.should_prune(number, epoch, best)

    def tell(self, branch: str, number: int, state: State, value: float | None) -> None:
        if branch in self.searches:
            self.searches[branch].tell(number, state, value)


class _BranchSearch:
    """The Optuna study of one branch."""

    def __init__(self, spec: StudySpec, branch: Branch, warm: Sequence[WarmTrial]) -> None:
        self.spec, self.branch = spec, branch
        self.enqueued = spec.arms[branch.arm].enqueue
        self.distributions = {name: distribution(name, s) for name, s in branch.space.items()}
        epochs = branch.example().epochs
        self.rungs = spec.search.asha(epochs) if spec.search.pruner == "asha" else None
        pruner = _pruner(spec.search, epochs, len(warm))
        self.study = optuna.create_study(direction=direction(spec), pruner=pruner)
        self.study.add_trials(_completed(warm, self.distributions))
        self.source = _completed(warm, _numbers(self.distributions))
        self.trials: dict[int, Trial] = {}  # by number, until they have a result
        self.decisions: dict[int, dict[int, bool]] = defaultdict(dict)  # number -> epoch -> prune

    def ask(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters and the sampler's state of a new trial."""
        identity = f"{self.spec.search.seed}/{self.branch.key}/{number}"
        self.study.sampler = _sampler(self.spec.search.sampler, identity, self.source)
        if number < len(self.enqueued):
            self.study.enqueue_trial(self.enqueued[number])
        trial = self.study.ask(fixed_distributions=self.distributions)
        self.trials[number] = trial
        return trial.params, self.study.get_trials(deepcopy=False)[trial.number].system_attrs

    def replay(self, past: TrialRow, reports: Mapping[int, float]) -> None:
        """Add a recorded trial and repeat its reports and its result."""
        number = past.number_in_branch
        state = TRIAL_STATES.get(past.state, TrialState.RUNNING)
        # the pruner asks about the first seed only
        is_judged = past.state in TRIAL_STATES or past.runs[0].state.is_terminal
        rungs = self._rungs(reports) if is_judged else None
        if rungs is None:
            self._add(past, TrialState.RUNNING)
        else:
            self._add(past, state, reports, rungs)
            if state != TrialState.RUNNING:
                return
        frozen = self.study.get_trials(deepcopy=False)[-1]
        self.trials[number] = Trial(self.study, frozen._trial_id)
        if rungs is None:
            for epoch, best in sorted(reports.items()):
                self.should_prune(number, epoch, best)
        if past.state in TRIAL_STATES:
            self.tell(number, past.state, past.value)

    def _add(
        self,
        past: TrialRow,
        state: TrialState,
        reports: Mapping[int, float] = MappingProxyType({}),
        rungs: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        value = past.value if state == TrialState.COMPLETE else None
        if state == TrialState.PRUNED and reports:
            value = reports[max(reports)]  # as Optuna's `tell` does
        self.study.add_trial(
            create_trial(
                state=state,
                value=value,
                params={name: past.params[name] for name in self.distributions},
                distributions=self.distributions,
                intermediate_values=dict(reports),
                system_attrs={**past.sampler_state, **rungs},
            )
        )

    def _rungs(self, reports: Mapping[int, float]) -> dict[str, float] | None:
        """Return what Optuna's ASHA has noted of an ended trial: its value at each rung.

        Asking the pruner again would take time that grows with the square of the trials. Return
        None where only it can tell: if the last report passed several rungs at once.
        """
        found: dict[str, float] = {}
        if self.rungs is None:
            return found
        first, factor = self.rungs
        for epoch in sorted(reports):
            passed = 0
            while epoch >= first * factor ** len(found):
                found[f"completed_rung_{len(found)}"] = reports[epoch]
                passed += 1
            if passed > 1 and epoch == max(reports):
                return None
        return found

    def should_prune(self, number: int, epoch: int, best: float) -> bool:
        decisions = self.decisions[number]
        if epoch not in decisions:  # a resumed run may report its last epoch twice
            trial = self.trials[number]
            trial.report(best, epoch)
            decisions[epoch] = trial.should_prune()
        return decisions[epoch]

    def tell(self, number: int, state: State, value: float | None) -> None:
        trial = self.trials.pop(number, None)
        if (
            trial is not None
        ):  # a trial that got more seeds later ends twice; the first result counts
            self.study.tell(trial, value, TRIAL_STATES[state])
        self.decisions.pop(number, None)


def direction(spec: StudySpec) -> Literal["maximize", "minimize"]:
    return "maximize" if METRIC[spec.metric].is_higher_better else "minimize"


def distribution(name: str, search: Range | Choices) -> distributions.BaseDistribution:
    """Return Optuna's distribution for the search space of a setting."""
    if isinstance(search, Choices):
        return distributions.CategoricalDistribution(search.choices)
    if isinstance(search.low, int) and isinstance(search.high, int):
        return distributions.IntDistribution(
            search.low, search.high, search.log, int(search.step or 1)
        )
    return distributions.FloatDistribution(search.low, search.high, search.log, search.step)


def _numbers(space: Space) -> Space:
    """Return the part of a space that CMA-ES searches."""
    categorical = distributions.CategoricalDistribution
    return {name: found for name, found in space.items() if not isinstance(found, categorical)}


def _completed(warm: Iterable[WarmTrial], space: Space) -> list[FrozenTrial]:
    return [
        create_trial(params={key: params[key] for key in space}, distributions=space, value=value)
        for params, value in warm
    ]


def _sampler(name: str, identity: str, source: list[FrozenTrial]) -> optuna.samplers.BaseSampler:
    seed = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4])
    if name == "tpe":
        return optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(
            seed=seed,
            warn_independent_sampling=False,
            source_trials=source if len(source) >= MIN_SOURCE_TRIALS else None,
        )
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(search: Search, epochs: int, warm: int) -> optuna.pruners.BasePruner:
    """Return the pruner of a branch. It counts the `warm` trials, but cannot use them."""
    if search.pruner == "median":
        return optuna.pruners.MedianPruner(COMPLETED_TRIALS + warm, search.median_warmup(epochs))
    if search.pruner == "asha":
        first, factor = search.asha(epochs)
        return optuna.pruners.SuccessiveHalvingPruner(first, reduction_factor=factor)
    return optuna.pruners.NopPruner()
