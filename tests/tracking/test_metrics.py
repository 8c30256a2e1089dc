"""What MLflow gets of a study by another metric than accuracy."""

import json

import pytest
from helpers import records, specs

from ressmooth.report.compare import compare_studies
from ressmooth.spec import read_stored
from ressmooth.store import open_store
from ressmooth.tracking import artifacts, view

ARMS = {"sgd": {"method": "mse"}, "laplace": {"b": 0.5}}


@pytest.fixture
def store(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/results.db")
    yield store
    store.close()


@pytest.fixture
def study(store):
    spec = specs.study(ARMS, name="nll", metric="nll")
    return records.simulate_metric(store, spec, lambda c: 0.4 if c["method"] == "mse" else 0.3)


def test_figures_are_named_by_the_metric(store, study):
    trials, compared = store.trials(study.id), compare_studies(store, [study])
    points = artifacts.comparison_metrics(trials, compared)
    assert {name: value for name, value, *_ in points} == pytest.approx(
        {
            "best_nll/sgd": 0.4,
            "best_nll/laplace": 0.3,
            "mean_nll/sgd": 0.41,
            "mean_nll/laplace": 0.31,
        }
    )
    assert artifacts.selection_tags(compared)["best.sgd"] == "0.4000 (n = 1)"
    of_run = {name: value for name, value, *_ in artifacts.result_metrics(trials[0].runs[0])}
    assert of_run["best_nll"] == 0.4 and of_run["max_acc_percent"] == 50.0


def test_the_view_charts_the_metric(store, study):
    curves = [store.curve(run.id) for run in records.runs_of(store, study.id)]
    prepared = json.loads(view.prepare(read_stored(study.spec), curves))
    charts = [(chart["metricKey"], chart["range"]) for chart in prepared["compareRunCharts"]]
    assert charts[0] == ("val_nll", {}) and len(charts) == 4
    assert "metrics.`best_nll`" in prepared["selectedColumns"]
