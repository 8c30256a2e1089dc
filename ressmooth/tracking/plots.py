"""An arm's search in Optuna's own pictures, rebuilt from the Store's trials."""

import warnings
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from optuna.visualization import (
    plot_optimization_history,
    plot_parallel_coordinate,
    plot_param_importances,
    plot_slice,
)

from ressmooth.report.searched import complete_trials, optuna_study, varied
from ressmooth.spec import StudySpec

if TYPE_CHECKING:
    from ressmooth.store import TrialRow


def page(spec: StudySpec, arm: str, trials: Sequence["TrialRow"]) -> str | None:
    """One HTML file that needs nothing else; None if the arm's trials have nothing to show."""
    complete = complete_trials(trials, arm)
    axes = varied(spec, arm, complete)
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
