"""Which arm the others are compared with, and how the texts name it."""

import json
from dataclasses import replace

import pytest
from helpers import records, specs
from helpers.shown import ARMS, EIGHTH, accuracy

from ressmooth.errors import ConfigError
from ressmooth.report import tables
from ressmooth.report.compare import by_selecting_statistic, compare_studies, nearest
from ressmooth.report.notes import notes
from ressmooth.report.page import Report, write
from ressmooth.report.verdicts import summary, verdict, verdict_sentences

SMOOTHING = {name: ARMS[name] for name in ("laplace", "logistic")}


@pytest.fixture(scope="module")
def named(store):
    spec = specs.study(ARMS, seeds=5, name="named", reference="laplace", **EIGHTH)
    return records.simulate(store, spec, accuracy)


@pytest.fixture(scope="module")
def without_sgd(store):
    spec = specs.study(SMOOTHING, seeds=5, name="without-sgd", **EIGHTH)
    return records.simulate(store, spec, accuracy)


def references(table):
    return {line.arm.name: line.reference and line.reference.name for line in table.lines}


def test_the_named_arm_is_what_all_others_are_compared_with(store, named):
    (table,) = by_selecting_statistic(compare_studies(store, [named]))
    assert references(table) == {"sgd": "laplace", "laplace": None, "logistic": "laplace"}
    sentence = verdict(table.lines[0], table)
    assert "sgd (weight_decay=0.001) reaches 89.00 ± 0.37 % (n = 5) and laplace (b=1.3" in sentence
    assert "90.01 ± 0.36 % (n = 5): a loss of 1.01 points, decided after 4 of 5 seeds (" in sentence
    assert "the paper" not in sentence and nearest(table) == []
    assert summary([table]).startswith(
        "By the best epoch's accuracy, 2 comparisons with laplace gave 0 gains,"
    )
    assert "number of arms compared with laplace (Bonferroni)" in " ".join(
        notes([table], against_paper=False)
    )


def test_tables_name_the_reference(store, named, compared):
    found = compare_studies(store, [named])
    assert "− laplace" in tables.comparison_sheet(found[0]).head
    assert "− SGD" in tables.comparison_sheet(compared[0]).head
    record = json.loads(tables.as_json(found))[0]
    assert (record["arm"], record["baseline"], record["metric"]) == ("sgd", "laplace", "accuracy")
    assert record["paper_difference"] is None and record["ordering"] is None


def test_another_reference_for_one_look_changes_nothing_stored(store, named):
    found = by_selecting_statistic(compare_studies(store, [named], "logistic"))
    assert references(found[0]) == {"sgd": "logistic", "laplace": "logistic", "logistic": None}
    assert store.study("named").spec["reference"] == "laplace"


def test_an_unknown_reference_is_refused(store, named):
    with pytest.raises(ConfigError, match=r"--reference laplac: no such .*did you mean 'laplace'"):
        compare_studies(store, [named], "laplac")


def test_the_first_arm_of_the_file_is_the_reference_where_no_arm_is_sgd(store, without_sgd):
    (table,) = by_selecting_statistic(compare_studies(store, [without_sgd]))
    assert references(table) == {"laplace": None, "logistic": "laplace"}
    (sentence,) = verdict_sentences([table])
    assert "logistic reaches 89.01" in sentence and "and laplace (b=1.3 alpha=1) 90.01" in sentence
    assert (
        "No arm is plain SGD, so the others are compared with laplace, the first arm; "
        'reference = "ARM" in the study file names another.'
    ) in notes([table], against_paper=False)


def test_the_file_decides_which_arm_is_first_not_the_order_of_training(store, without_sgd):
    spec = dict(without_sgd.spec)
    spec["arms"] = {name: spec["arms"][name] for name in ("logistic", "laplace")}
    (table, _) = compare_studies(store, [replace(without_sgd, spec=spec)])
    assert references(table) == {"logistic": None, "laplace": "logistic"}


def test_one_of_several_sgd_arms_is_called_by_its_name(store):
    arms = {"sgd": {"method": "mse"}, "flip": {"method": "mse", "augmentation": "flip"}}
    spec = specs.study(arms, seeds=3, name="two-sgd", reference="flip", **EIGHTH)
    (table, _) = compare_studies(store, [records.simulate(store, spec, accuracy)])
    assert references(table) == {"sgd": "flip", "flip": None}
    assert "− flip" in tables.comparison_sheet(table).head
    assert table.lines[0].paper_difference is None


def test_conditions_with_different_references_share_no_name(store):
    spec = specs.study(
        {
            "laplace": {"fraction": {"grid": [0.5, 0.125]}},
            "logistic": {"distribution": "logistic", "fraction": {"grid": [0.5, 0.125]}},
            "sgd": {"method": "mse", "fraction": 0.5},
        },
        seeds=3, name="mixed", **{**EIGHTH, "b": 1.3},
    )  # fmt: skip
    del spec.settings["fraction"]
    tables_ = by_selecting_statistic(
        compare_studies(store, [records.simulate(store, spec, accuracy)])
    )
    assert [tables.comparison_sheet(table).head[6] for table in tables_] == ["− SGD", "− laplace"]
    assert "3 comparisons with the reference gave" in summary(tables_)


def test_a_named_arm_without_results_compares_nothing(store):
    spec = specs.study(ARMS, seeds=1, name="waits", reference="logistic", **EIGHTH)

    def diverges(config):
        return None if config["distribution"] == "logistic" else accuracy(config)

    study = records.simulate(store, spec, diverges)
    (table,) = by_selecting_statistic(compare_studies(store, [study]))
    assert table.tested == [] and "− logistic" in tables.comparison_sheet(table).head
    report = Report(store, study)
    assert report.verdicts == ["Nothing was compared with logistic: no trial of it is complete."]
    assert {cost.ratio for cost in report.costs} == {None}


def test_a_new_reference_is_stored_at_the_next_launch(store):
    before = specs.study(ARMS, name="changes", **EIGHTH)
    study_id = store.open_study(before)
    assert store.open_study(replace(before, reference="laplace")) == study_id
    assert store.study("changes").spec["reference"] == "laplace"
    assert [row.kind for row in store.pending(study_id, 10)] == ["study"]


def test_the_report_is_about_the_reference(store, named, tmp_path):
    report = Report(store, named)
    assert report.cost_sheet.head[-1] == "ratio to laplace"
    write(report, tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "Every configuration of the search, compared with laplace." in page
    assert "| − laplace |" in page and "times SGD's time" not in page
    width = next((tmp_path / "figures").glob("*-width-max-*.svg"))
    assert "laplace" in width.read_text()
