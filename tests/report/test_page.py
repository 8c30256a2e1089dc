import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from helpers import records, specs
from helpers.large import fill, large_spec
from helpers.shown import ARMS, accuracy

from ressmooth.formatting import GLUE
from ressmooth.report import verdicts
from ressmooth.report.compare import by_selecting_statistic
from ressmooth.report.export import complete_trials, sample
from ressmooth.report.page import Report, write
from ressmooth.store import open_store


class Text(HTMLParser):
    """The text of a page, and the resources that it would load."""

    def __init__(self, page):
        super().__init__()
        self.text, self.loads = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "img", "iframe", "object"):
            self.loads.append(tag)
        self.loads += [v for k, v in attributes if k in ("src", "href") and v and v[0] not in "#d"]

    def handle_data(self, data):
        self.text.append(data.replace(GLUE, " "))


@pytest.fixture(scope="module")
def written(store, study, tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    write(Report(store, study), directory)
    return directory


def test_the_page_shows_every_figure_and_loads_nothing(store, study, compared, written):
    page = Text((written / "index.html").read_text())
    text = " ".join(page.text)
    assert page.loads == []
    for table in by_selecting_statistic(compared):
        assert all(verdicts.verdict(line, table) in text for line in table.tested)
    for run in records.runs_of(store, study.id):
        assert f"{run.max_acc:.2f}" in text and f"{run.mean_acc:.2f}" in text
    assert "Table 2 of the paper" in text and "0123abc+" in text


def test_the_owner_is_among_the_sources(store, study):
    assert not any("owner" in line for line in Report(store, study).provenance)
    owned = Report(store, replace(study, owner="<anna>@lab"))
    assert "owner <anna>@lab" in owned.provenance


def test_a_configuration_is_above_the_figures_of_its_arm(written):
    page = (written / "index.html").read_text()
    table = page[page.index('<table class="sheet">') :].partition("</table>")[0]
    laplace = table.index("<small>b=1.3 alpha=1</small>")
    assert table.index('colspan="6">laplace<') < laplace < table.index(f"90.01{GLUE}±")
    assert "4 trials (4 complete)" in table and table.count('class="best"') == 1


def test_markdown_shows_what_the_page_shows(written, compared):
    text = (written / "report.md").read_text()
    assert verdicts.verdict(compared[0].lines[1], compared[0]) in text
    pictures = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(pictures) == len(set(pictures)) == len(list((written / "figures").iterdir()))
    for picture in pictures:
        assert ElementTree.parse(written / picture).getroot().tag.endswith("}svg")
    assert "| 0.125, max | 88.00 ± 0.37 (5) / 88.14 |" in text
    assert "&#39;" not in text and "&lt;" not in text


def test_texts_of_a_study_are_escaped(store, tmp_path):
    spec = specs.study({"sgd": {"method": "mse"}}, name="evil")
    study = records.simulate(store, spec, accuracy)
    study = type(study)(**{**vars(study), "file_text": "# <script>alert(1)</script>\n"})
    study.spec["description"] = "<img src=x onerror=alert(1)>"
    write(Report(store, study), tmp_path / "out")
    page = Text((tmp_path / "out" / "index.html").read_text())
    assert page.loads == []
    assert "<script>alert(1)</script>" in " ".join(page.text)


@pytest.mark.slow
def test_studies_of_every_kind_have_a_report(store, tmp_path):
    """One arm, one seed; a search with choices, pruned and failed trials; several fractions."""
    searched = {
        "sgd": {"method": "mse"},
        "smooth": {
            "distribution": {"choices": ["laplace", "logistic"]},
            "b": {"low": 0.1, "high": 2.0, "log": True},
            "layers": {"low": 1, "high": 3},
        },
    }
    for number, spec in enumerate(
        [
            specs.study({"sgd": {"method": "mse"}}, name="alone"),
            specs.study({"smooth": {"b": {"grid": [0.1, 0.3]}}}, name="no-sgd", seeds=2),
            specs.study(searched, name="searched", search={"sampler": "random", "trials": 20}),
            specs.study(ARMS, name="grid", grid={"fraction": [0.5, 1.0]}, confirm=2),
            specs.study(ARMS, name="held-out", selection="holdout"),
        ]
    ):
        study = records.simulate(
            store, spec, lambda c: None if c["layers"] == 2 else accuracy({**c, "b": 1.3})
        )
        write(Report(store, study), tmp_path / str(number))
        page = Text((tmp_path / str(number) / "index.html").read_text())
        assert spec.name in " ".join(page.text) and page.loads == []
    drawn = " ".join(path.name for path in (tmp_path / "2" / "figures").iterdir())
    assert "parallel-smooth.svg" in drawn and "importances-smooth.svg" in drawn


def test_a_large_search_is_sampled_and_the_page_says_so(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/results.db")
    fill(store, large_spec(3000, pruner="none"), 3000)
    report = Report(store, store.study("large"))
    write(report, tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    assert "300 of 1,500 trials, a sample." in page  # the best is one of the 300, or one more
    assert "Points are of one trial in 2; the line is of all." in page
    assert len(report.runs_sheet.rows) == 1000
    assert "2,000 more runs are in the database; print all: ressmooth export large" in page
    best = max(complete_trials(report.trials, "sgd"), key=lambda trial: trial.value)
    assert best in sample(complete_trials(report.trials, "sgd"))
    store.close()
