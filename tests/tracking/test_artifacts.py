"""Optuna's plots of an arm, drawn from recorded trials."""

from datetime import UTC, datetime

import pytest
from helpers.specs import study as make_spec
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from ressmooth.report.export import distributions, optuna_study
from ressmooth.store import TrialRow
from ressmooth.tracking.artifacts import search_page

NOW = datetime.now(UTC)
SEARCH = {"sampler": "tpe", "trials": 9}


def trial(number, params, value, state="complete", arm="a"):
    return TrialRow(number, 1, arm, {}, None, "a", number, params, state, value, {}, NOW, NOW, [])


def spec_of(search=None, grid=None, **arm):
    return make_spec({"a": {"method": "smoothing", **arm}}, search=search, grid=grid)


@pytest.mark.parametrize(
    "values, axis",
    [
        ([0.1, 0.5], FloatDistribution(0.1, 0.5)),
        ([1e-5, 1e-2], FloatDistribution(1e-5, 1e-2, log=True)),
        ([0.0, 0.1], FloatDistribution(0.0, 0.1)),
    ],
)
def test_a_grid_of_numbers_is_an_axis(values, axis):
    assert distributions(spec_of(weight_decay={"grid": values}), "a") == {"weight_decay": axis}


def test_other_grids_and_ranges_are_axes():
    spec = spec_of(
        SEARCH,
        {"momentum": [0.5, 0.25]},
        layers={"grid": [1, 3]},
        distribution={"choices": ["laplace", "logistic"]},
        output={"grid": ["softmax", "identity"]},
        through_diffusivity={"grid": [True, False]},
        b={"low": 0.1, "high": 2.0, "log": True},
    )
    assert distributions(spec, "a") == {
        "momentum": FloatDistribution(0.25, 0.5),
        "layers": IntDistribution(1, 3),
        "output": CategoricalDistribution(["softmax", "identity"]),
        "through_diffusivity": CategoricalDistribution([True, False]),
        "distribution": CategoricalDistribution(["laplace", "logistic"]),
        "b": FloatDistribution(0.1, 2.0, log=True),
    }


def test_recorded_trials_become_an_optuna_study():
    trials = [trial(1, {"b": 0.1, "mu": 0.5}, 90.0), trial(2, {"b": 0.3, "mu": 0.5}, 91.0)]
    study = optuna_study(spec_of(), trials, {"b": FloatDistribution(0.1, 0.3)})
    assert study.best_params == {"b": 0.3} and study.best_value == 91.0


def test_a_page_is_self_contained():
    spec = spec_of(b={"grid": [0.1, 0.3]}, mu={"grid": [0.75]})
    trials = [trial(n, {"b": b, "mu": 0.75}, 90.0) for n, b in enumerate([0.1, 0.3])]
    html = search_page(spec, "a", trials)
    assert html.count("Plotly.newPlot(") >= 4
    assert "<script src=" not in html and 'charset="utf-8"' in html
    for title in ("History", "Importances", "Parallel Coordinate", "Slice"):
        assert title in html
    assert len(html) < 6e6  # plotly is included once, not once per plot


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [trial(1, {"b": 0.1}, 90.0)],
        [trial(1, {"b": 0.1}, 90.0), trial(2, {"b": 0.1}, 90.0)],
        [trial(1, {"b": 0.1}, 90.0), trial(2, {"b": 0.3}, None, "pruned")],
        [trial(1, {"b": 0.1}, 90.0), trial(2, {"b": 0.3}, 90.0, arm="other")],
    ],
    ids=["none", "one", "nothing varies", "one complete", "another arm's"],
)
def test_no_page_without_a_setting_that_varies(trials):
    assert search_page(spec_of(b={"grid": [0.1, 0.3]}), "a", trials) is None
