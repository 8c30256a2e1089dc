"""An arm's trials as an Optuna study, for its importances and pictures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from ressmooth.search import distribution
from ressmooth.spec import StudySpec

if TYPE_CHECKING:
    from ressmooth.store import TrialRow

DECADES = 100.0  # a grid that spans so large a ratio is drawn on a logarithmic axis


def complete_trials(trials: Sequence["TrialRow"], arm: str) -> list["TrialRow"]:
    """What the search of an arm has to show; a confirmation is none of it."""
    return [t for t in trials if t.arm == arm and t.state == "complete" and t.confirms is None]


def varied(spec: StudySpec, arm: str, trials: Sequence["TrialRow"]) -> dict[str, BaseDistribution]:
    """What differs between these trials of an arm, in the order of the file."""
    return {
        name: axis
        for name, axis in distributions(spec, arm).items()
        if len({trial.params[name] for trial in trials}) > 1
    }


def optuna_study(
    trials: Sequence["TrialRow"], axes: Mapping[str, BaseDistribution]
) -> optuna.Study:
    """Complete trials of one arm as Optuna knows them, with the parameters that `axes` names."""
    study = optuna.create_study(direction="maximize")
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(
                params={name: trial.params[name] for name in axes},
                distributions=dict(axes),
                value=trial.value,
            )
        )
    return study


def distributions(spec: StudySpec, arm: str) -> dict[str, BaseDistribution]:
    """What an arm searches, grids included, in the order of the file."""
    grids = {**spec.grid, **spec.arms[arm].grid}
    space = spec.arms[arm].space
    return {
        **{name: _axis(values) for name, values in grids.items()},
        **{name: distribution(name, search) for name, search in space.items()},
    }


def _axis(values: list[Any]) -> BaseDistribution:
    """Where a grid's values lie: between the least and the largest if they are numbers."""
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return CategoricalDistribution(values)
    low, high = min(values), max(values)
    if all(isinstance(v, int) for v in values):
        return IntDistribution(low, high)
    return FloatDistribution(low, high, log=low > 0 and high / low >= DECADES)
