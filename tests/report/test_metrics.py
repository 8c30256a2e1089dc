"""Studies that are selected and compared by another metric than accuracy."""

import json

import optuna
import pytest
from helpers import records, specs
from helpers.shown import EIGHTH
from matplotlib.figure import Figure

from ressmooth.report import tables
from ressmooth.report.compare import by_selecting_statistic, compare_studies
from ressmooth.report.export import write_optuna
from ressmooth.report.figures import search_panels
from ressmooth.report.notes import notes
from ressmooth.report.page import Report, write
from ressmooth.report.verdicts import verdict

ARMS = {"sgd": {"method": "mse"}, "laplace": {"b": {"grid": [0.3, 0.5]}}}
WIGGLE = [-0.01, 0.0, 0.01, 0.0, 0.0]


def values(sgd, laplace):
    """Return a metric by run: the wiggle of the seed, and 0.001 more for laplace's seed 2."""

    def value(config):
        seed = config["seed"]
        if config["method"] == "mse":
            return sgd + WIGGLE[seed]
        return laplace[config["b"]] + WIGGLE[seed] + 0.001 * (seed == 2)

    return value


def recorded(store, metric, sgd, laplace, **settings):
    name = f"by-{metric}-{sgd}".replace("_", "-")
    spec = specs.study(ARMS, seeds=5, name=name, metric=metric, **{**EIGHTH, **settings})
    return records.simulate_metric(store, spec, values(sgd, laplace))


@pytest.fixture(scope="module")
def nll(store):
    return recorded(store, "nll", 0.4, {0.3: 0.5, 0.5: 0.3})


def compared(store, study):
    return by_selecting_statistic(compare_studies(store, [study]))[0]


def test_a_lower_nll_is_a_gain(store, nll):
    table = compared(store, nll)
    sentence = verdict(table.lines[1], table)
    # means 0.4 and 0.3 + 0.001 / 5; sd of the difference 0.001 / sqrt(5), t = 499: E is almost
    # its largest value, 21^2 = 441; of four seeds it is 17^1.5 = 70, above 20
    assert sentence == (
        "By the best epoch's NLL on fashion_mnist (resnet20, fraction 0.125), laplace (b=0.5) "
        "reaches 0.3002 ± 0.0074 (n = 5) and sgd 0.4000 ± 0.0071 (n = 5): a gain of 0.0998, "
        "decided after 4 of 5 seeds (evidence 440 : 1, 95 % interval −0.1009 to −0.0987, "
        "p = 0.002), but these seeds also selected the configurations "
        "(best of 2 against best of 1)."
    )
    assert "Epochs and configurations were selected by NLL; lower is better." in notes(
        [table], against_paper=False
    )


@pytest.mark.parametrize(
    "metric, sgd, laplace, what, unit",
    [
        ("nll", 0.2, {0.3: 0.6, 0.5: 0.5}, "a loss of 0.3002", ""),
        ("ece", 4.0, {0.3: 3.0, 0.5: 5.0}, "a gain of 1.00 points", " %"),
        ("macro_f1", 80.0, {0.3: 81.0, 0.5: 70.0}, "a gain of 1.00 points", " %"),
        ("macro_f1", 82.0, {0.3: 81.0, 0.5: 70.0}, "a loss of 1.00 points", " %"),
    ],
)
def test_gains_and_losses_follow_the_direction_of_the_metric(
    store, metric, sgd, laplace, what, unit
):
    table = compared(store, recorded(store, metric, sgd, laplace))
    sentence = verdict(table.lines[1], table)
    assert f": {what}, decided after 4 of 5 seeds (" in sentence and f"{unit} (n = 5)" in sentence
    best = int(what.startswith("a gain"))
    assert tables.comparison_sheet(table).best == best


def test_titles_columns_and_exports_name_the_metric(store, nll):
    found = compare_studies(store, [nll])
    sheet = tables.comparison_sheet(found[0])
    assert sheet.title == f"{nll.name}: best NLL, fashion_mnist (resnet20, fraction 0.125)"
    assert sheet.head[4] == "best" and sheet.rows[0][4] == "0.4000 ± 0.0071"
    assert tables.comparison_sheet(found[1]).rows[0][4] == "0.4100 ± 0.0071"
    record = json.loads(tables.as_json(found))[1]
    assert (record["metric"], record["statistic"], record["paper"]) == ("nll", "max", None)
    assert record["values"] == pytest.approx([0.29, 0.3, 0.311, 0.3, 0.3])
    text = tables.details(store, nll)
    assert "0.3110" in text and "50.00" not in text
    assert "best: laplace 0.3002 NLL" in " ".join(tables.overview(store).split())


def test_held_out_studies_are_compared_by_the_test_figure(store):
    study = recorded(store, "nll", 0.41, {0.3: 0.5, 0.5: 0.3}, selection="holdout")
    table = compared(store, study)
    assert (table.statistic, table.lines[0].sample.mean) == ("test", pytest.approx(0.43))
    assert verdict(table.lines[1], table).startswith("By the test NLL on ")


def test_studies_with_different_metrics_are_not_compared(store, nll, study):
    found = by_selecting_statistic(compare_studies(store, [nll, study]))
    assert [table.measure.name for table in found] == ["nll", "accuracy"]


def test_the_report_shows_the_metric(store, nll, tmp_path):
    report = Report(store, nll)
    assert report.paper_tables == []
    write(report, tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "## NLL against the width b" in page and "a gain of 0.0998" in page
    assert "curve-val_nll" in page and "curve-val_acc" not in page
    assert "| 0.2900 | 0.3000 | 0.3100 |" in page and "accuracy" not in page.lower()
    width = next((tmp_path / "figures").glob("*-width-max-*.svg")).read_text()
    assert "best NLL" in width


def test_optuna_minimises_what_is_minimised(store, nll, tmp_path):
    write_optuna(store, nll, tmp_path / "optuna.db")
    study = optuna.load_study(
        study_name=f"{nll.name} laplace", storage=f"sqlite:///{tmp_path}/optuna.db"
    )
    assert study.direction == optuna.study.StudyDirection.MINIMIZE
    assert study.best_params == {"b": 0.5}
    assert study.best_trial.intermediate_values == {1: pytest.approx(0.29), 2: pytest.approx(0.29)}


def test_the_history_of_a_search_follows_the_lowest_nll(store):
    arms = {"laplace": {"b": {"low": 0.1, "high": 2.0}}}
    search = {"sampler": "random", "trials": 4}
    spec = specs.study(arms, name="history-nll", search=search, metric="nll", **EIGHTH)
    found = iter([0.5, 0.3, 0.4, 0.2])
    study = records.simulate_metric(store, spec, lambda config: next(found))
    panel = search_panels(spec, store.trials(study.id), {"laplace": 0})[0]
    axes = Figure().subplots()
    panel.draw(axes)
    incumbent = axes.lines[-1]
    assert list(incumbent.get_ydata()) == [0.5, 0.3, 0.3, 0.2]
    assert axes.get_ylabel() == "NLL"
