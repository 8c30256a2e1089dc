"""An arm's search in Optuna's own pictures, rebuilt from the Store's trials."""

import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.visualization import (
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
    plot_slice,
)

from ressmooth.search import distribution
from ressmooth.spec import StudySpec

if TYPE_CHECKING:
    from ressmooth.store import TrialRow

DECADES = 100.0  # a grid that spans so large a ratio is drawn on a logarithmic axis


def page(spec: StudySpec, arm: str, trials: Sequence["TrialRow"]) -> str | None:
    """One HTML file that needs nothing else; None if the arm's trials have nothing to show."""
    complete = [t for t in trials if t.arm == arm and t.state == "complete"]
    axes = {
        name: axis
        for name, axis in distributions(spec, arm).items()
        if len({trial.params[name] for trial in complete}) > 1
    }
    if not axes:
        return None
    study = optuna_study(complete, axes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few trials: importances are rough, as anyone can see
        figures = [
            plot(study, target_name="accuracy (%)")
            for plot in (
                plot_optimization_history,
                plot_param_importances,
                plot_parallel_coordinate,
                plot_slice,
            )
        ]
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=number == 0)
        for number, figure in enumerate(figures)
    ]
    title = escape(f"{spec.name}: {arm}")
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>"
    )


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
