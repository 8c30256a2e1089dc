"""Searches that begin with the trials of a recorded study, without training anything."""

import json

import pytest
from helpers import specs
from helpers.planning import drain, finish
from sqlalchemy import text

from ressmooth.errors import ConfigError
from ressmooth.search.notes import notes
from ressmooth.search.planner import Planner
from ressmooth.search.warm_start import find_warm_start
from ressmooth.spec import WarmStart, read_stored
from ressmooth.store import default_url, open_store, studies

RANGE = {"low": 0.1, "high": 1.0}
TPE = {"sampler": "tpe", "trials": 6}


def old(b=RANGE, trials=12, **settings):
    search = {"sampler": "random", "trials": trials}
    return specs.study(
        {"smooth": {"b": b}, "sgd": {"method": "mse"}}, search=search, name="old", **settings
    )


def new(arms=None, **changes):
    search = {**TPE, "warm_start": "old", **changes.pop("search", {})}
    arms = arms or {"smooth": {"b": RANGE}}
    return specs.study(arms, search=search, name="new", **changes)


def planner_of(store, spec):
    return Planner(store, store.open_study(spec), spec)


def complete(store, spec, stop_after=None):
    """Let each trial be as good as its b is near to 0.3."""
    planner = planner_of(store, spec)
    count = 0
    while count != stop_after and (run := planner.next()) is not None:
        finish(planner, run, accuracy=90 - (run.config["b"] - 0.3) ** 2)
        count += 1
    return planner


def params(store, name):
    return [trial.params for trial in store.trials(store.study(name).id)]


def rename(store, before, after):
    with store.database.engine.begin() as connection:
        query = text("UPDATE study SET name = :after WHERE name = :before")
        connection.execute(query, {"before": before, "after": after})


def test_told_trials_guide_the_search_and_are_no_trials_of_it(store):
    complete(store, old())
    planner = complete(store, new())
    assert planner.sampler.searches["smooth"].study.trials[0].value is not None
    assert len(planner.sampler.searches["smooth"].study.trials) == 12 + 6
    assert len(params(store, "new")) == 6 == planner.progress().runs_known
    (winner,) = store.winners(planner.study_id)
    assert winner.trial.study_id == planner.study_id and winner.tried == 6
    cold = complete(store, specs.study({"smooth": {"b": RANGE}}, search=TPE, name="cold"))
    assert params(store, "cold") != params(store, "new")
    assert len(cold.sampler.searches["smooth"].study.trials) == 6


def test_what_was_told_stays_the_same_whatever_becomes_of_the_old_study(store):
    complete(store, old())
    whole = complete(store, new())
    expected, told = params(store, "new"), whole.store.warm_start(new())
    rename(store, "new", "whole")
    complete(store, new(), stop_after=2)
    complete(store, old(trials=20))
    assert store.warm_start(new()) == told
    complete(store, new(), stop_after=2)
    rename(store, "old", "gone")
    complete(store, new())
    assert params(store, "new") == expected
    assert json.loads(json.dumps(told.to_dict())) == store.study("new").spec["warm_start"]


def test_of_two_launchers_that_open_a_study_at_once_the_first_decides(postgres_url, monkeypatch):
    store = open_store(postgres_url)
    complete(store, old())
    find = studies._warm_start
    told = []

    def overtaken(connection, spec):
        """Return what is told, after another launcher has recorded the study with less."""
        found = find(connection, spec)
        if not told:
            told.append(True)
            other = open_store(postgres_url)
            monkeypatch.setattr(studies, "_warm_start", lambda *_: WarmStart(used=1, completed=2))
            other.open_study(spec)
            other.close()
            monkeypatch.setattr(studies, "_warm_start", find)
        return found

    monkeypatch.setattr(studies, "_warm_start", overtaken)
    store.open_study(new())
    assert told and store.warm_start(new()) == WarmStart(used=1, completed=2)
    store.close()


def test_a_study_that_goes_on_tells_more_to_a_new_one(store):
    complete(store, old())
    assert store.warm_start(new()).used == 12
    complete(store, old(trials=14))
    assert store.warm_start(new()).used == 14


def test_only_completed_trials_are_told(store):
    planner = planner_of(store, old(trials=5))
    for state in ("complete", "failed", "pruned", "complete"):
        run = planner.next()
        while run.config["method"] == "mse":
            run = planner.next()
        finish(planner, run, state)
    found = store.warm_start(new())
    assert (found.used, found.completed) == (2, 2)


def test_confirmations_are_not_told(store):
    complete(store, old(trials=3, confirm=2))
    found = store.warm_start(new())
    assert (found.used, found.completed, found.differing) == (3, 4, ["arm"])  # sgd is one


FITTING = [  # arms and settings of the new study, trials of old that it uses, what the others have
    ({"smooth": {"b": {"low": 0.1, "high": 2.0}}}, {}, 12, ["arm"]),
    ({"smooth": {"b": RANGE, "alpha": {"low": 0.5, "high": 2.0}}}, {}, 12, ["arm"]),
    ({"smooth": {"b": RANGE, "alpha": {"low": 1.5, "high": 2.0}}}, {}, 0, ["alpha", "arm"]),
    ({"smooth": {"b": RANGE}}, {"epochs": 4}, 0, ["arm", "epochs"]),
    ({"smooth": {"b": RANGE}}, {"fraction": 0.3, "epochs": 4}, 0, ["arm", "epochs", "fraction"]),
    ({"smooth": {"b": RANGE}}, {"device": "cpu", "threads": 2, "nu": 3.0}, 12, ["arm"]),
    ({"other": {"b": RANGE}}, {}, 0, ["arm"]),
]


@pytest.mark.parametrize(("arms", "settings", "used", "differing"), FITTING)
def test_trials_are_used_if_the_new_study_could_have_made_them(
    store, arms, settings, used, differing
):
    complete(store, old())
    spec = new(arms, **settings)
    found = store.warm_start(spec)
    assert (found.used, found.completed, found.differing) == (used, 13, differing)
    assert complete(store, spec).progress().runs_done == 6


def test_trials_outside_the_new_range_are_not_told(store):
    complete(store, old())
    found = store.warm_start(new({"smooth": {"b": {"low": 0.5, "high": 1.0}}}))
    values = {t.params["b"]: t.value for t in store.trials(store.study("old").id) if t.params}
    inside = [({"b": b}, value) for b, value in values.items() if b >= 0.5]
    assert 0 < len(inside) < 12 and found.used == len(inside)
    assert [(point, value) for point, value in found.trials["smooth"]] == inside
    assert found.differing == ["arm", "b"]


def test_each_cell_is_told_its_own_trials(store):
    arms = {"smooth": {"b": RANGE, "distribution": {"grid": ["laplace", "logistic"]}}}
    complete(store, specs.study(arms, search={"sampler": "random", "trials": 8}, name="old"))
    found = store.warm_start(new(arms))
    assert {key: len(trials) for key, trials in found.trials.items()} == {
        'smooth distribution="laplace"': 4,
        'smooth distribution="logistic"': 4,
    }
    one = store.warm_start(new({"smooth": {"b": RANGE, "distribution": "logistic"}}))
    assert one.trials["smooth"] == found.trials['smooth distribution="logistic"']


def test_an_unknown_study_is_refused_with_the_known_ones_and_nothing_is_recorded(store):
    complete(store, old())
    with pytest.raises(ConfigError, match="'olld': no such study here; known: old$"):
        store.open_study(new(search={"warm_start": "olld"}))
    assert [study.name for study in store.studies()] == ["old"]


def test_without_a_database_no_study_is_known_and_nothing_is_created(tmp_path):
    with pytest.raises(ConfigError, match="'old': no such study here; known: none yet"):
        find_warm_start(new(), tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


def test_values_of_another_objective_or_metric_are_refused(store):
    complete(store, old())
    with pytest.raises(ConfigError, match="its search.objective is 'max', not 'mean'"):
        store.open_study(new(search={"objective": "mean"}))
    with pytest.raises(ConfigError, match="its metric is 'accuracy', not 'nll'"):
        store.open_study(new(metric="nll"))
    assert [study.name for study in store.studies()] == ["old"]


def test_a_warm_start_cannot_be_added_or_changed_later(store):
    complete(store, old())
    complete(store, specs.study({"smooth": {"b": RANGE}}, search=TPE, name="new"))
    with pytest.raises(ConfigError, match="search.warm_start was not set, is 'old'"):
        store.open_study(new())


def test_an_arm_that_is_added_later_begins_with_nothing(store):
    complete(store, old())
    complete(store, new())
    more = new({"smooth": {"b": RANGE}, "sgd": {"method": "mse", "lr": {"low": 0.01, "high": 0.2}}})
    planner = complete(store, more)
    assert {key: len(s.study.trials) for key, s in planner.sampler.searches.items()} == {
        "smooth": 18,
        "sgd": 6,
    }


def test_the_plan_says_how_many_trials_are_used(store):
    complete(store, old())
    spec = new()
    assert notes(spec, store.warm_start(spec)) == [
        "tpe begins with 12 of the 13 completed trials of old (others differ in arm)."
    ]
    narrow = new({"smooth": {"b": {"low": 0.5, "high": 1.0}}}, search={"sampler": "cmaes"})
    assert notes(narrow, store.warm_start(narrow))[1] == (
        "cmaes needs 10 of them per cell: too few for smooth."
    )
    spec = new({"smooth": {"b": RANGE}}, epochs=4)
    first, second = notes(spec, store.warm_start(spec))
    assert first.startswith("tpe begins with 0 of the 13") and second.startswith("tpe draws the")


@pytest.mark.parametrize(
    ("changes", "is_suggested"),
    [
        ({"arms": {"smooth": {"b": {"low": 0.1, "high": 2.0}}, "sgd": {"method": "mse"}}}, True),
        ({"search": {"seed": 3}}, True),
        ({"search": {"sampler": "cmaes"}}, True),
        ({"search": {"sampler": "random"}}, False),
        ({"search": {"objective": "mean"}}, False),
        ({"epochs": 5}, False),
        ({"arms": {"smooth": {"b": 0.5}, "sgd": {"method": "mse"}}}, False),
    ],
)
def test_a_changed_search_suggests_a_warm_start(store, changes, is_suggested):
    arms = {"smooth": {"b": RANGE}, "sgd": {"method": "mse"}}
    store.open_study(specs.study(arms, search=TPE, name="old"))
    changed = {"arms": arms, **changes, "search": {**TPE, **changes.get("search", {})}}
    with pytest.raises(ConfigError) as error:
        store.open_study(specs.study(name="old", **changed))
    last = str(error.value).splitlines()[-1]
    assert last.startswith("To run this as another study, add --set name=old-2")
    assert (" --set search.warm_start=old" in last) == is_suggested


def test_a_launch_finds_what_the_store_finds(tmp_path):
    store = open_store(default_url(tmp_path))
    drain(planner_of(store, old()))
    assert find_warm_start(new(), tmp_path) == store.warm_start(new())
    assert find_warm_start(old(), tmp_path) is None
    store.close()


def with_plugin(spec, source):
    """Return the study with arm `smooth` on a method of a plug-in, whose setting is searched."""
    stored = spec.to_dict()
    space = {"gamma": {"low": 1.0, "high": 3.0}}
    arm = {"fixed": {"method": "focal"}, "grid": {}, "space": space}
    plugins = [{"file": "focal.py", "source": source}]
    return read_stored({**stored, "arms": {"smooth": arm}, "plugins": plugins})


def test_trials_of_a_plug_in_are_told_only_if_its_code_is_the_same(store):
    code = "import ressmooth\n@ressmooth.method\ndef focal(gamma: float = 2.0): ...\n"
    planner = planner_of(store, with_plugin(old(trials=4), code))
    assert drain(planner) == 4
    found = store.warm_start(with_plugin(new(), code))
    assert found.used == 4 and all(1 <= point["gamma"] <= 3 for point, _ in found.trials["smooth"])
    changed = store.warm_start(with_plugin(new(), code + "# other\n"))
    assert (changed.used, changed.differing) == (0, ["plug-in"])
