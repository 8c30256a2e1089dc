"""`ressmooth list` and `show`."""

import re
import subprocess
from dataclasses import replace

import pytest
from helpers import records, specs
from helpers.commands import run
from helpers.large import fill, large_spec

from ressmooth.store import Holder, default_url, open_store

pytestmark = pytest.mark.usefixtures("mlflow_is_unreachable")


def test_list_shows_the_study_and_its_best_arm(home):
    output = run("list", home=home).output
    assert "tiny" in output and "1 complete, 1 failed" in output and "sgd" in output


def test_show_lists_every_run_and_why_one_failed(home):
    output = run("show", "tiny", home=home).output
    assert "run 2 (bad, seed 0): diverged at epoch 1" in output
    assert "2/2" in output and "accuracy in %" in output


def test_show_draws_the_tree_of_runs(home):
    output = run("show", "tiny", "--tree", home=home).output
    assert output.startswith("run 1, sgd seed 0: epochs 1 to 2 of 2\nrun 2, bad seed 0: ")
    assert "No run continues the prefix of another." in output


def test_show_names_the_owner(tmp_path):
    store = open_store(default_url(tmp_path))
    store.submit(specs.study({"sgd": {"method": "mse"}}, name="owned"), "anna\x1b[2J@lab", None)
    store.close()
    assert run("show", "owned", home=tmp_path).output.startswith(
        "owner: anna\\x1b[2J@lab, submitted 20"
    )


def test_an_unknown_study_names_the_known_ones(home):
    result = run("show", "tyni", home=home)
    assert result.exit_code == 2
    assert result.stderr == "error: no study 'tyni' here; known: tiny\n"


def test_list_creates_nothing(tmp_path):
    result = run("list", home=tmp_path / "none")
    assert result.exit_code != 0 and "launch a study to create it" in result.stderr
    assert not (tmp_path / "none").exists()


def test_list_names_no_best_arm_in_a_tie_and_no_dead_launcher(tmp_path):
    store = open_store(default_url(tmp_path))
    arms = {"sgd": {"method": "mse"}, "laplace": {"b": 0.5}}
    study = records.simulate(store, specs.study(arms, name="tied"), lambda config: 90.0)
    begun = records.open_study(store, "begun", seeds=1)
    store.claim(store.trials(begun)[0].runs[0].id, records.ENVIRONMENT)
    dead = subprocess.Popen(["true"])
    dead.wait()
    store.acquire(study.id, replace(Holder.here(), pid=dead.pid))
    store.close()
    output = run("list", home=tmp_path).output
    assert "2 arms tie at 90.00 %" in output and f"/{dead.pid}" not in output
    for shown in (output, run("show", "begun", home=tmp_path).output):
        assert "interrupted" in shown and "running" not in shown


def test_show_has_pages(tmp_path):
    store = open_store(default_url(tmp_path))
    fill(store, large_spec(201), 201)
    store.close()
    first, last = (run("show", "large", *more, home=tmp_path) for more in ((), ("--page", "3")))
    assert first.output.count("epochs ") == last.output.count("epochs ") == 1  # the head
    assert f"page 1 of 3; next: ressmooth show large --page 2 --home {tmp_path}" in first.stderr
    runs = [
        re.findall(r"^(?:sgd|laplace) .*?(\d+) +0 +\d/9", r.stdout, re.M) for r in (first, last)
    ]
    assert runs == [[str(n) for n in range(1, 101)], ["201"]]
    assert "accuracy in %" in last.stdout and "page 3" not in last.stderr
    beyond = run("show", "large", "--page", "4", home=tmp_path)
    assert beyond.exit_code == 2 and "--page 4: large has 3 pages" in beyond.stderr
