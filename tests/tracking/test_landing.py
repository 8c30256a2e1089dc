"""The pages in front of MLflow, without a server."""

import re
from contextlib import closing
from dataclasses import replace
from html import unescape

import pytest
from helpers import specs
from helpers.records import ARMS, ENVIRONMENT, open_study, runs_of, simulate, train, train_all
from helpers.store_rows import set_state
from starlette.requests import Request

from ressmooth.report import archive
from ressmooth.store import Holder, Priority, default_url, open_store
from ressmooth.tracking import landing as landing_page
from ressmooth.tracking.landing import Landing
from ressmooth.tracking.mirror import Mirror
from ressmooth.tracking.server import tracking_uri


@pytest.fixture(autouse=True)
def no_servers(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "RESSMOOTH_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def landing(tmp_path):
    return Landing(tmp_path, Mirror(tracking_uri(tmp_path), tmp_path))


@pytest.fixture
def store(tmp_path):
    store = open_store(default_url(tmp_path))
    yield store
    store.close()


def get(page, study=None, query=b""):
    """Return the status of a page, and its HTML."""
    scope = {"type": "http", "path_params": {"study": study}, "query_string": query}
    answer = page(Request(scope))
    assert answer.headers["Cache-Control"] == "no-store"
    return answer.status_code, answer.body.decode()


def text_of(html):
    """Return the text that a page shows."""
    shown = re.sub(r"<(script|style)>.*?</\1>|<[^>]*>", "", html, flags=re.DOTALL)
    return " ".join(unescape(shown).split())


def test_an_empty_home_says_how_to_launch_the_quick_start(landing, tmp_path):
    status, html = get(landing.index)
    assert status == 200 and f"ressmooth study quickstart --home {tmp_path}" in text_of(html)
    assert not (tmp_path / "results.db").exists()


def test_each_study_has_its_progress_and_links(landing, store, tmp_path):
    study_id = open_study(store, "half")
    for row, state in zip(runs_of(store, study_id), ("complete", "failed"), strict=False):
        train(store, row, tmp_path, state)
    html = get(landing.index)[1]
    text = text_of(html)
    assert "2 of 6 recorded runs are done" in text and "4 waiting" in text and "1 failed" in text
    assert "Nothing to compare yet." in text and "No launcher runs it now." in text
    waiting = next(row for row in runs_of(store, study_id) if row.state == "waiting")
    store.claim(waiting.id, ENVIRONMENT)
    text = text_of(get(landing.index)[1])
    assert "1 interrupted" in text and "running" not in text  # nobody runs it
    assert 'href="/curves/half"' in html and 'href="/report/half"' in html

    store.acquire(study_id, Holder.here())  # the page reads the Store again
    assert f"Held by {Holder.here()} since 2" in text_of(get(landing.index)[1])


def test_figures_of_a_verdict_stay_on_one_line(landing, store):
    simulate(store, specs.study(ARMS, seeds=2, name="done"), lambda config: 90.0 + config["seed"])
    assert "90.50\xa0±\xa00.71\xa0%" in get(landing.index)[1]


@pytest.mark.parametrize(
    ("query", "number", "names"),
    [
        (b"", 1, ["s4", "s3"]),
        (b"page=2", 2, ["s2", "s1"]),
        (b"page=3", 3, ["s0"]),
        (b"page=9", 3, ["s0"]),
        (b"page=0", 1, ["s4", "s3"]),
        (b"page=-1", 1, ["s4", "s3"]),
        (b"page=" + b"9" * 5000, 1, ["s4", "s3"]),
        ("page=²".encode(), 1, ["s4", "s3"]),
    ],
)
def test_many_studies_are_divided_into_pages(landing, store, monkeypatch, query, number, names):
    monkeypatch.setattr("ressmooth.tracking.landing.PER_PAGE", 2)
    for i in range(5):
        open_study(store, f"s{i}")
    status, html = get(landing.index, query=query)
    assert status == 200 and f"Page {number} of 3" in text_of(html)
    assert re.findall(r"<h2>(\w+)</h2>", html) == names
    assert ("Newer studies" in html, "Older studies" in html) == (number > 1, number < 3)
    assert landing.names() == ["s4", "s3", "s2", "s1", "s0"]


def begin(store, study_id):
    """Run a study in this process."""
    store.holder = store.holder or Holder.here()
    store.acquire(study_id, store.holder)
    set_state(store, study_id, "running")


def test_the_queue_shows_the_studies_that_wait_or_run(landing, store):
    for name, owner, priority in (("a", "ann@desk", Priority.HIGH), ("b", "bob@desk", None)):
        store.submit(specs.study(ARMS, seeds=2, name=name), owner, priority)
    open_study(store, "ended")
    study_id = store.study("a").id
    begin(store, study_id)
    open_study(store, "a")
    store.claim(runs_of(store, study_id)[0].id, {"host": "gpu1", "gpus": "0", "device": "cuda"})
    for page in (landing.index, landing.queue):
        status, html = get(page)
        shown = html.partition('<section id="Queue"')[2] or html
        text = text_of(f"<section {shown.partition('</section>')[0]}")
        text = re.sub(r"submitted [-\d]+ [:\d]+ UTC", "submitted then", text)
        assert status == 200 and "a running ann@desk, submitted then, high priority" in text, text
        assert "0 of 6 runs" in text and "gpu1 GPU 0: sgd seed 0, epoch 0/3" in text
        assert "b queued bob@desk, submitted then, normal priority, waits for a service" in text
        assert "ended" not in text and "No service is running; start one" in text
    assert "<html" not in get(landing.queue)[1]  # a part of a page


def test_the_queue_names_the_command_for_an_interrupted_study(landing, store, tmp_path):
    study_id = open_study(store, "crashed")
    begin(store, study_id)
    store.acquire(study_id, replace(store.holder, started=0.0))  # as after a reused pid
    text = text_of(get(landing.queue)[1])
    assert "crashed interrupted" in text
    assert f"resume it: ressmooth study crashed --home {tmp_path}" in text


def test_the_queue_is_empty_without_studies_that_wait_or_run(landing, store, tmp_path):
    open_study(store, "ended")
    assert get(landing.queue) == (200, "")
    assert get(Landing(tmp_path / "new", landing.mirror).queue) == (200, "")


def test_the_queue_of_a_damaged_database_is_an_error(landing, tmp_path):
    (tmp_path / "results.db").write_bytes(b"no database at all" * 100)
    status, html = get(landing.queue)
    assert status == 500 and "results.db" in html


def test_the_queue_escapes_what_users_wrote(landing, store):
    store.submit(specs.study(ARMS, name="evil"), "<b>@&", None)
    assert "&lt;b&gt;@&amp;" in get(landing.queue)[1]


def test_a_finished_study_has_its_verdicts(landing, store):
    simulate(store, specs.study(ARMS, name="done", seeds=3), lambda c: 90.0 + c["seed"] % 2 / 10)
    text = text_of(get(landing.index)[1])
    assert "9 of 9 recorded runs are done: 9 complete." in text
    assert "By the best epoch's accuracy on digits" in text and "Nothing to compare" not in text


def test_many_verdicts_are_folded_below_their_summary(landing, store):
    arms = {"sgd": ARMS["sgd"], **{f"a{b}": {"b": b / 10} for b in range(1, 5)}}
    simulate(store, specs.study(arms, name="many", seeds=3), lambda c: 90.0 + c["seed"])
    html = get(landing.index)[1]
    shown, folded = html.split("<details>")
    assert "4 comparisons with SGD" in shown and shown.count("By the best epoch") == 2
    assert "3 more" in folded and folded.count("By the best epoch") == 3


def test_text_of_a_study_is_escaped(landing, store):
    spec = replace(specs.study({"sgd": ARMS["sgd"]}, name="evil"), description="<img src=x>&")
    store.open_study(spec)
    html = get(landing.index)[1]
    assert "&lt;img src=x&gt;&amp;" in html and "<img" not in html
    assert "&lt;b&gt;" in get(landing.report, "<b>")[1]
    assert not re.search(r"<[^>]* on\w+=", html)


def test_a_study_without_results_has_no_report(landing, store):
    open_study(store, "waits")
    assert "waits: nothing to report yet" in text_of(get(landing.report, "waits")[1])
    assert get(landing.report, "waits")[0] == get(landing.report, "unknown")[0] == 404
    assert "no study 'unknown' here" in text_of(get(landing.report, "unknown")[1])


@pytest.mark.slow
def test_the_report_is_drawn_again_when_results_change(landing, store, tmp_path):
    study_id = open_study(store, "drawn", {"sgd": ARMS["sgd"]}, seeds=1)
    train_all(store, study_id, tmp_path)
    status, first = get(landing.report, "drawn")
    assert status == 200 and "1 run complete" in text_of(first)
    (kept,) = landing.reports.values()
    assert get(landing.report, "drawn") == (200, first)
    assert next(iter(landing.reports.values())) is kept
    (trial,) = store.trials(study_id)
    store.add_runs({trial.id: [{**trial.runs[0].config, "seed": 1}]})
    store.finish_trial(trial.id, "complete", 90.0)
    assert "1 run complete, 1 run waiting" in text_of(get(landing.report, "drawn")[1])


def test_a_database_that_cannot_be_used_is_named(landing, tmp_path):
    (tmp_path / "results.db").write_bytes(b"no database at all" * 100)
    status, html = get(landing.index)
    assert status == 500 and "results.db" in text_of(html) and "quickstart" not in html


@pytest.mark.slow
def test_the_curves_open_in_mlflow_once_they_are_delivered(landing, store, tmp_path):
    from ressmooth.tracking.relay import sync

    study_id = open_study(store, "charted", seeds=1)
    status, html = get(landing.curves, "charted")
    assert status == 404 and f"ressmooth sync --home {tmp_path}" in text_of(html)
    train_all(store, study_id, tmp_path)
    sync(store, tmp_path, tracking_uri(tmp_path))
    status, html = get(landing.curves, "charted")
    opened = unescape(re.search(r'<body data-opens="([^"]*)"', html)[1])
    assert status == 200 and opened.startswith("/mlflow/#/experiments/1/runs?workflowType=machine")


def test_an_empty_home_shows_the_bundled_results(landing, store, tmp_path, monkeypatch):
    """A newcomer sees a trained study with its verdict and its report, without training."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with closing(open_store(default_url(elsewhere))) as other:
        simulate(other, specs.study(ARMS, seeds=2, name="example"), lambda config: 80.0)
        archive.write_archive(other, ["example"], elsewhere / "example.zip", elsewhere)
    monkeypatch.setattr(landing_page, "bundled_archives", lambda: [elsewhere / "example.zip"])
    html = get(landing.index)[1]
    assert 'href="/example/example"' in html
    assert f"ressmooth import --bundled --home {tmp_path}" in text_of(html)
    assert archive.read_archive(elsewhere / "example.zip").verdicts("example")[0] in text_of(html)
    status, report = get(landing.example, "example")
    assert status == 200 and "example · ressmooth</title>" in report
    assert get(landing.example, "nothing")[0] == 404
    open_study(store, "own")
    assert 'href="/example/example"' not in get(landing.index)[1]
