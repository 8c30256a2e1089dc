import csv
import io
import json
import re

from ressmooth.report import tables


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


def test_without_the_paper_its_figures_are_not_shown(compared):
    assert "90.12" not in tables.comparison_text(compared, against_paper=False)


def test_no_table_is_wider_than_a_terminal(compared):
    shown = tables.comparison_text(compared, against_paper=True).splitlines()
    assert max(len(line) for line in shown if line[:1] in "┏┃┡│└") <= tables.WIDTH


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
        lines = tables.markdown_table(sheet).splitlines()
        assert {line.count("|") for line in lines} == {len(sheet.head) + 1}
