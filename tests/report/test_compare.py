import pytest
from helpers import records, specs
from helpers.published import published_figures

from ressmooth.errors import ConfigError
from ressmooth.report.compare import (
    arm_results,
    by_selecting_statistic,
    compare_studies,
    filter_comparisons,
    nearest,
)
from ressmooth.report.paper import deviations, published_for
from ressmooth.report.reference import other_differences
from ressmooth.store import open_store

SGD = {"method": "mse", "weight_decay": {"grid": [1e-2, 1e-3]}}
LAPLACE = {"method": "smoothing", "distribution": "laplace", "weight_decay": 1e-3}
ARMS = {"sgd": SGD, "laplace": {**LAPLACE, "b": {"grid": [0.9, 1.3]}}}
EIGHTH = {"dataset": "fashion_mnist", "model": "resnet20", "fraction": 0.125, "epochs": 48}


@pytest.fixture
def store(quick_directory, request):
    store = open_store(f"sqlite:///{quick_directory}/{request.node.name}.db")
    yield store
    store.close()


def wiggle(seed):
    """Return what a seed adds to every arm."""
    return [0.0, 0.4, -0.2, 0.3, -0.5][seed % 5]


def gain(of_smoothing, own=0.01):
    """Return accuracies where smoothing gains that much, plus a part of its own per seed."""

    def accuracy(config):
        if config["method"] == "mse":
            tuned = 0.5 if config["weight_decay"] == 1e-3 else 0.0
            return 89.0 + tuned + wiggle(config["seed"])
        tuned = 0.5 if config["b"] == 1.3 else 0.4
        return 89.0 + tuned + of_smoothing + wiggle(config["seed"]) + own * (config["seed"] % 3)

    return accuracy


def compared(store, accuracy, arms=ARMS, seeds=5, **settings):
    spec = specs.study(arms, seeds=seeds, **{**EIGHTH, **settings})
    return compare_studies(store, [records.simulate(store, spec, accuracy)])


def test_each_arm_has_its_best_configuration(store):
    first, second = compared(store, gain(1.0))
    assert (first.statistic, second.statistic) == ("max", "mean")
    sgd, laplace = first.lines
    assert (sgd.arm.params, sgd.arm.tried) == ({"weight_decay": 1e-3}, 2)
    assert (laplace.arm.params, laplace.arm.tried) == ({"b": 1.3}, 2)
    assert sgd.sample.n == 5 and sgd.sample.mean == pytest.approx(89.5)
    assert second.lines[0].sample.mean == pytest.approx(88.5)
    assert by_selecting_statistic([first, second]) == [first]


def test_the_statistic_that_selects_comes_first(store):
    tables = compared(store, gain(1.0), search={"objective": "mean"})
    assert [table.statistic for table in tables] == ["mean", "max"]
    assert by_selecting_statistic(tables) == tables[:1]


def test_every_number_comes_from_its_rows(store):
    (table, _) = compared(store, gain(1.0))
    for line in table.lines:
        rows = [store.run(run) for run in line.arm.runs]
        assert {row.trial_id for row in rows} == {line.arm.trial}
        assert line.sample.by_seed == {row.seed: row.max_acc for row in rows}


@pytest.mark.parametrize(
    "better, ordering", [(1.0, "holds"), (-1.5, "contradicted"), (-0.008, "undecided")]
)
def test_the_papers_ordering_holds_or_not(store, better, ordering):
    """In the paper laplace is 0.33 above SGD."""
    (table, _) = compared(store, gain(better))
    line = table.lines[1]
    assert (line.paper, line.paper_difference) == (90.12, pytest.approx(0.33))
    assert line.ordering == ordering
    assert line.difference.test == "paired"
    assert line.from_paper == pytest.approx(line.sample.mean - 90.12)


def test_one_seed_decides_nothing_however_large_the_gain(store):
    (table, _) = compared(store, gain(5.0), seeds=1)
    assert table.lines[1].ordering == "undecided"
    assert table.lines[1].difference.p is None


def test_differences_are_corrected_for_all_arms_even_those_left_out(store):
    arms = {**ARMS, "logistic": {**LAPLACE, "distribution": "logistic"}}
    (table, _) = compared(store, gain(-0.3, own=0.1), arms)
    alone = compared(store, gain(-0.3, own=0.1), ARMS, name="alone")[0]
    before, after = alone.lines[1].difference.p, table.lines[1].difference.p
    assert (table.tests, alone.tests) == (2, 1)
    assert after == pytest.approx(min(1.0, 2 * before))
    (shown, _) = filter_comparisons([table, _], ["laplace"], [])
    assert [line.arm.name for line in shown.lines] == ["sgd", "laplace"]
    assert shown.lines[1].difference.p == after and shown.tests == 2


def test_fractions_are_never_compared_with_each_other(store):
    spec = specs.study(
        {**ARMS, "laplace": {**LAPLACE, "b": 1.3, "fraction": 0.125}, "sgd": {
            **SGD, "fraction": {"grid": [0.5, 0.125]}}},
        seeds=2, dataset="fashion_mnist", model="resnet20", epochs=48,
    )  # fmt: skip
    tables = by_selecting_statistic(
        compare_studies(store, [records.simulate(store, spec, gain(1.0))])
    )
    found = {t.condition["fraction"]: [line.arm.name for line in t.lines] for t in tables}
    assert found == {0.5: ["sgd"], 0.125: ["sgd", "laplace"]}
    assert [t.condition["fraction"] for t in filter_comparisons(tables, [], [0.125])] == [0.125]


def test_an_unknown_arm_or_fraction_is_an_error(store):
    tables = compared(store, gain(1.0))
    with pytest.raises(ConfigError, match="--arm nope: no such arm here; known: sgd, laplace"):
        filter_comparisons(tables, ["nope"], [])
    with pytest.raises(ConfigError, match="--fraction 0.3: .* known: 0.125"):
        filter_comparisons(tables, [], [0.3])


def test_an_arm_without_results_at_a_fraction_is_an_error(store):
    arms = {
        "sgd": {**SGD, "fraction": {"grid": [0.5, 0.125]}},
        "laplace": {**LAPLACE, "fraction": 0.5},
    }
    spec = specs.study(arms, dataset="fashion_mnist", model="resnet20")
    tables = compare_studies(store, [records.simulate(store, spec, gain(1.0))])
    with pytest.raises(ConfigError, match="--arm laplace: no results at that fraction; known: sgd"):
        filter_comparisons(tables, ["laplace"], [0.125])


def test_confirmed_arms_are_reported_by_their_fresh_seeds_only(store):
    def lucky(config):  # the search's seeds are biased towards laplace
        luck = 2.0 if config["seed"] < 10_000 and config["method"] == "smoothing" else 0.0
        return gain(0.0)(config) + luck

    (table, _) = compared(store, lucky, seeds=2, confirm=5)
    sgd, laplace = table.lines
    assert laplace.arm.is_fresh and set(laplace.sample.by_seed) == set(range(10_000, 10_005))
    assert laplace.arm.value > laplace.sample.mean + 1.5
    assert laplace.difference.mean == pytest.approx(0.0, abs=0.02)


def test_fresh_seeds_of_one_arm_are_never_tested_against_selecting_ones(store):
    """SGD is confirmed, laplace is not yet."""
    records.simulate(store, specs.study(ARMS, seeds=2, **EIGHTH), gain(1.0))
    spec = specs.study(ARMS, seeds=2, confirm=3, **EIGHTH)
    planner = records.Planner(store, store.open_study(spec), spec)
    for _ in range(3):
        run = planner.next()
        assert run.config["method"] == "mse"
        attempt = store.claim(run.id, records.ENVIRONMENT)
        store.finish_run(attempt, "complete", max_acc=10.0, mean_acc=10.0)
        planner.run_ended(run)
    (table, _) = compare_studies(store, [store.study("s")])
    assert [line.arm.is_fresh for line in table.lines] == [False, False]
    assert [line.arm.confirmation for line in table.lines] == ["fresh", "unfinished"]
    assert table.lines[0].sample.n == 2 and table.lines[0].sample.mean > 80


def test_an_arm_whose_fresh_seeds_all_fail_is_not_hidden(store):
    def diverging(config):
        fails = config["seed"] >= 10_000 and config["method"] == "smoothing"
        return None if fails else gain(1.0)(config)

    (table, _) = compared(store, diverging, seeds=2, confirm=3)
    assert [line.arm.confirmation for line in table.lines] == ["fresh", "failed"]
    assert [line.arm.is_fresh for line in table.lines] == [False, False]


def test_a_failed_fresh_seed_is_counted(store):
    def one_diverges(config):
        failing = config["seed"] == 10_001 and config["method"] == "smoothing"
        return None if failing else gain(1.0)(config)

    (table, _) = compared(store, one_diverges, confirm=4)
    laplace = table.lines[1]
    assert (laplace.arm.failed, laplace.sample.n) == (1, 3)
    found = laplace.difference
    assert (found.test, found.n, found.unpaired) == ("paired", 3, 1)  # the common seeds


def test_a_holdout_is_compared_by_the_test_set_alone(store):
    (table,) = compared(store, gain(1.0), selection="holdout")
    assert table.statistic == "test"
    assert table.lines[0].sample.mean == pytest.approx(87.5)
    assert table.lines[0].paper == 89.72  # the paper's mean, which was not selected on the test set


def test_an_arms_reference_is_the_most_similar_sgd(store):
    arms = {
        "sgd": {"method": "mse"},
        "sgd-flip": {"method": "mse", "augmentation": "flip"},
        "laplace": LAPLACE,
        "laplace-flip": {**LAPLACE, "augmentation": "flip"},
        "laplace-crop": {**LAPLACE, "augmentation": "crop-flip"},
    }
    (table, _) = compared(store, gain(1.0), arms, weight_decay=1e-3)
    references = {line.arm.name: line.reference and line.reference.name for line in table.lines}
    assert references == {
        "sgd": None,
        "sgd-flip": None,
        "laplace": "sgd",
        "laplace-flip": "sgd-flip",
        "laplace-crop": "sgd",
    }
    crop = table.lines[-1]
    assert other_differences(crop.arm, crop.reference) == ["augmentation"]


def test_a_tuned_learning_rate_is_a_difference_unless_both_are_tuned(store):
    tuned = {"grid": [0.1, 0.2]}
    for name, of_sgd, expected in (("one", {}, ["lr"]), ("both", {"lr": tuned}, [])):
        arms = {"sgd": {"method": "mse", **of_sgd}, "laplace": {**LAPLACE, "lr": tuned}}
        table = compared(
            store, lambda c: 90 + c["lr"] * (c["method"] == "smoothing"), arms, name=name
        )[0]
        assert other_differences(table.lines[1].arm, table.lines[1].reference) == expected


def test_without_sgd_nothing_is_tested(store):
    (table, _) = compared(store, gain(1.0), {"laplace": LAPLACE})
    assert table.tested == [] and table.lines[0].ordering is None
    assert table.lines[0].paper == 90.12


def test_studies_are_compared_where_their_condition_is_the_same(store):
    one = records.simulate(
        store, specs.study({"sgd": SGD}, seeds=2, name="one", **EIGHTH), gain(1.0)
    )
    two = records.simulate(
        store, specs.study({"laplace": LAPLACE}, seeds=2, name="two", **EIGHTH), gain(1.0)
    )
    (table, _) = compare_studies(store, [one, two])
    assert [(line.arm.study, line.arm.name) for line in table.lines] == [
        ("one", "sgd"),
        ("two", "laplace"),
    ]
    assert table.lines[1].reference.study == "one"


def test_the_papers_figure_is_at_a_fixed_weight_decay_or_its_best(store):
    arms = {"searched": SGD, "fixed": {"method": "mse", "weight_decay": 1e-2}}
    spec = specs.study(arms, **EIGHTH)
    study = records.simulate(store, spec, gain(1.0))
    chosen = arm_results(study, store.winners(study.id))
    found = {arm.name: published_for(arm, "max", published_figures()).value for arm in chosen}
    assert found == {"searched": 89.79, "fixed": 88.14}


def test_a_weight_decay_of_the_grid_is_not_a_searched_one(store):
    arms = {"sgd": {"method": "mse"}, "laplace": {"distribution": "laplace"}}
    tables = by_selecting_statistic(
        compared(store, gain(1.0), arms, grid={"weight_decay": [1e-2, 1e-3]})
    )
    figures = {t.condition["weight_decay"]: [line.paper for line in t.lines] for t in tables}
    assert figures == {1e-2: [88.14, 90.12], 1e-3: [89.79, 90.12]}


def test_problems_that_the_paper_never_trained_have_no_figure(store):
    (table, _) = compared(store, gain(1.0), dataset="digits", model="small")
    assert not table.has_paper
    assert [line.ordering for line in table.lines] == [None, None]


@pytest.mark.parametrize(
    "settings, arms, expected",
    [
        ({"epochs": 10}, ARMS, {"epochs": (10, 48)}),
        ({}, ARMS, {}),
        ({}, {"sgd": {"method": "mse", "weight_decay": 5e-4}}, {"weight_decay": (5e-4, 1e-3)}),
        ({"mu": 0.5}, {"laplace": {**LAPLACE, "alpha": 3.0}}, {"mu": (0.5, 0.75), "alpha": (3, 1)}),
        ({}, {"laplace": {**LAPLACE, "alpha": {"grid": [2.0, 3.0]}}}, {}),
    ],
    ids=["epochs", "the paper's", "weight decay", "smoothing", "searched"],
)
def test_deviations_from_the_papers_protocol_are_listed(store, settings, arms, expected):
    (table, _) = compared(store, gain(1.0), arms, **settings)
    assert [deviations(line) for line in table.lines] == [expected] * len(arms)


def test_readings_are_ranked_by_their_distance_to_the_paper(store):
    """laplace is 90.12 in the paper and SGD 89.79."""
    arms = {
        "sgd": {"method": "mse"},
        "sgd-flip": {"method": "mse", "augmentation": "flip"},
        "near": LAPLACE,
        "far": {**LAPLACE, "horizon": 1.0},
        "flip": {**LAPLACE, "augmentation": "flip"},
    }

    def accuracy(config):
        if config["method"] == "mse":
            return 91.79 if config["augmentation"] == "flip" else 89.69
        if config["augmentation"] == "flip":
            return 90.12
        return 90.32 if config["horizon"] == 10 else 87.12

    (table, _) = compared(store, accuracy, arms, seeds=1, weight_decay=1e-3)
    (readings,) = nearest(table)
    ranked = [(line.arm.name, round(distance, 3)) for line, distance in readings]
    assert ranked == [("near", 0.15), ("flip", 1.0), ("far", 1.55)]


def test_a_reading_whose_sgd_is_missing_is_not_ranked(store):
    arms = {
        "sgd": {"method": "mse"},
        "plain": LAPLACE,
        "layers": {**LAPLACE, "layers": 2},
        "flip": {**LAPLACE, "augmentation": "flip"},
    }
    (table, _) = compared(store, lambda config: 90.0, arms, seeds=1, weight_decay=1e-3)
    (readings,) = nearest(table)
    assert {line.arm.name for line, _ in readings} == {"plain", "layers"}


def test_the_same_arms_of_two_studies_are_not_ranked_and_stay_apart(store):
    both = [specs.study(ARMS, seeds=2, name=name, **EIGHTH) for name in ("one", "two")]
    (table, _) = compare_studies(store, [records.simulate(store, s, gain(1.0)) for s in both])
    assert nearest(table) == []
    assert [line.arm.label for line in table.lines][::3] == ["one: sgd", "two: laplace"]
    assert table.lines[3].reference.study == "two"


def test_one_reading_of_each_method_is_not_ranked(store):
    (table, _) = compared(store, gain(1.0))
    assert nearest(table) == []
