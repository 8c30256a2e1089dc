import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers import records, specs
from helpers.shown import ARMS, EIGHTH, NUMBERS, accuracy

from ressmooth.report import figures, style
from ressmooth.report.compare import arm_results, compare_studies
from ressmooth.report.export import complete_trials
from ressmooth.report.page import Report
from ressmooth.store import State


def drawn(panel):
    return style.picture(panel.draw).axes[0]


def test_accuracy_is_drawn_against_b_with_the_reference(store, study, compared):
    axes = drawn(figures.metric_by_width(compared[0], store.trials(study.id), NUMBERS))
    (bars,) = axes.containers
    points = bars.lines[0]
    assert sorted(set(points.get_xdata())) == [0.9, 1.3]
    assert max(points.get_ydata()) == pytest.approx(90.008)
    curve = drawn(figures.learning_curves(*curves_of(store, study), "here", NUMBERS)[0]).lines[1]
    assert (curve.get_label(), curve.get_color()) == ("laplace", points.get_color())
    levels = [line for line in axes.lines if len(set(line.get_ydata())) == 1]
    assert any(line.get_ydata()[0] == pytest.approx(89.0) for line in levels)


def test_points_are_connected_only_if_nothing_but_b_varies(store, study, compared):
    arms = {"sgd": {"method": "mse"}, "laplace": {"b": {"grid": [0.3, 0.5, 0.9]}}}
    alone = records.simulate(store, specs.study(arms, name="b-alone"), lambda c: 90.0 + c["b"])
    for row, tables, is_connected in (
        (alone, compare_studies(store, [alone]), True),
        (study, compared, False),  # alpha varies too
    ):
        axes = drawn(figures.metric_by_width(tables[0], store.trials(row.id), NUMBERS))
        points = axes.containers[0].lines[0]
        assert (points.get_linestyle() != "None") == is_connected


SEARCHED = {"b": {"low": 0.1, "high": 2.0}, "alpha": {"low": 0.5, "high": 2.0}}


def searched(store, name, trials):
    """Record a search whose accuracy falls and rises again from trial to trial."""
    numbers = itertools.count()
    return records.simulate(
        store,
        specs.study(
            {"smooth": SEARCHED}, name=name, search={"sampler": "random", "trials": trials}
        ),
        lambda config: 80.0 + [3.0, 1.0, 4.0, 2.0][next(numbers) % 4] + config["alpha"] / 100,
    )


def test_the_history_shows_every_trial_and_the_best_so_far(store):
    study = searched(store, "history", 4)
    trials = store.trials(study.id)
    (panel, _) = figures.search_panels(Report(store, study).spec, trials, {"smooth": 0})
    pruned, complete, best = drawn(panel).lines
    values = [trial.value for trial in trials]
    assert panel.name.startswith("history-") and len(pruned.get_xdata()) == 0
    assert (list(complete.get_xdata()), list(complete.get_ydata())) == ([1, 2, 3, 4], values)
    assert complete.get_linestyle() == "None"
    assert list(best.get_ydata()) == [values[0], values[0], values[2], values[2]]


def test_pruned_trials_are_crosses_at_their_first_seeds_accuracy(store):
    study = searched(store, "history-pruned", 3)
    first, *others = store.trials(study.id)
    pruned = replace(first, state=State.PRUNED, value=None)
    spec = Report(store, study).spec
    (panel, *_) = figures.search_panels(spec, [pruned, *others], {"smooth": 0})
    crosses, complete, _ = drawn(panel).lines
    assert (list(crosses.get_xdata()), list(complete.get_xdata())) == ([1], [2, 3])
    assert list(crosses.get_ydata()) == [first.runs[0].max_acc]


@pytest.mark.parametrize("trials, shown", [(9, False), (10, True)])
def test_importances_need_ten_trials_and_are_called_rough(store, trials, shown):
    study = searched(store, f"important-{trials}", trials)
    panels = figures.search_panels(Report(store, study).spec, store.trials(study.id), {"smooth": 0})
    captions = {panel.name.split("-")[0]: panel.caption for panel in panels}
    assert ("importances" in captions) == shown
    if shown:
        assert "from 10 complete trials. Such an estimate is rough" in captions["importances"]


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
    (panel,) = figures.search_panels(report.spec, report.trials, NUMBERS)
    assert panel.name == "parallel-laplace"
    assert report.verdicts == ["Nothing was compared with laplace: no other arm is complete."]


def test_the_search_is_drawn_where_something_was_searched(store, study):
    spec = Report(store, study).spec
    panels = figures.search_panels(spec, store.trials(study.id), NUMBERS)
    assert [panel.name for panel in panels] == ["parallel-sgd", "parallel-laplace"]
    assert len(complete_trials(store.trials(study.id), "laplace")) == 4
