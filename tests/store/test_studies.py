"""Studies and trials in the Store, and the queries of comparisons."""

from datetime import UTC, datetime, timedelta

import pytest
from helpers.store_rows import ENVIRONMENT, add_run, add_trial, config, epoch, spec
from sqlalchemy import text

from ressmooth.errors import ConfigError
from ressmooth.spec import read_stored
from ressmooth.store import Store


def test_a_study_is_recorded_once(store):
    first = store.open_study(spec(text="name = 'demo'"))
    assert store.open_study(spec(text="name = 'demo'")) == first
    assert store.open_study(spec(name="other")) != first
    study = store.study("demo")
    assert (study.id, study.name, study.file_text) == (first, "demo", "name = 'demo'")
    assert study.spec == spec().to_dict()
    assert (study.held_by, study.held_at, study.elapsed) == (None, None, 0.0)
    assert len(study.uid) == 32
    assert [row.name for row in store.studies()] == ["demo", "other"]
    assert store.study("nowhere") is None


def test_allowed_changes_of_a_study_are_stored(store):
    before = store.open_study(spec())
    changed = spec(seeds=3, description="more seeds", text="new")
    assert store.open_study(changed) == before
    study = store.study("demo")
    assert (study.spec, study.file_text) == (changed.to_dict(), "new")


def test_a_study_that_was_recorded_without_gpus_resumes_with_auto(store):
    before = store.open_study(spec(resources={"gpus_per_run": 0.0}))
    assert store.open_study(spec()) == before
    assert store.study("demo").spec["resources"]["gpus_per_run"] == "auto"
    assert store.open_study(read_stored(store.study("demo").spec)) == before


def test_a_different_study_with_the_same_name_is_refused(store):
    store.open_study(spec(text="old"))
    with pytest.raises(ConfigError) as error:
        store.open_study(spec(settings={"dataset": "fashion_mnist"}, text="new"))
    recorded, difference, allowed, another = str(error.value).splitlines()
    assert recorded == "study 'demo' is recorded with other settings:"
    assert difference == "dataset was 'digits', is 'fashion_mnist'"
    for key in ("search.trials", "search.hours", "description", "resources", "seeds", "arms"):
        assert key in allowed
    assert another.endswith(" add --set name=demo-2")
    assert store.study("demo").file_text == "old"
    assert store.study("demo").spec == spec().to_dict()


def test_a_study_is_renamed_in_its_spec_and_its_text(store):
    study_id = store.open_study(spec(text="# mine\nname = 'demo'\n"))
    store.open_study(spec(name="other", text="name = 'other'"))
    store.rename_study(study_id, "new")
    study = store.study("new")
    assert (study.id, study.spec) == (study_id, spec(name="new").to_dict())
    assert study.file_text == '# mine\nname = "new"\n'
    assert store.study("demo") is None
    store.rename_study(study_id, "new")  # a repeated transaction changes nothing
    with pytest.raises(ConfigError, match="there is a study 'other' already"):
        store.rename_study(study_id, "other")
    assert store.study("new") == study


def test_a_deleted_study_takes_all_its_rows_with_it_and_no_others(store):
    for name in ("demo", "other"):
        study_id = store.open_study(spec(name=name))
        first = add_trial(store, study_id, seeds=2)
        attempt = store.claim(first.runs[0].id, ENVIRONMENT)
        store.record_epoch(attempt, epoch(1), None)
        store.announce_study(study_id)
        store.add_trial(
            study_id,
            arm="sgd",
            condition={},
            branch="confirm sgd",
            number_in_branch=0,
            params={},
            configs=[config(10_000)],
            sampler_state={},
            confirms=first.id,
        )

    def counts():
        tables = ("study", "trial", "run", "epoch", "outbox")
        with store.database.engine.connect() as connection:
            return [connection.scalar(text(f"SELECT count(*) FROM {name}")) for name in tables]

    before = counts()
    store.delete_study(store.study("demo").id)
    assert counts() == [number // 2 for number in before] and all(counts())
    assert [study.name for study in store.studies()] == ["other"]


def test_a_trial_has_its_runs(store):
    study_id = store.open_study(spec())
    added = store.add_trial(
        study_id,
        arm="laplace",
        condition={"fraction": 0.5, "dataset": "digits"},
        branch="laplace b=0.3",
        number_in_branch=4,
        params={"b": 0.3},
        configs=[config(1), config(0)],
        sampler_state={"seed": 7},
    )
    assert store.trial(added.id) == added
    assert (added.study_id, added.arm, added.branch) == (study_id, "laplace", "laplace b=0.3")
    assert (added.number_in_branch, added.params) == (4, {"b": 0.3})
    assert (added.condition, added.confirms) == ({"fraction": 0.5, "dataset": "digits"}, None)
    assert (added.state, added.value, added.sampler_state) == ("running", None, {"seed": 7})
    assert [run.seed for run in added.runs] == [0, 1]
    run = added.runs[1]
    assert (run.trial_id, run.config) == (added.id, config(1))
    assert (run.state, run.attempt, run.failures, run.last_epoch) == ("waiting", 0, 0, 0)
    assert run.max_acc is run.error is run.versions is run.started_at is None
    assert run == store.run(run.id)
    assert len({run.uid for run in added.runs}) == 2


def test_a_trial_is_identified_by_its_branch_and_number(store):
    study_id = store.open_study(spec())
    first = add_trial(store, study_id, number=0, seeds=2, params={"lr": 0.1})
    assert add_trial(store, study_id, number=0, seeds=3, params={"lr": 0.2}) == first
    others = [
        add_trial(store, study_id, number=1),
        add_trial(store, study_id, number=0, branch="adam"),
        add_trial(store, store.open_study(spec(name="other")), number=0),
    ]
    assert len({trial.id for trial in [first, *others]}) == 4
    assert store.trials(study_id) == [first, *others[:2]]


def test_more_seeds_reopen_a_trial(store):
    trial = add_trial(store, store.open_study(spec()), seeds=2)
    store.finish_trial(trial.id, "complete", 91.0)
    store.add_runs({trial.id: [config(0, lr=9.0), config(1)]})
    assert store.trial(trial.id).state == "complete"
    store.add_runs({trial.id: [config(seed) for seed in range(4)]})
    grown = store.trial(trial.id)
    assert (grown.state, grown.value, grown.finished_at) == ("running", None, None)
    assert [run.seed for run in grown.runs] == [0, 1, 2, 3]
    assert grown.runs[:2] == trial.runs


@pytest.mark.parametrize("value, stored", [(91.25, 91.25), (None, None), (float("inf"), None)])
def test_a_finished_trial_has_a_state_and_a_finite_value(store, value, stored):
    trial = add_trial(store, store.open_study(spec()))
    store.finish_trial(trial.id, "pruned", value)
    finished = store.trial(trial.id)
    assert (finished.state, finished.value) == ("pruned", stored)
    assert finished.finished_at >= finished.created_at


def test_a_trial_cannot_finish_as_running(store):
    trial = add_trial(store, store.open_study(spec()))
    with pytest.raises(ValueError, match="'running'; known: complete, pruned, failed"):
        store.finish_trial(trial.id, "running", None)


def test_the_winner_of_an_arm_has_the_best_value(store):
    study_id = store.open_study(spec())
    values = [("sgd", 90.0), ("adam", 80.0), ("sgd", None), ("sgd", 92.0), ("sgd", 92.0)]
    for number, (branch, value) in enumerate(values):
        trial = add_trial(store, study_id, branch=branch, number=number)
        store.finish_trial(trial.id, "complete", value)
    pruned = add_trial(store, study_id, branch="adam", number=9)
    store.finish_trial(pruned.id, "pruned", 99.0)
    winners = store.winners(study_id)
    assert [(w.trial.arm, w.trial.number_in_branch, w.tried) for w in winners] == [
        ("sgd", 3, 4),
        ("adam", 1, 1),
    ]


def test_each_condition_has_its_own_winner(store):
    study_id = store.open_study(spec())
    half, whole = {"fraction": 0.5}, {"fraction": 1.0}
    values = [(half, 80.0), (whole, 90.0), (half, 82.0), (whole, 89.0), (half, 81.0)]
    for number, (condition, value) in enumerate(values):
        trial = add_trial(store, study_id, number=number, condition=condition)
        store.finish_trial(trial.id, "complete", value)
    winners = store.winners(study_id)
    assert [(w.trial.condition, w.trial.value, w.tried) for w in winners] == [
        (half, 82.0, 3),
        (whole, 90.0, 2),
    ]


def test_a_confirmation_comes_with_its_winner_and_never_wins(store):
    study_id = store.open_study(spec())
    chosen, other = (add_trial(store, study_id, number=number) for number in (0, 1))
    store.finish_trial(chosen.id, "complete", 90.0)
    store.finish_trial(other.id, "complete", 80.0)
    assert store.winners(study_id)[0].confirmation is None
    fresh = store.add_trial(
        study_id,
        arm="sgd",
        condition={},
        branch="confirm sgd",
        number_in_branch=0,
        params={},
        configs=[config(10_000)],
        sampler_state={},
        confirms=chosen.id,
    )
    store.finish_trial(fresh.id, "complete", 99.0)
    (winner,) = store.winners(study_id)
    assert (winner.trial.id, winner.tried) == (chosen.id, 2)
    assert winner.confirmation == store.trial(fresh.id)


def test_json_is_stored_unchanged(store):
    params = {
        "zeta": 1e-5,
        "alpha": 0.1 + 0.2,
        "whole": 3,
        "float": 3.0,
        "unicode": "größer ≥ 字 🙂",
        "quotes": """'"; DROP TABLE run; --""",
        "nested": {"list": [1, None, True, {"b": []}]},
    }
    trial = add_trial(store, store.open_study(spec()), params=params)
    stored = store.trial(trial.id).params
    assert stored == params
    assert list(stored) == list(params)  # reports show keys in the order of the file
    assert type(stored["whole"]) is int and type(stored["float"]) is float
    with store.database.engine.connect() as connection:
        assert "größer" in str(connection.scalar(text("SELECT CAST(params AS TEXT) FROM trial")))


def test_times_are_utc_in_every_session_time_zone(store):
    tokyo = "&options=-c%20timezone%3DAsia/Tokyo" if store.url.startswith("postgresql") else ""
    elsewhere = Store(store.url + tokyo)
    run_id = add_run(elsewhere)
    attempt = elsewhere.claim(run_id, ENVIRONMENT)
    elsewhere.record_epoch(attempt, epoch(1), None)
    times = [reader.curve(run_id)[0].recorded_at for reader in (store, elsewhere)]
    times += [reader.run(run_id).started_at for reader in (store, elsewhere)]
    times += [reader.studies()[0].created_at for reader in (store, elsewhere)]
    elsewhere.close()
    for time in times:
        assert time.tzinfo is UTC
        assert abs(datetime.now(UTC) - time) < timedelta(seconds=60)


def test_an_unknown_run_is_an_error(store):
    with pytest.raises(ConfigError, match="no run 77"):
        store.run(77)


def test_time_per_epoch_is_the_median_of_similar_runs(store):
    study_id = store.open_study(spec())
    for number, (taken, fraction) in enumerate([(2.0, 0.5), (3.0, 0.5), (40.0, 1.0), (None, 0.5)]):
        run = add_trial(store, study_id, number=number, fraction=fraction).runs[0]
        attempt = store.claim(run.id, ENVIRONMENT)
        for passed in (1, 2):
            store.record_epoch(attempt, epoch(passed), None)
        if taken is not None:
            store.finish_run(attempt, "complete", seconds=2 * taken)
    assert store.seconds_per_epoch({}) == 3.0
    assert store.seconds_per_epoch({"fraction": 0.5}) == 2.5
    assert store.seconds_per_epoch({"fraction": 1.0, "epochs": 99}) == 40.0
    assert store.seconds_per_epoch({"dataset": "digits", "batch_size": 64}) == 3.0
    assert store.seconds_per_epoch({"threads": 0, "device": "auto"}) == 3.0  # as configured
    assert store.seconds_per_epoch({"threads": 1, "device": "cpu"}) == 3.0  # as used
    for other in ({"threads": 8}, {"device": "cuda"}, {"model": "resnet20"}, {"batch_size": 65}):
        assert store.seconds_per_epoch(other) is None


def test_the_tables_can_be_queried_by_hand(store):
    run_id = add_run(store)
    attempt = store.claim(run_id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), "ab")
    store.finish_run(attempt, "complete", max_acc=77.5, mean_acc=76.0)
    by_hand = """
        SELECT study.name, trial.arm, trial.state, trial.value, run.seed, run.state, run.attempt,
               run.max_acc, run.mean_acc, epoch.epoch, epoch.train_loss, epoch.train_acc,
               epoch.val_loss, epoch.val_acc, outbox.sent_at
        FROM study JOIN trial ON trial.study_id = study.id JOIN run ON run.trial_id = trial.id
        JOIN epoch ON epoch.run_id = run.id
        JOIN outbox ON outbox.run_id = run.id AND outbox.epoch = epoch.epoch
    """
    expected = ("demo", "sgd", "running", None, 0, "complete", 1, 77.5, 76.0, 1, 0.5, 80.0)
    with store.database.engine.begin() as connection:
        assert connection.execute(text(by_hand)).all() == [(*expected, 0.625, 77.5, None)]
        published = "SELECT version, count(*), max(value) FROM baseline GROUP BY version"
        assert connection.execute(text(published)).all() == [(1, 124, 96.97)]
