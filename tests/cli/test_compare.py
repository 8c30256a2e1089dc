"""`ressmooth compare`."""

import pytest
from helpers import specs
from helpers.commands import run

from ressmooth.store import default_url, open_store

pytestmark = pytest.mark.usefixtures("mlflow_is_unreachable")


@pytest.mark.parametrize(
    "form, begins", [("table", "tiny"), ("markdown", "**tiny"), ("csv", "study,"), ("json", "[")]
)
def test_compare_writes_several_formats(home, form, begins):
    result = run("compare", "tiny", "--format", form, home=home)
    assert result.exit_code == 0 and result.output.startswith(begins)
    assert "sgd" in result.output and "bad" not in result.output  # which never completed


def test_compare_says_when_the_paper_has_no_figures(home):
    output = run("compare", "tiny", "--against", "paper", home=home).output
    assert "The paper has no figures for this comparison." in output


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["compare", "nope"], "no study 'nope' here; known: tiny"),
        (["compare", "tiny", "--arm", "adam"], "--arm adam: no such arm here; known: sgd"),
        (
            ["compare", "tiny", "--reference", "sgdd"],
            "--reference sgdd: no such reference here (did you mean 'sgd'?); known: sgd",
        ),
        (["compare", "tiny", "--fraction", "0.5"], "--fraction 0.5: no such fraction here"),
        (["report", "nope", "--out", "out"], "no study 'nope' here; known: tiny"),
    ],
)
def test_an_error_prints_one_line_and_creates_nothing(home, arguments, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, home=home)
    assert result.exit_code == 2 and line in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_study_with_nothing_to_compare_is_named(home):
    store = open_store(default_url(home))
    store.open_study(specs.study({"sgd": {"method": "mse"}}, name="never"))
    store.close()
    result = run("compare", "never", "tiny", home=home)
    assert result.exit_code == 0 and "sgd" in result.output
    assert "warning: never: left out, no trial is complete yet" in result.output
    result = run("compare", "never", home=home)
    assert result.exit_code == 2 and "never: nothing to compare yet" in result.output
