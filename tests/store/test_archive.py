"""Rows of an archive on both databases. The files are tested in tests/report."""

from dataclasses import replace

from helpers.records import open_study, train_all


def without_ids(archived):
    trials = [
        replace(
            trial,
            id=0,
            study_id=0,
            runs=[replace(run, id=0, trial_id=0) for run in trial.runs],
        )
        for trial in archived.trials
    ]
    curves = [[replace(e, checkpoint_sha256=None) for e in c] for c in archived.curves.values()]
    return replace(archived.study, id=0), trials, archived.race, curves


def test_a_deleted_study_comes_back_with_the_same_rows(store, tmp_path):
    study_id = open_study(store, "mine")
    train_all(store, study_id, tmp_path)
    archived = store.archived("mine")
    store.delete_study(study_id)
    assert store.archived("mine") is None

    imported = store.import_study(archived)
    assert len(imported.added) == 6 and imported.name == "mine"
    assert without_ids(store.archived("mine")) == without_ids(archived)
    again = store.import_study(archived)
    assert again.added == {} and again.kept == 6
