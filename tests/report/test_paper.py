from collections import Counter

import pytest
from helpers.published import published_figures

from ressmooth.config import parse
from ressmooth.report.paper import method_of
from ressmooth.store import PublishedFigure


def test_all_124_published_figures_exist_once():
    rows = published_figures()
    assert len(rows) == len({(r.table_name, *list(vars(r).values())[1:-1]) for r in rows}) == 124
    assert Counter(row.table_name for row in rows) == {"1": 16, "2": 36, "3": 72}
    assert Counter(row.statistic for row in rows) == {"max": 62, "mean": 62}


@pytest.mark.parametrize(
    "row",
    [
        PublishedFigure("1", "fashion_mnist", "resnet20", 1.0, "sgd", 1e-2, "mean", 88.04),
        PublishedFigure(
            "1", "fashion_mnist", "resnet20", 1.0, "global logistic", 1e-3, "max", 93.77
        ),
        PublishedFigure("1", "fashion_mnist", "resnet20", 1.0, "logistic", 1e-3, "mean", 93.67),
        PublishedFigure("2", "fashion_mnist", "resnet20", 0.5, "sgd", 1e-5, "max", 91.92),
        PublishedFigure("2", "fashion_mnist", "resnet20", 0.25, "laplace", 1e-3, "mean", 91.65),
        PublishedFigure("2", "fashion_mnist", "resnet20", 0.125, "logistic", 1e-3, "max", 90.18),
        PublishedFigure("3", "cifar100", "resnet56", 1.0, "adagrad", 1e-4, "max", 66.55),
        PublishedFigure(
            "3", "svhn", "densenet_bc_100_12", 1.0, "label smoothing", 1e-4, "mean", 96.83
        ),
    ],
    ids=lambda row: f"table {row.table_name} {row.method}",
)
def test_figures_are_as_printed(row):
    assert row in published_figures()


def test_the_tables_have_the_printed_sums():
    """The sums of the printed columns, computed by hand, reveal a mistyped digit."""
    sums = Counter()
    for row in published_figures():
        sums[row.table_name, row.statistic] += round(row.value * 100)
    assert sums["1", "max"] == 8846 + 9336 + 9325 + 9321 + 9373 + 9377 + 9389 + 9391
    assert sums["1", "mean"] == 8804 + 9330 + 9319 + 9316 + 9365 + 9364 + 9379 + 9367


def test_a_store_holds_them_all(store):
    rows = published_figures()
    assert store.published_figures(row.problem for row in rows) == rows
    eighth = ("fashion_mnist", "resnet20", 0.125)
    assert store.published_figures([eighth]) == [row for row in rows if row.problem == eighth]
    assert store.published_figures([("digits", "small", 1.0)]) == store.published_figures([]) == []


@pytest.mark.parametrize(
    "settings, name",
    [
        ({"method": "mse"}, "sgd"),
        ({"method": "mse", "optimizer": "adam"}, "adam"),
        ({"method": "mse", "optimizer": "adagrad"}, "adagrad"),
        ({"method": "label_smoothing"}, "label smoothing"),
        ({"method": "smoothing", "distribution": "laplace"}, "laplace"),
        ({"method": "smoothing", "distribution": "logistic", "alpha": 0.0}, "global logistic"),
        ({"method": "smoothing", "distribution": "constant"}, None),
        ({"method": "smoothing", "optimizer": "adam"}, None),
        ({"method": "cross_entropy"}, None),
        ({"method": "adaptive_decay"}, None),
    ],
)
def test_runs_have_the_papers_names(settings, name):
    assert method_of(parse(settings).model_dump()) == name
