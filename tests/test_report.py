"""What people read: tables, sentences, figures and the page, of studies that were recorded."""

import csv
import io
import json
import re
from html.parser import HTMLParser

import build
import numpy as np
import pytest
import recorded
from PIL import Image

from ressmooth.arms import arms_of
from ressmooth.compare import compare_studies, leading
from ressmooth.paper import baselines
from ressmooth.report import figures, method, style, tables, words
from ressmooth.report.layout import Layout
from ressmooth.report.page import Report, write
from ressmooth.report.searched import complete_trials
from ressmooth.spec import load
from ressmooth.store import open_store

EIGHTH = {"dataset": "fashion_mnist", "model": "resnet20", "fraction": 0.125, "epochs": 48}
SMOOTHING = {"method": "smoothing", "weight_decay": 1e-3}
ARMS = {
    "sgd": {"method": "mse", "weight_decay": {"grid": [1e-2, 1e-3]}},
    "laplace": {**SMOOTHING, "b": {"grid": [0.9, 1.3]}, "alpha": {"grid": [0.5, 1.0]}},
    "logistic": {**SMOOTHING, "distribution": "logistic", "b": 0.5},
}
NUMBERS = {"sgd": 0, "laplace": 1, "logistic": 2}
WIGGLE = [0.0, 0.4, -0.2, 0.3, -0.5]


@pytest.fixture(scope="module")
def store(quick_directory):
    """One for all tests: each has its own studies in it."""
    store = open_store(f"sqlite:///{quick_directory}/report.db")
    yield store
    store.close()


def accuracy(config):
    """laplace is a point better than SGD, logistic is not to be told from it."""
    seed = config["seed"] % 5
    if config["method"] == "mse":
        return 88.0 + (1.0 if config["weight_decay"] == 1e-3 else 0.0) + WIGGLE[seed]
    if config["distribution"] == "logistic":
        return 89.01 + WIGGLE[-1 - seed]
    best = 0.2 * (config["b"] == 1.3) + 0.1 * (config["alpha"] == 1.0)
    return 89.7 + best + WIGGLE[seed] + 0.01 * (seed % 3)


@pytest.fixture(scope="module")
def study(store):
    return recorded.play(store, build.study(ARMS, seeds=5, name="shown", **EIGHTH), accuracy)


@pytest.fixture
def compared(store, study):
    return compare_studies(store, [study])


# sentences


def test_a_gain_is_told_with_its_evidence_and_the_papers(compared):
    sentence = words.verdict(compared[0].lines[1], compared[0])
    assert sentence.startswith(
        "By the best epoch's accuracy on fashion_mnist (resnet20, fraction 0.125), "
        "laplace (b=1.3 alpha=1) reaches 90.01 ± 0.36 % (n = 5) and sgd (weight_decay=0.001) "
    )
    assert "89.00 ± 0.37 % (n = 5): a gain" in sentence
    assert re.search(r"a gain of 1\.01 points \(95 % interval \+0\.99 to \+1\.02, p < ", sentence)
    assert "paired t-test, corrected for 2 comparisons" in sentence
    assert sentence.endswith("; the paper's ordering holds (the paper reports +0.33).")


def test_the_undecided_is_told_with_what_would_decide_it(compared):
    sentence = words.verdict(compared[0].lines[2], compared[0])
    assert "if that is the true difference, not even 1000 seeds per arm would" in sentence
    assert sentence.endswith("the paper reports +0.39.")


def test_a_contradiction_is_called_one(store):
    def worse(config):
        return accuracy(config) - (3.0 if config["distribution"] == "logistic" else 0.0)

    study = recorded.play(store, build.study(ARMS, seeds=5, name="worse", **EIGHTH), worse)
    table = compare_studies(store, [study])[0]
    sentence = words.verdict(table.lines[2], table)
    assert "a loss of 2.99 points" in sentence
    assert sentence.endswith("the paper's ordering is contradicted (the paper reports +0.39).")


def test_one_seed_is_called_too_few(store):
    study = recorded.play(store, build.study(ARMS, name="single", **EIGHTH), accuracy)
    table = compare_studies(store, [study])[0]
    sentence = words.verdict(table.lines[1], table)
    assert "reaches 90.00 % (n = 1) and sgd (weight_decay=0.001) 89.00 % (n = 1)" in sentence
    assert "so few seeds cannot tell from chance" in sentence
    assert "interval" not in sentence and "t-test" not in sentence


def test_all_is_summed_up_in_a_sentence(compared):
    assert words.summary(leading(compared)) == (
        "By the best epoch's accuracy, of 2 comparisons with SGD 1 is a gain, 0 are losses and "
        "1 undecided; the paper's "
        "ordering holds in 1, is contradicted in 0 and undecided in 1."
    )


def test_the_study_of_readings_says_which_comes_nearest(store):
    def measured(config):
        """What METHOD.md has measured or, where it has not, something farther off."""
        known = {"none": 88.72, "flip": 90.15, "crop-flip": 90.09}
        if config["output"] == "identity":
            return None if config["method"] == "mse" else 90.18  # near, but its SGD diverged
        if config["reduction"] == "mean":
            return 87.0
        if config["method"] == "mse":
            return known[config["augmentation"]]
        return 90.66 if config["augmentation"] == "crop-flip" else 88.5

    study = recorded.play(store, load("paper-readings"), measured)
    (sentence,) = words.ranking(leading(compare_studies(store, [study]))[0])
    assert sentence.startswith(
        "By max, the reading of logistic nearest to the paper is logistic-crop-flip with "
        "sgd-crop-flip: 0.39 points off on average, with one seed a hint only (then: "
    )
    assert "logistic-logits" not in sentence
    assert sentence in Report(store, study).verdicts


def test_the_notes_say_what_flatters(store, compared):
    said = " ".join(words.notes(compared, against_paper=True))
    assert "Validation is the test set" in said
    assert "sgd, laplace: selected by the seeds shown, which flatters. confirm = N" in said
    assert "Bonferroni" in said
    spec = build.study(ARMS, seeds=2, confirm=2, name="fresh", **EIGHTH)
    fresh = compare_studies(store, [recorded.play(store, spec, accuracy)])
    said = " ".join(words.notes(fresh, against_paper=True))
    assert "fresh: they selected nothing" in said and "confirm = N" not in said


@pytest.mark.parametrize(
    "fails, said",
    [
        (lambda c: True, "laplace: every fresh seed failed, so no arm is shown by them."),
        (lambda c: c["seed"] == 10_000, "laplace on digits (small, fraction 0.2): 1 seed failed"),
    ],
    ids=["all", "one"],
)
def test_failed_fresh_seeds_are_told(store, fails, said):
    def diverging(config):
        fresh = config["seed"] >= 10_000 and config["method"] == "smoothing"
        return None if fresh and fails(config) else 90.0 + config["seed"] % 7

    arms = {"sgd": ARMS["sgd"], "laplace": ARMS["laplace"]}
    spec = build.study(arms, name=f"failing-{len(said)}", seeds=2, confirm=3)
    found = compare_studies(store, [recorded.play(store, spec, diverging)])
    notes = " ".join(words.notes(found, against_paper=False))
    assert said in notes and "confirm = N" not in notes


def test_the_notes_say_what_is_not_the_papers(store):
    other = {**EIGHTH, "epochs": 10, "batch_size": 64}
    spec = build.study(ARMS, name="other", **other)
    found = compare_studies(store, [recorded.play(store, spec, accuracy)])
    said = words.notes(found, against_paper=True)
    assert "Not the paper's protocol: batch_size 64 (paper 128), epochs 10 (paper 48)." in said
    assert not any("protocol" in note for note in words.notes(found, against_paper=False))


@pytest.mark.parametrize(
    "points, text",
    [(None, "–"), (-1.4e-14, "+0.00"), (-0.004, "+0.00"), (0.5, "+0.50"), (-0.5, "−0.50")],
)
def test_no_difference_has_no_sign_of_a_loss(points, text):
    assert words.signed(points) == text


@pytest.mark.parametrize(
    "p, text",
    [(None, "–"), (0.0004, "< 0.001"), (0.0312, "0.031"), (0.0996, "0.100"), (0.42, "0.42")],
)
def test_probabilities_are_not_longer_than_they_deserve(p, text):
    assert words.probability(p) == text


# tables


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
        tables.text(compared, against_paper=True),
        tables.markdown(compared, against_paper=True),
        tables.latex(compared, against_paper=True),
    ]
    for record in records:
        figure = f"{record['mean']:.2f} ± {record['sd']:.2f}"
        assert figure in texts[0] and figure in texts[1]
        assert figure.replace("±", r"$\pm$") in texts[2]
        assert all(f"{record['paper']:.2f}" in text for text in texts)


def test_without_the_paper_its_figures_are_not_shown(compared):
    assert "90.12" not in tables.text(compared, against_paper=False)


def test_no_line_of_a_terminal_is_wider_than_the_table_may_be(compared):
    shown = tables.text(compared, against_paper=True).splitlines()
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
    for sheet in tables.sheets(compared[0], against_paper=True):
        lines = tables.markdown_table(sheet).splitlines()
        assert {line.count("|") for line in lines} == {len(sheet.head) + 1}


# laid out as in the paper


def test_the_papers_table_has_our_figures_in_its_places(store, study):
    chosen = arms_of(study, store.winners(study.id))
    published = [row for row in baselines() if row.problem == ("fashion_mnist", "resnet20", 0.125)]
    (table,) = Layout(published, chosen, store.trials(study.id)).tables()
    assert table.head == ["sgd 1e-2", "sgd 1e-3", "sgd 1e-4", "sgd 1e-5", "laplace", "logistic"]
    rows = {name: cells for name, cells in table.rows}
    cells = rows["0.125, max"]
    assert [cell.paper for cell in cells] == ["88.14", "89.79", "89.00", "88.62", "90.12", "90.18"]
    assert [cell.ours for cell in cells][:3] == ["88.00 ± 0.37", "89.00 ± 0.37", "–"]
    assert [cell.n for cell in cells] == [5, 5, 0, 0, 5, 5]
    assert [cell.is_best for cell in cells] == [False] * 4 + [True, False]
    assert rows["0.125, mean"][1].ours == "88.00 ± 0.37"


def test_fresh_seeds_and_selecting_ones_are_told_apart_in_the_papers_table(store):
    def lucky(config):  # at 1e-2 the search was lucky, but not enough
        return (
            88.9
            if (config["method"], config["weight_decay"]) == ("mse", 1e-2)
            else accuracy(config)
        )

    spec = build.study({"sgd": ARMS["sgd"]}, seeds=2, confirm=2, name="two-kinds", **EIGHTH)
    report = Report(store, recorded.play(store, spec, lucky))
    (table,) = report.paper_tables
    cells = dict(table.rows)["0.125, max"][:2]
    assert [(cell.has_selected, cell.is_best) for cell in cells] == [(True, False), (False, True)]


def test_a_holdout_stands_beside_the_papers_mean(store):
    held_out = {**EIGHTH, "selection": "holdout"}
    spec = build.study({"sgd": ARMS["sgd"]}, name="beside", **held_out)
    (table,) = Report(store, recorded.play(store, spec, accuracy)).paper_tables
    rows = dict(table.rows)
    assert rows["0.125, mean"][1].ours == "87.00" and rows["0.125, max"][1].ours == "–"


def test_conditions_have_their_own_rows_in_the_papers_table(store):
    settings = {key: value for key, value in EIGHTH.items() if key != "epochs"}
    spec = build.study(
        {"sgd": {"method": "mse"}}, name="axes", grid={"epochs": [2, 48]}, **settings
    )
    study = recorded.play(store, spec, lambda config: 40.0 + config["epochs"])
    (table,) = Report(store, study).paper_tables
    found = {name: cells[1].ours for name, cells in table.rows if name.endswith("max")}
    assert found == {"0.125, epochs 2, max": "42.00", "0.125, epochs 48, max": "88.00"}


# figures


def drawn(panel):
    return style.picture(panel.draw).axes[0]


def test_accuracy_is_drawn_against_b_with_the_baseline(store, study, compared):
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
    chosen = arms_of(study, store.winners(study.id))
    return chosen, {run: store.curve(run) for arm in chosen for run in arm.runs}


def test_learning_curves_are_means_over_seeds(store, study):
    chosen = arms_of(study, store.winners(study.id))
    curves = {run: store.curve(run) for arm in chosen for run in arm.runs}
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
    (arm, *_) = arms_of(study, store.winners(study.id))
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


def test_costs_are_kept_apart_by_condition(store):
    spec = build.study({"sgd": {"method": "mse"}}, name="apart", grid={"fraction": [0.5, 0.25]})
    report = Report(store, recorded.play(store, spec, accuracy))
    assert [(cost.problem, cost.runs) for cost in report.costs] == [
        ("digits (small, fraction 0.5)", 1),
        ("digits (small, fraction 0.25)", 1),
    ]
    assert len(figures.costs(report.costs)) == 3  # all together, and an epoch of each


def test_a_search_in_which_nothing_differs_has_no_importances(store):
    arms = {"laplace": ARMS["laplace"]}
    study = recorded.play(store, build.study(arms, name="flat", **EIGHTH), lambda config: 10.0)
    report = Report(store, study)
    assert [p.name for p in figures.search(report.spec, report.trials)] == ["parallel-laplace"]
    assert report.verdicts == ["Nothing was compared with SGD: no SGD arm is complete."]


def test_the_search_is_drawn_where_something_was_searched(store, study):
    spec = Report(store, study).spec
    names = [panel.name for panel in figures.search(spec, store.trials(study.id))]
    assert names == ["parallel-sgd", "importances-laplace", "parallel-laplace"]
    assert len(complete_trials(store.trials(study.id), "laplace")) == 4


def test_both_pictures_of_the_method_are_what_the_loss_computes(tmp_path):
    by_alpha, by_scale = style.picture(*method.sigmoids()).axes
    flat = by_scale.lines[0].get_ydata()  # s = 0.25
    assert (flat[0] < flat[-1] < 0.25) and flat[100] == pytest.approx(0.125)
    steep = by_alpha.lines[-1]
    assert steep.get_ydata()[-1] == pytest.approx(1 / (1 + np.exp(-16)))
    laplace, logistic = style.picture(*method.annealings((0.5,), (0.5,))).axes
    x, s = (np.array(values) for values in laplace.lines[0].get_data())
    assert s == pytest.approx(np.exp(-np.abs(x - 0.75) * 10 / 0.5))
    s = np.array(logistic.lines[0].get_ydata())
    assert s == pytest.approx(1 / np.cosh((x - 0.75) * 10 / (2 * 0.5)) ** 2)


def test_inline_pictures_follow_the_pages_colour():
    svg = style.inline_svg(style.picture(method.sigmoids()[0]), "name")
    assert svg.startswith("<svg") and style.INK not in svg and "currentColor" in svg
    assert svg == style.inline_svg(style.picture(method.sigmoids()[0]), "name")


# the page


class Text(HTMLParser):
    """The text of a page, and what it would load."""

    def __init__(self, page):
        super().__init__()
        self.text, self.loads = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "object"):
            self.loads.append(tag)
        self.loads += [
            v for k, v in given.items() if k in ("src", "href") and v and v[0] not in "#d"
        ]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def written(store, study, tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    write(Report(store, study), directory)
    return directory


def test_the_page_tells_everything_and_loads_nothing(store, study, compared, written):
    page = Text((written / "index.html").read_text())
    text = " ".join(page.text)
    assert page.loads == []
    for table in leading(compared):
        assert all(words.verdict(line, table) in text for line in table.tested)
    for run in recorded.runs_of(store, study.id):
        assert f"{run.max_acc:.2f}" in text and f"{run.mean_acc:.2f}" in text
    assert "Table 2 of the paper" in text and "0123abc+" in text


def test_markdown_shows_what_the_page_shows(written, compared):
    text = (written / "report.md").read_text()
    assert words.verdict(compared[0].lines[1], compared[0]) in text
    pictures = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(pictures) == len(set(pictures)) == len(list((written / "figures").iterdir()))
    for picture in pictures:
        with Image.open(written / picture) as image:
            assert min(image.size) > 400
    assert "| 0.125, max | 88.00 ± 0.37 (5) / 88.14 |" in text
    assert "&#39;" not in text and "&lt;" not in text


def test_what_a_study_says_of_itself_is_shown_as_text(store, tmp_path):
    spec = build.study({"sgd": {"method": "mse"}}, name="evil")
    study = recorded.play(store, spec, accuracy)
    study = type(study)(**{**vars(study), "file_text": "# <script>alert(1)</script>\n"})
    study.spec["description"] = "<img src=x onerror=alert(1)>"
    write(Report(store, study), tmp_path / "out")
    page = Text((tmp_path / "out" / "index.html").read_text())
    assert page.loads == []
    assert "<script>alert(1)</script>" in " ".join(page.text)


def test_a_report_of_every_shape_of_study(store, tmp_path):
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
            build.study({"sgd": {"method": "mse"}}, name="alone"),
            build.study({"smooth": {"b": {"grid": [0.1, 0.3]}}}, name="no-sgd", seeds=2),
            build.study(searched, name="searched", search={"sampler": "random", "trials": 6}),
            build.study(ARMS, name="grid", grid={"fraction": [0.5, 1.0]}, confirm=2),
            build.study(ARMS, name="held-out", selection="holdout"),
        ]
    ):
        study = recorded.play(
            store, spec, lambda c: None if c["layers"] == 2 else accuracy({**c, "b": 1.3})
        )
        write(Report(store, study), tmp_path / str(number))
        page = Text((tmp_path / str(number) / "index.html").read_text())
        assert spec.name in " ".join(page.text) and page.loads == []
    drawn = " ".join(path.name for path in (tmp_path / "2" / "figures").iterdir())
    assert "parallel-smooth.png" in drawn and "importances-smooth.png" in drawn
