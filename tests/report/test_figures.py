import numpy as np
import pytest
from helpers import records, specs
from helpers.shown import ARMS, EIGHTH, NUMBERS, accuracy

from ressmooth.report import figures, style
from ressmooth.report.compare import arm_results
from ressmooth.report.export import complete_trials
from ressmooth.report.page import Report


def drawn(panel):
    return style.picture(panel.draw).axes[0]


def test_accuracy_is_drawn_against_b_with_the_reference(store, study, compared):
    axes = drawn(figures.accuracy_by_width(compared[0], store.trials(study.id), NUMBERS))
    (bars,) = axes.containers
    points = bars.lines[0]
    assert sorted(set(points.get_xdata())) == [0.9, 1.3]
    assert max(points.get_ydata()) == pytest.approx(90.008)
    curve = drawn(figures.learning_curves(*curves_of(store, study), "here", NUMBERS)[0]).lines[1]
    assert (curve.get_label(), curve.get_color()) == ("laplace", points.get_color())
    levels = [line for line in axes.lines if len(set(line.get_ydata())) == 1]
    assert any(line.get_ydata()[0] == pytest.approx(89.0) for line in levels)


def curves_of(store, study):
    chosen = arm_results(study, store.winners(study.id))
    return chosen, {run: store.curve(run) for arm in chosen for run in arm.runs}


def test_learning_curves_are_means_over_seeds(store, study):
    chosen, curves = curves_of(store, study)
    panels = {
        p.name.split("-")[1]: p for p in figures.learning_curves(chosen, curves, "here", NUMBERS)
    }
    assert set(panels) == {"val_acc", "train_loss", "val_loss"}
    axes = drawn(panels["val_acc"])
    assert [line.get_label() for line in axes.lines] == ["sgd", "laplace", "logistic"]
    sgd = axes.lines[0]
    expected = np.mean([store.curve(run)[1].val_acc for run in chosen[0].runs])
    assert (list(sgd.get_xdata()), sgd.get_ydata()[-1]) == ([2], pytest.approx(expected))


def test_a_band_is_one_standard_deviation(store, study):
    (arm, *_) = arm_results(study, store.winners(study.id))
    curves = {run: store.curve(run) for run in arm.runs}
    (panel, *_) = figures.learning_curves([arm], curves, "here", NUMBERS)
    (band,) = drawn(panel).collections
    heights = band.get_paths()[0].vertices[:, 1]
    last = [curves[run][-1].val_acc for run in arm.runs]
    expected = (np.mean(last) - np.std(last, ddof=1), np.mean(last) + np.std(last, ddof=1))
    assert (heights.min(), heights.max()) == pytest.approx(expected)


def test_costs_are_medians_and_ratios_to_sgd(store, study):
    sgd, laplace, _ = Report(store, study).costs
    assert (sgd.runs, sgd.epochs, sgd.seconds) == (10, 20, 30.0)
    assert (sgd.seconds_per_epoch, sgd.ratio, laplace.ratio) == (1.5, 1.0, 1.0)


def test_costs_are_separate_for_each_condition(store):
    spec = specs.study({"sgd": {"method": "mse"}}, name="apart", grid={"fraction": [0.5, 0.25]})
    report = Report(store, records.simulate(store, spec, accuracy))
    assert [(cost.condition, cost.runs) for cost in report.costs] == [
        ("digits (small, fraction 0.5)", 1),
        ("digits (small, fraction 0.25)", 1),
    ]
    assert [panel.name for panel in figures.cost_panels(report.costs)] == [
        "cost-time",
        "cost-epoch-digits-small-fraction-0.5",
        "cost-epoch-digits-small-fraction-0.25",
    ]


def test_a_search_in_which_nothing_differs_has_no_importances(store):
    arms = {"laplace": ARMS["laplace"]}
    study = records.simulate(store, specs.study(arms, name="flat", **EIGHTH), lambda config: 10.0)
    report = Report(store, study)
    (panel,) = figures.search_panels(report.spec, report.trials)
    assert panel.name == "parallel-laplace"
    assert report.verdicts == ["Nothing was compared with SGD: no SGD arm is complete."]


def test_the_search_is_drawn_where_something_was_searched(store, study):
    spec = Report(store, study).spec
    names = [panel.name for panel in figures.search_panels(spec, store.trials(study.id))]
    assert names == ["parallel-sgd", "importances-laplace", "parallel-laplace"]
    assert len(complete_trials(store.trials(study.id), "laplace")) == 4


def test_both_pictures_of_the_method_show_what_the_loss_computes():
    by_alpha, by_scale = style.picture(*figures.sigmoids()).axes
    flat = by_scale.lines[0].get_ydata()  # s = 0.25
    assert (flat[0] < flat[-1] < 0.25) and flat[100] == pytest.approx(0.125)
    steep = by_alpha.lines[-1]
    assert steep.get_ydata()[-1] == pytest.approx(1 / (1 + np.exp(-16)))
    laplace, logistic = style.picture(*figures.annealings((0.5,), (0.5,))).axes
    x, s = (np.array(values) for values in laplace.lines[0].get_data())
    assert s == pytest.approx(np.exp(-np.abs(x - 0.75) * 10 / 0.5))
    s = np.array(logistic.lines[0].get_ydata())
    assert s == pytest.approx(1 / np.cosh((x - 0.75) * 10 / (2 * 0.5)) ** 2)


def test_inline_pictures_follow_the_pages_colour():
    svg = style.inline_svg(style.picture(figures.sigmoids()[0]), "name")
    assert svg.startswith("<svg") and style.INK not in svg and "currentColor" in svg
    assert svg == style.inline_svg(style.picture(figures.sigmoids()[0]), "name")
