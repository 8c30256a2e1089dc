"""What the plan says about samplers and pruners."""

import inspect
import subprocess
import sys

import optuna
import pytest
from helpers import specs

from ressmooth.search.notes import COMPLETED_TRIALS, RANDOM_TRIALS, notes

ARM = {"b": {"low": 0.1, "high": 1.0}}


def notes_of(arms=None, epochs=12, **search):
    search = {"sampler": "random", "trials": 40, **search}
    return notes(specs.study(arms or {"smooth": ARM}, epochs=epochs, search=search))


def test_the_defaults_of_own_data_are_named_unless_the_study_sets_them():
    arms = {"smooth": {"dataset": "npz:/data/x.npz", "b": {"low": 0.1, "high": 1.0}}}
    (found,) = notes_of(arms, epochs=7)
    assert found == "npz:/data/x.npz has the defaults weight_decay 0.0005, augmentation none."
    arms["smooth"] |= {"weight_decay": 0.1, "augmentation": "flip"}
    assert notes_of(arms, epochs=7) == []


@pytest.mark.parametrize(
    ("search", "note"),
    [
        ({"pruner": "asha"}, "asha stops a trial after 1, 3, 9 of 12 epochs"),
        ({"pruner": "asha", "min_epochs": 2}, "after 2, 6 of 12 epochs"),
        (
            {"pruner": "asha", "reduction": 4},
            "1, 4 of 12 epochs if it is not in the best 1/4",
        ),
        ({"pruner": "asha", "min_epochs": 12}, "asha stops nothing: it begins after 12 of 12"),
        ({"pruner": "median"}, "median stops a trial from epoch 3 of 12 on"),
        ({"pruner": "median", "warmup": 0}, "from epoch 1 of 12 on"),
        ({"pruner": "median", "warmup": 20}, "median stops nothing: it begins after 20 of 12"),
    ],
)
def test_a_pruner_is_described_with_its_epochs(search, note):
    (found,) = notes_of(**search)
    assert note in found


def test_nothing_is_said_about_plain_searches_and_grids():
    assert notes_of() == []
    assert notes(specs.study({"sgd": {"method": "mse"}})) == []


def test_each_number_of_epochs_has_its_rungs():
    arms = {"smooth": {**ARM, "epochs": {"grid": [9, 27]}}}
    short, long = notes_of(arms, epochs=5, pruner="asha")
    assert "after 1, 3 of 9 epochs" in short and "after 3, 9 of 27 epochs" in long


def test_tpe_with_no_more_trials_than_its_random_start_is_told_so():
    arms = {"one": ARM, "two": {**ARM, "layers": {"grid": [1, 2]}}, "sgd": {"method": "mse"}}
    one, two = notes_of(arms, sampler="tpe", trials=9)
    assert "one has 9 trials per cell" in one and one.endswith("Set search.trials above 10.")
    assert "two has 5 trials per cell" in two and two.endswith("Set search.trials above 20.")
    assert len(notes_of(arms, sampler="tpe", trials=11)) == 1
    assert notes_of(arms, sampler="tpe", trials=21) == []
    assert notes_of(arms, sampler="random", trials=9) == []
    assert notes_of(arms, sampler="tpe", trials=None, hours=1) == []


def test_optunas_defaults_are_kept_so_that_recorded_searches_resume():
    tpe = inspect.signature(optuna.samplers.TPESampler).parameters
    median = inspect.signature(optuna.pruners.MedianPruner).parameters
    assert tpe["n_startup_trials"].default == RANDOM_TRIALS
    assert median["n_startup_trials"].default == COMPLETED_TRIALS


def test_notes_do_not_load_optuna():
    code = "import sys, ressmooth.search.notes; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
