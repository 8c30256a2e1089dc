"""The plan of a recorded study."""

import re
from contextlib import closing

import pytest
from helpers import specs
from helpers.planning import drain, finish

from ressmooth.engines.local import LocalEngine
from ressmooth.engines.plan import plan
from ressmooth.search.planner import Planner
from ressmooth.store import default_url, open_store


@pytest.fixture
def record(tmp_path):
    """Return a function that lets a planner act on a study in `tmp_path`."""

    def act(spec, action):
        with closing(open_store(default_url(tmp_path))) as store:
            action(Planner(store, store.open_study(spec), spec))

    return act


def searched(trials, **search):
    arms = {"smooth": {"b": {"low": 0.1, "high": 1.0}, "layers": {"grid": [1, 2]}}}
    search = {"sampler": "random", "trials": trials, **search}
    return specs.study(arms, seeds=3, epochs=9, search=search)


def counts(spec, home):
    text = plan(spec, LocalEngine(spec.resources, 1), home, None, "")
    return re.search(r"CPU: (.*)\.$", text, re.MULTILINE)[1]


def test_a_new_study_is_counted_per_arm(tmp_path):
    assert counts(searched(5), tmp_path) == "15 runs in about 15 rounds"


def test_a_study_with_more_trials_than_planned_is_done(tmp_path, record):
    record(searched(4), drain)
    text = "12 runs, 12 of them done, in about 0 rounds"
    assert counts(searched(4), tmp_path) == text
    assert counts(searched(2), tmp_path) == text


def test_a_pruned_trial_counts_with_the_runs_that_it_has(tmp_path, record):
    spec = searched(2, pruner="asha")
    record(spec, lambda planner: finish(planner, planner.next(), "pruned"))
    assert counts(spec, tmp_path) == "at most 4 runs, 1 of them done, in about 3 rounds"
    record(spec, drain)
    assert counts(spec, tmp_path) == "4 runs, 4 of them done, in about 0 rounds"


def test_the_plan_names_the_rungs(tmp_path):
    spec = searched(2, pruner="asha")
    assert "after 1, 3 of 9 epochs" in plan(
        spec, LocalEngine(spec.resources, 1), tmp_path, None, ""
    )


def test_a_race_is_planned_from_its_fewest_to_its_most_runs(tmp_path):
    arms = {"sgd": {"method": "mse"}, "smooth": {"b": {"grid": [0.1, 0.3]}}}
    race = {"race": True, "at_least": 2, "at_most": 5}
    spec = specs.study(arms, seeds=race, confirm=3)
    assert counts(spec, tmp_path) == "at least 12 runs in about 12 rounds"
    text = plan(spec, LocalEngine(spec.resources, 1), tmp_path, None, "")
    assert "Seeds race: 12 to 21 runs." in text


@pytest.mark.parametrize(
    ("cutoff", "says"),
    [
        (1e-3, "cutoff: 36 of 60 epochs are trained (60 %)."),
        (0.0, "In a new study, --set cutoff=0.001 would leave 36 of 60 epochs (60 %): "),
    ],
)
def test_the_plan_says_what_shared_prefixes_save_or_would_save(tmp_path, cutoff, says):
    arms = {"sgd": {"method": "mse"}, "smooth": {"b": {"grid": [0.1, 0.1001]}}}
    spec = specs.study(arms, epochs=10, seeds=2, cutoff=cutoff)
    text = plan(spec, LocalEngine(spec.resources, 1), tmp_path, None, "")
    assert says in " ".join(text.split())


def test_the_plan_says_nothing_about_prefixes_if_there_are_none(tmp_path):
    spec = searched(2)
    assert "cutoff" not in plan(spec, LocalEngine(spec.resources, 1), tmp_path, None, "")
