import re

import pytest
from helpers import records, specs
from helpers.shown import FIVE

from ressmooth.formatting import wrap
from ressmooth.report import tables
from ressmooth.report.compare import compare_studies
from ressmooth.report.sheet import Sheet, as_markdown, as_text

SHEET = Sheet(
    "numbers",
    ("arm", "configuration", "n", "ours − paper"),
    [
        ["sgd", "–", "3", "90.12 ± 0.25"],
        ["laplace", "b=0.3 alpha=1.5", "12", "–"],
        ["laplace", "b=0.3 alpha=1.5", "5", "−1.00"],
    ],
    best=1,
    details=(1,),
)


@pytest.fixture(autouse=True)
def columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def five(store):
    """A search in five dimensions, with the widest figures that a comparison has."""
    spec = specs.study(
        FIVE, name="five-settings", seeds=3, search={"sampler": "random", "trials": 4}
    )
    return records.simulate(
        store, spec, lambda c: 60.0 + 0.1 * c["alpha"] + [0.0, 39.9, 20.0][c["seed"]] * c["mu"]
    )


def test_columns_are_aligned_and_details_are_below():
    assert as_text(SHEET).splitlines() == [
        "numbers",
        "arm       n  ours − paper",
        "─────────────────────────",
        "sgd       3  90.12 ± 0.25",
        "laplace  12             –",
        "          5         −1.00",
        "  b=0.3 alpha=1.5",
    ]


def test_names_of_columns_are_broken_at_spaces():
    narrow = Sheet("", ("arm", "paper's − SGD"), [["sgd", "+0.1"]])
    assert as_text(narrow).splitlines()[:2] == ["     paper's", "arm    − SGD"]


def test_long_labels_and_details_get_lines_of_their_own(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert as_text(SHEET).splitlines()[3:] == [
        "sgd",
        "   3  90.12 ± 0.25",
        "laplace",
        "  12             –",
        "   5         −1.00",
        "  b=0.3 alpha=1.5",
    ]
    monkeypatch.setenv("COLUMNS", "12")
    assert as_text(SHEET).splitlines()[-2:] == ["  b=0.3", "    alpha=1.5"]


def test_without_a_terminal_lines_have_at_most_100_characters(monkeypatch, store, five):
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("sys.__stdout__", None)
    text = tables.comparison_text(compare_studies(store, [five]), against_paper=False)
    assert 80 < max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("width", [80, 120])
def test_every_table_fits_the_terminal_and_no_number_is_broken(
    store, study, five, width, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(width))
    compared = compare_studies(store, [five])
    texts = [
        tables.comparison_text(compared, against_paper=False),
        tables.comparison_text(compare_studies(store, [study]), against_paper=True),
        tables.details(store, five),
        tables.overview(store),
    ]
    assert max(len(line) for text in texts for line in text.splitlines()) <= width
    for line in compared[0].tested:
        figures = (
            f"{line.sample.mean:.2f} ± {line.sample.sd:.2f}",
            f"{line.difference.p:.2f}",
            "weight_decay=",
            "distribution=",
        )
        assert all(figure in texts[0] for figure in figures)
    broken = re.compile(r"[±=<]$| :$|^\s*[±=<%:]", re.MULTILINE)
    assert [broken.findall(text) for text in texts] == [[]] * 4


@pytest.mark.parametrize("width", range(9, 24))
def test_evidence_is_one_word(width):
    lines = wrap("decided (evidence 250 : 1, p = 0.004)", width)
    assert any("250 : 1" in line for line in lines)


def test_markdown_and_latex_are_never_wrapped(store, study, five, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    compared = compare_studies(store, [five])
    narrow = [form(compared, against_paper=False) for form in (tables.markdown, tables.latex)]
    monkeypatch.setenv("COLUMNS", "200")
    assert narrow == [
        form(compared, against_paper=False) for form in (tables.markdown, tables.latex)
    ]
    assert as_markdown(SHEET).splitlines()[-1] == "| laplace | b=0.3 alpha=1.5 | 5 | −1.00 |"
