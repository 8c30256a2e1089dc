"""Study files as StudySpecs: defaults, branches, overrides and stored studies."""

import json
import subprocess
import sys
import time

import pytest
from helpers.study_files import OVERRIDES, RICH, load, text

from ressmooth import spec
from ressmooth.errors import ConfigError
from ressmooth.spec import read_stored
from ressmooth.spec.schema import Choices, Range


def test_every_kind_of_key_is_read(tmp_path):
    study = load(tmp_path, RICH)
    assert (study.name, study.seeds) == ("rich", 3)
    assert study.settings == {"dataset": "digits", "epochs": 12, "lr": 1.0}
    assert study.search == spec.Search(
        sampler="tpe", pruner="asha", trials=20, hours=1.5, objective="mean", seed=7
    )
    assert study.grid == {"fraction": [1.0, 0.5]}
    assert study.arms["sgd"].fixed == {"method": "mse", "lr": 0.05}
    assert study.arms["sgd"].grid == {"weight_decay": [1e-3, 1e-4]}
    assert study.arms["smooth"].space == {
        "distribution": Choices(choices=["laplace", "logistic"]),
        "b": Range(low=0.05, high=2.0, log=True),
        "mu": Range(low=0.0, high=0.9, step=0.3),
        "layers": Range(low=1, high=3),
    }
    assert study.resources == spec.Resources(
        workers=2, gpus_per_run=0.25, cpus_per_run=2.0, retries=0
    )


def test_omitted_keys_have_defaults(tmp_path):
    study = load(tmp_path, 'name = "s"\n[arms.a]\n')
    assert (study.description, study.seeds, study.settings, study.grid) == ("", 1, {}, {})
    assert study.search == spec.Search(
        sampler="grid", pruner="none", trials=None, hours=None, objective="max", seed=0
    )
    assert study.resources == spec.Resources(
        workers=None, gpus_per_run="auto", cpus_per_run=1.0, retries=3
    )
    assert [(b.key, b.values, b.space) for b in study.branches] == [("a", {}, {})]


def test_branches_are_arms_by_grid_by_the_arms_own_grids_in_file_order(tmp_path):
    study = load(tmp_path, RICH)
    assert [branch.key for branch in study.branches] == [
        "sgd fraction=1.0 weight_decay=0.001",
        "sgd fraction=1.0 weight_decay=0.0001",
        "sgd fraction=0.5 weight_decay=0.001",
        "sgd fraction=0.5 weight_decay=0.0001",
        "smooth fraction=1.0 through_diffusivity=true",
        "smooth fraction=1.0 through_diffusivity=false",
        "smooth fraction=0.5 through_diffusivity=true",
        "smooth fraction=0.5 through_diffusivity=false",
    ]
    branch = study.branches[1]
    assert branch.cell == {"fraction": 1.0, "weight_decay": 1e-4}
    shared = {"dataset": "digits", "epochs": 12, "lr": 0.05, "method": "mse"}  # the arm's own lr
    assert branch.values == {**shared, **branch.cell}
    assert branch.space == {}
    assert list(study.branches[4].space) == ["distribution", "b", "mu", "layers"]


def test_a_branchs_key_does_not_depend_on_the_order_or_notation_of_the_file(tmp_path):
    one = load(tmp_path, text(arm="b = { grid = [1, 0.5] }\nalpha = { grid = [2] }"))
    other = load(tmp_path, text(arm="alpha = { grid = [2.0] }\nb = { grid = [1.0, 0.5] }"))
    assert [branch.key for branch in one.branches] == ["a alpha=2.0 b=1.0", "a alpha=2.0 b=0.5"]
    assert {branch.key for branch in other.branches} == {branch.key for branch in one.branches}
    named = load(tmp_path, text(arm='distribution = { grid = ["laplace"] }'))
    assert named.branches[0].key == 'a distribution="laplace"'


def test_a_stored_study_is_read_back_equal(tmp_path):
    study = load(tmp_path, RICH)
    assert read_stored(json.loads(json.dumps(study.to_dict()))) == study
    assert study.to_dict()["settings"]["dataset"] == "digits"


@pytest.mark.parametrize("damage", ["settings", "arms", "name", "search"])
def test_a_damaged_stored_study_is_a_config_error(tmp_path, damage):
    stored = {**load(tmp_path, RICH).to_dict(), damage: 7}
    with pytest.raises(ConfigError, match="stored study"):
        read_stored(stored)
    del stored[damage]
    if damage != "search":
        with pytest.raises(ConfigError, match="stored study"):
            read_stored(stored)


def test_pruner_options_are_stored_only_when_they_are_given(tmp_path):
    stored = load(tmp_path, RICH).to_dict()
    assert not {"min_epochs", "reduction", "warmup"} & set(stored["search"])
    given = load(tmp_path, RICH, ["search.min_epochs=2", "search.reduction=4"])
    assert (given.search.min_epochs, given.search.reduction) == (2, 4)
    assert read_stored(json.loads(json.dumps(given.to_dict()))) == given


def test_trials_are_divided_over_the_cells_of_an_arm(tmp_path):
    study = load(tmp_path, RICH, ["search.trials=7"])
    assert [study.planned_trials(branch) for branch in study.branches] == [1, 1, 1, 1, 2, 2, 2, 1]
    hours = load(tmp_path, RICH.replace("trials = 20\n", ""))
    assert [hours.planned_trials(branch) for branch in hours.branches] == [1] * 4 + [0] * 4


def test_a_stored_study_stays_readable_under_rules_that_came_later(tmp_path):
    stored = load(tmp_path, RICH).to_dict()
    stored["search"]["trials"] = 1  # of 4 cells
    stored["grid"]["nu"] = [1.0, 2.0]
    stored["arms"]["sgd"]["fixed"]["b"] = 0.3
    assert read_stored(stored).arms["sgd"].fixed["b"] == 0.3
    stored["arms"]["smooth"]["space"] = {}
    assert read_stored(stored).search.pruner == "asha"


def test_what_has_no_effect_can_be_removed_from_a_recorded_study(tmp_path):
    now = load(tmp_path, text(arm='method = "mse"'))
    stored = now.to_dict()
    stored["arms"]["a"]["fixed"]["b"] = 0.3
    stored["search"]["pruner"] = "asha"
    assert spec.differences(stored, now) == []


RACE = "seeds = { race = true, at_least = 2, at_most = 8 }"


def test_seeds_may_race(tmp_path):
    study = load(tmp_path, text(top=RACE))
    assert (study.is_race, study.seeds, study.at_most) == (True, 2, 8)
    assert read_stored(json.loads(json.dumps(study.to_dict()))) == study
    study = load(tmp_path, text(top="seeds = { race = true }"), ["seeds.at_most=20"])
    assert (study.seeds, study.at_most) == (2, 20)
    study = load(tmp_path, text(top="seeds = 5"))
    assert (study.is_race, study.seeds, study.at_most) == (False, 5, 5)
    assert "most_seeds" not in study.to_dict()


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (RACE, "seeds = { race = true, at_least = 3, at_most = 12 }", []),
        (RACE, "seeds = 8", []),  # every trial gets what only some had
        (RACE, "seeds = 7", ["seeds.at_most was 8, is 7: it can only be raised"]),
        (RACE, RACE.replace("8", "7"), ["seeds.at_most was 8, is 7: it can only be raised"]),
        ("seeds = 2", RACE, []),
        ("seeds = 5", RACE, ["seeds.at_least was 5, is 2: it can only be raised"]),
    ],
)
def test_a_recorded_study_may_begin_to_race(tmp_path, before, after, lines):
    stored = load(tmp_path, text(top=before)).to_dict()
    assert spec.differences(stored, load(tmp_path, text(top=after))) == lines


def test_overrides(tmp_path):
    study = load(tmp_path, RICH, OVERRIDES)
    assert (study.seeds, study.search.trials, study.search.hours) == (1, 50, 0.01)
    assert (study.description, study.settings["model"]) == ("two words", "resnet20")
    assert study.grid == {"fraction": [0.25]}
    assert list(study.arms) == ["sgd", "smooth", "new"]
    assert study.arms["sgd"].fixed["lr"] == 0.2
    assert study.arms["smooth"].space["b"] == Choices(choices=[1.0])
    assert study.arms["smooth"].space["mu"] == Range(low=0.0, high=0.6, step=0.3)


def test_the_same_study_has_no_differences(tmp_path):
    study = load(tmp_path, RICH)
    stored = json.loads(json.dumps(study.to_dict()))
    assert spec.differences(stored, study) == []
    free = [
        "description=x",
        "seeds=4",
        "confirm=3",
        "reference=smooth",
        "search.trials=4",
        "search.hours=9",
        "resources.workers=1",
    ]
    assert spec.differences(stored, load(tmp_path, RICH, [*free, "arms.new={ b = 2 }"])) == []
    assert (
        spec.differences(
            stored, load(tmp_path, RICH.replace("hours = 1.5", "").replace(" 2,", " 2.0,"))
        )
        == []
    )


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seeds=2", "seeds was 3, is 2: it can only be raised"),
        ("confirm=1", "confirm was 2, is 1: it can only be raised"),
        ("name=x", "name was 'rich', is 'x'"),
        ("epochs=5", "epochs was 12, is 5"),
        ("model=small", "model was not set, is 'small'"),
        ("search.sampler=random", "search.sampler was 'tpe', is 'random'"),
        ("search.pruner=none", "search.pruner was 'asha', is 'none'"),
        ("search.objective=max", "search.objective was 'mean', is 'max'"),
        ("search.seed=8", "search.seed was 7, is 8"),
        ("search.min_epochs=2", "search.min_epochs was not set, is 2"),
        ("search.reduction=2", "search.reduction was not set, is 2"),
        ("grid.fraction=[0.5]", "grid.fraction was [1.0, 0.5], is [0.5]"),
        ("grid.alpha=[2]", "grid.alpha was not set, is [2.0]"),
        ("arms.sgd.lr=0.5", "arms.sgd.lr was 0.05, is 0.5"),
        ("arms.sgd.momentum=0.5", "arms.sgd.momentum was not set, is 0.5"),
        ("arms.sgd.weight_decay=0", "arms.sgd.weight_decay was {'grid': [0.001, 0.0001]}, is 0.0"),
        ("arms.smooth.b.high=3", "arms.smooth.b was {'low': 0.05, 'high': 2.0, 'log': True, 'ste"),
    ],
)
def test_differences_that_make_a_different_study(tmp_path, override, line):
    stored = load(tmp_path, RICH).to_dict()
    (found,) = spec.differences(stored, load(tmp_path, RICH, [override]))
    assert found.startswith(line)


def test_removing_an_arm_makes_a_different_study(tmp_path):
    both, one = load(tmp_path, text(end="[arms.b]\nalpha = 2")), load(tmp_path, text())
    (line,) = spec.differences(both.to_dict(), one)
    assert line == "arms.b is missing: arms can only be added"
    assert spec.differences(one.to_dict(), both) == []


@pytest.mark.parametrize("name", ["quickstart", "search-fashion"])
def test_bundled_studies_load_quickly(name):
    started = time.perf_counter()
    study = spec.load(name)
    assert time.perf_counter() - started < 0.3
    assert study.name == name


def test_quickstart_compares_sgd_with_laplace_and_logistic():
    study = spec.load("quickstart")
    assert list(study.arms) == ["sgd", "laplace", "logistic"]
    assert (study.settings["dataset"], study.settings["model"]) == ("digits", "small")
    epochs = study.settings["epochs"] * study.seeds * len(study.branches)
    assert study.seeds == 2 and epochs <= 200  # about 0.1 s each


def test_search_fashion_searches_all_of_smoothing():
    study = spec.load("search-fashion")
    assert list(study.arms["sgd"].space) == ["weight_decay"]
    assert set(study.arms["smoothing"].space) == {
        "distribution",
        "weight_decay",
        "b",
        "mu",
        "alpha",
    }
    assert (study.search.sampler, study.search.pruner) == ("tpe", "asha")


def test_loading_imports_nothing_heavy():
    code = "import sys; from ressmooth import spec; spec.load('quickstart'); print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"torch", "numpy", "optuna", "mlflow", "sqlalchemy", "ray", "matplotlib", "sklearn"}
    assert heavy & set(output.stdout.split()) == set()
