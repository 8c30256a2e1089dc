import csv
import io
import json
import re

import pytest
from helpers import records, specs
from scipy.stats import ttest_rel

from ressmooth.report import tables
from ressmooth.report.compare import compare_studies
from ressmooth.report.sheet import as_markdown


def test_every_format_has_the_same_figures(compared):
    records = json.loads(tables.as_json(compared))
    assert [(r["arm"], r["statistic"], r["n"]) for r in records[:3]] == [
        ("sgd", "max", 5),
        ("laplace", "max", 5),
        ("logistic", "max", 5),
    ]
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(compared))))
    for row, record in zip(rows, records, strict=True):
        assert float(row["mean"]) == record["mean"] and row["ordering"] == (
            record["ordering"] or ""
        )
        assert [float(v) for v in row["values"].split()] == record["values"]
    texts = [
        tables.comparison_text(compared, against_paper=True),
        tables.markdown(compared, against_paper=True),
        tables.latex(compared, against_paper=True),
    ]
    for record in records:
        figure = f"{record['mean']:.2f} ± {record['sd']:.2f}"
        assert figure in texts[0] and figure in texts[1]
        assert figure.replace("±", r"$\pm$") in texts[2]
        assert all(f"{record['paper']:.2f}" in text for text in texts)


def test_exports_have_the_evidence_and_the_figures_of_a_test_for_one_look(compared):
    sgd, laplace, logistic = json.loads(tables.as_json(compared))[:3]
    tested = compared[0].lines[1].difference
    assert (laplace["pairs"], laplace["decided_after"], laplace["test"]) == (5, 4, "paired")
    assert laplace["evidence"] == tested.evidence.e_value > 40
    assert laplace["p"] == pytest.approx(2 / laplace["evidence"])
    assert laplace["difference_low"] < laplace["fixed_n_low"] < laplace["difference"]
    assert laplace["difference_high"] > laplace["fixed_n_high"] > laplace["difference"]
    expected = ttest_rel(laplace["values"], sgd["values"])
    assert laplace["fixed_n_p"] == pytest.approx(2 * expected.pvalue)
    assert (logistic["decided_after"], logistic["evidence"]) == (None, 1.0)
    assert [sgd[key] for key in ("pairs", "evidence", "fixed_n_p", "fixed_n_low")] == [None] * 4


def test_without_the_paper_its_figures_are_not_shown(compared):
    assert "90.12" not in tables.comparison_text(compared, against_paper=False)


def test_trials_are_counted_by_how_they_ended(store):
    pruned = {"sampler": "random", "trials": 10, "pruner": "asha"}
    arms = {"sgd": {"method": "mse", "weight_decay": {"low": 1e-5, "high": 1e-2}}}
    spec = specs.study(arms, name="ended", search=pruned)
    study_id = store.open_study(spec)
    states = ["complete"] * 3 + ["pruned"] * 5 + ["failed", "running"]
    for number, state in enumerate(states):
        config = spec.branches[0].example().model_dump()
        trial = store.add_trial(
            study_id,
            arm="sgd",
            condition=spec.condition(config),
            branch=spec.branches[0].key,
            number_in_branch=number,
            params={"weight_decay": 1e-3},
            configs=[config],
            sampler_state={},
        )
        run = store.claim(trial.runs[0].id, records.ENVIRONMENT)
        if state != "running":
            outcome = {"max_acc": 90.0, "mean_acc": 90.0} if state == "complete" else {}
            store.finish_run(run, state, **outcome)
            store.finish_trial(trial.id, state, outcome.get("max_acc"))
    compared = compare_studies(store, [store.study("ended")])
    expected = "10 trials (3 complete, 5 pruned, 1 failed, 1 running)"
    for form in (tables.comparison_text, tables.markdown, tables.latex):
        assert expected in form(compared, against_paper=False)
    (record, _) = json.loads(tables.as_json(compared))
    assert record["tried"] == 3
    assert record["trials"] == {"complete": 3, "pruned": 5, "failed": 1, "running": 1}
    (row, _) = csv.DictReader(io.StringIO(tables.as_csv(compared)))
    assert row["trials"] == "complete=3 pruned=5 failed=1 running=1"


def test_no_arm_is_best_in_a_tie(store, compared):
    arms = {"sgd": {"method": "mse"}, "laplace": {"b": 0.5}}
    study = records.simulate(store, specs.study(arms, name="draw"), lambda config: 90.0)
    (tied, _) = tables.sheets(compare_studies(store, [study]), against_paper=False)
    assert (tied.best, tables.comparison_sheet(compared[0]).best) == (None, 1)


def test_latex_is_escaped_and_balanced(compared):
    text = tables.latex(compared, against_paper=True)
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert r"weight\_decay=0.001" in body
    assert not re.search(r"(?<!\\)[_%#]", body)
    assert not re.search(r"[^\x00-\x7f]", body)
    assert body.count(r"\begin") == body.count(r"\end") == 2 * len(compared) * 2
    for table in body.split(r"\begin{tabular}")[1:]:
        columns = len(re.match(r"\{(\w+)\}", table)[1])
        lines = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert {len(re.split(r"(?<!\\)&", line)) for line in lines} == {columns}


def test_markdown_rows_have_all_columns(compared):
    for sheet in tables.sheets(compared[:1], against_paper=True):
        lines = as_markdown(sheet).splitlines()
        assert {line.count("|") for line in lines} == {len(sheet.head) + 1}
