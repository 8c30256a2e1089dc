"""The tree of runs, and how many epochs it has saved."""

from dataclasses import replace

from helpers.records import open_study

from ressmooth.report.tree import saved, tree_of


def recorded(store, *forks):
    """Return the trials of a study with 1 + 2 runs of 3 epochs, of which some fork."""
    study_id = open_study(store, "s", seeds=1)
    trials = store.trials(study_id)
    changed = []
    for number, (trial, fork) in enumerate(zip(trials, forks, strict=True), 1):
        forked = {"forked_from": fork[0], "forked_at": fork[1]}
        run = replace(trial.runs[0], id=number, last_epoch=3, **forked)
        changed.append(replace(trial, runs=[run]))
    return changed


def test_a_run_stands_under_the_one_whose_prefix_it_continues(store):
    trials = recorded(store, (None, None), (1, 1), (1, 2))
    assert tree_of(trials).splitlines() == [
        "run 1, sgd seed 0: epochs 1 to 3 of 3",
        "├─ run 3, laplace b=0.5 seed 0: epochs 3 to 3 of 3",
        "└─ run 2, laplace b=0.3 seed 0: epochs 2 to 3 of 3",
        "",
        "2 runs continue the prefix of another: 6 of 9 epochs were trained (67 %)",
    ]


def test_a_prefix_can_be_continued_twice(store):
    lines = tree_of(recorded(store, (3, 2), (None, None), (2, 1))).splitlines()
    assert lines[:3] == [
        "run 2, laplace b=0.3 seed 0: epochs 1 to 3 of 3",
        "└─ run 3, laplace b=0.5 seed 0: epochs 2 to 3 of 3",
        "   └─ run 1, sgd seed 0: epochs 3 to 3 of 3",
    ]


def test_a_study_without_forks_says_so(store):
    trials = recorded(store, *[(None, None)] * 3)
    assert saved(trials) == ""
    assert tree_of(trials).endswith("\n\nNo run continues the prefix of another.")
