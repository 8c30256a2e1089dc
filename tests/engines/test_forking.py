"""Runs that continue the prefix of another: the rows of a run that was trained alone."""

from contextlib import closing
from dataclasses import replace

import pytest
from helpers import specs
from helpers.launch import query, wait_for

from ressmooth import paths
from ressmooth.engines import Decision, runner
from ressmooth.engines.cleaning import remove_forks
from ressmooth.search.planner import Planner
from ressmooth.store import open_store

ARMS = {
    "sgd": {"method": "mse"},
    "laplace": {"method": "smoothing", "b": {"grid": [0.1, 0.5]}},  # fork after epochs 5 and 3
}


def study(**changes):
    settings = {"epochs": 8, "fraction": 0.1, "cutoff": 1e-3, **changes}
    return specs.study(settings.pop("arms", ARMS), **settings)


@pytest.fixture
def plan(store):
    def make(spec):
        return Planner(store, store.open_study(spec), spec)

    return make


@pytest.fixture
def sqlite_store(tmp_path):
    with closing(open_store(f"sqlite:///{tmp_path}/results.db")) as store:
        yield store


def go_on(epoch, best):
    return Decision.CONTINUE


def train_next(planner, home, report=go_on):
    run = planner.next()
    runner.execute(planner.store, run.id, home, report)
    planner.run_ended(run)
    return planner.store.run(run.id)


def train_all(planner, home):
    runs = []
    while planner.peek():
        runs.append(train_next(planner, home))
    return runs


def assert_as_if_alone(store, run, home):
    assert runner.rerun(store, run, store.curve(run.id), home) == []


def forks(runs):
    return [(run.forked_from, run.forked_at) for run in runs]


class Killed(BaseException):
    """Ends a run as a kill does: nothing is recorded about it."""


def test_runs_continue_the_prefix_of_plain_sgd(store, plan, tmp_path):
    planner = plan(study())
    sgd, narrow, wide = train_all(planner, tmp_path)
    assert forks([sgd, narrow, wide]) == [(None, None), (sgd.id, 5), (sgd.id, 3)]
    for run in (sgd, narrow, wide):
        assert_as_if_alone(store, run, tmp_path)
    events = store.pending(planner.study_id, 1000)
    epochs = {each.epoch for each in events if each.run_id == narrow.id and each.epoch}
    assert epochs == {*range(1, 9)}  # MLflow gets the whole curve
    files = {path.name for path in paths.run_directory(tmp_path, sgd.uid).iterdir()}
    assert files == {"best.safetensors", "fork-000003.pt", "fork-000005.pt"}
    remove_forks(store, planner, tmp_path)
    assert not list(tmp_path.glob("runs/*/fork-*")) and list(tmp_path.glob("runs/*/best*"))


def test_a_prefix_grows_with_the_runs_that_need_it(store, plan, tmp_path):
    """The shorter prefix first, then the longer one that continues it, then plain SGD."""
    arms = {"laplace": {"method": "smoothing", "b": {"grid": [0.5, 0.1]}}, "sgd": ARMS["sgd"]}
    wide, narrow, sgd = train_all(plan(study(arms=arms)), tmp_path)
    assert forks([wide, narrow, sgd]) == [(None, None), (wide.id, 3), (narrow.id, 5)]
    for run in (wide, narrow, sgd):
        assert_as_if_alone(store, run, tmp_path)


def test_without_a_cutoff_nothing_is_shared_or_kept(plan, tmp_path):
    planner = plan(study(cutoff=0.0))
    assert forks(train_all(planner, tmp_path)) == [(None, None)] * 3
    assert not list(tmp_path.glob("runs/*/fork-*"))


@pytest.mark.parametrize("damage", ["deleted", "damaged"])
def test_a_run_that_loses_its_prefix_trains_it_itself(store, plan, tmp_path, damage):
    planner = plan(study())
    sgd = train_next(planner, tmp_path)
    for path in paths.run_directory(tmp_path, sgd.uid).glob("fork-*"):
        path.unlink() if damage == "deleted" else path.write_bytes(b"no checkpoint")
    narrow, wide = train_all(planner, tmp_path)
    assert forks([narrow, wide]) == [(None, None), (narrow.id, 3)]
    assert_as_if_alone(store, narrow, tmp_path)
    assert_as_if_alone(store, wide, tmp_path)


@pytest.mark.parametrize("seen", range(1, 8))
def test_a_kill_at_any_epoch_around_a_fork_changes_nothing(sqlite_store, tmp_path, seen):
    """The run is killed after an epoch was recorded, while it copies or trains."""
    store = sqlite_store
    spec = study()
    planner = Planner(store, store.open_study(spec), spec)
    train_next(planner, tmp_path)

    def kill(epoch, best):
        if epoch.epoch == seen:
            raise Killed
        return Decision.CONTINUE

    run = planner.next()
    with pytest.raises(Killed):
        runner.execute(store, run.id, tmp_path, kill)
    assert store.run(run.id).last_epoch == seen
    reported = []
    runner.execute(
        store, run.id, tmp_path, lambda e, _: reported.append(e.epoch) or Decision.CONTINUE
    )
    assert reported == [*range(seen, 9)]
    assert forks([store.run(run.id)]) == [(1, 5)]
    assert_as_if_alone(store, store.run(run.id), tmp_path)


def test_a_kill_while_copying_and_a_lost_prefix_at_once(sqlite_store, tmp_path):
    store, spec = sqlite_store, study()
    planner = Planner(store, store.open_study(spec), spec)
    sgd = train_next(planner, tmp_path)
    run = planner.next()
    runner.execute(store, run.id, tmp_path, lambda *_: Decision.STOP)
    paths.remove_forks(paths.run_directory(tmp_path, sgd.uid))
    runner.execute(store, run.id, tmp_path, go_on)
    assert forks([store.run(run.id)]) == [(None, None)]
    assert_as_if_alone(store, store.run(run.id), tmp_path)


def test_pruners_see_every_epoch_of_a_prefix(sqlite_store, tmp_path):
    store, spec = sqlite_store, study()
    planner = Planner(store, store.open_study(spec), spec)
    sgd = train_next(planner, tmp_path)
    run, seen = planner.next(), {}

    def prune_after_four(epoch, best):
        seen[epoch.epoch] = best
        return Decision.PRUNE if epoch.epoch == 4 else Decision.CONTINUE

    assert runner.execute(store, run.id, tmp_path, prune_after_four) == "pruned"
    accuracies = [row.val_acc for row in store.curve(sgd.id)]
    assert seen == {n: max(accuracies[:n]) for n in range(1, 5)}
    pruned = store.run(run.id)
    assert (pruned.last_epoch, pruned.max_acc) == (4, max(accuracies[:4]))


def test_a_retried_run_forks_again(sqlite_store, tmp_path):
    store, spec = sqlite_store, study()
    planner = Planner(store, store.open_study(spec), spec)
    train_next(planner, tmp_path)
    run = planner.next()
    runner.execute(store, run.id, tmp_path, lambda *_: Decision.STOP)
    store.give_up(run.id, "worker killed")
    assert forks([store.run(run.id)]) == [(1, 5)]
    assert store.reset_failed(planner.study_id) == 1
    assert forks([store.run(run.id)]) == [(None, None)]
    runner.execute(store, run.id, tmp_path, go_on)
    assert forks([store.run(run.id)]) == [(1, 5)]
    assert_as_if_alone(store, store.run(run.id), tmp_path)


@pytest.mark.parametrize(
    "other", [{"device": "NVIDIA H100"}, {"threads": 2}, {"versions": {"torch": "1.0"}}]
)
def test_no_prefix_of_another_machine_is_continued(sqlite_store, tmp_path, other):
    store, spec = sqlite_store, study()
    planner = Planner(store, store.open_study(spec), spec)
    sgd = train_next(planner, tmp_path)
    run = replace(sgd, id=0, plain_epochs=5)
    assert [donor.epoch for donor in store.donors(run, {3, 5})] == [5, 3]
    assert store.donors(replace(run, **other), {3, 5}) == []
    assert store.donors(replace(run, seed=1), {3, 5}) == []
    assert store.donors(replace(run, data_sha256="ab"), {3, 5}) == []


def test_sampled_widths_fork_at_tenths_of_training(sqlite_store, tmp_path):
    arms = {
        "sgd": {"method": "mse"},
        "laplace": {"method": "smoothing", "b": {"low": 0.1, "high": 0.5}},
    }
    spec = study(arms=arms, epochs=10, search={"sampler": "random", "trials": 2})
    store = sqlite_store
    planner = Planner(store, store.open_study(spec), spec)
    sgd, *sampled = train_all(planner, tmp_path)
    assert [run.forked_at for run in sampled] == [run.plain_epochs for run in sampled]
    assert {run.forked_from for run in sampled} == {sgd.id}


def test_a_sampled_weight_decay_keeps_no_checkpoints(sqlite_store, tmp_path):
    decay = {"low": 1e-4, "high": 1e-3}
    arms = {"laplace": {"method": "smoothing", "b": 0.1, "weight_decay": decay}}
    spec = study(arms=arms, search={"sampler": "random", "trials": 2})
    planner = Planner(sqlite_store, sqlite_store.open_study(spec), spec)
    train_all(planner, tmp_path)
    assert not list(tmp_path.glob("runs/*/fork-*"))


SHARED = """
name = "shared"
dataset = "digits"
fraction = 0.1
epochs = 8
cutoff = 1e-3
resources = { retries = 100 }
[arms.sgd]
method = "mse"
[arms.laplace]
method = "smoothing"
b = { grid = [0.1, 0.5] }
"""
FORKS = "SELECT id, forked_from, forked_at FROM run ORDER BY id"


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "shared.toml").write_text(SHARED)
    return tmp_path / "shared.toml"


def assert_all_as_if_alone(home):
    with closing(open_store(f"sqlite:///{home}/results.db")) as store:
        (study,) = store.studies()
        runs = [run for trial in store.trials(study.id) for run in trial.runs]
        assert {run.state for run in runs} == {"complete"} and len(runs) == 3
        for run in runs:
            assert_as_if_alone(store, run, home)


@pytest.mark.slow
def test_on_both_engines_every_row_and_weight_is_that_of_a_run_trained_alone(
    engine, shared, tmp_path
):
    done = engine.launch(shared, tmp_path, "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert query(tmp_path, FORKS) == [(1, None, None), (2, 1, 5), (3, 1, 3)]
    assert_all_as_if_alone(tmp_path)
    assert not list(tmp_path.glob("runs/*/fork-*"))  # nobody needs them any more


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [12, 14])  # while the second run copies its prefix, and after
def test_killed_workers_of_both_engines_change_nothing(engine, shared, tmp_path, epochs):
    launcher = engine.start(shared, tmp_path, "--workers", "1", "--quiet")
    count = "SELECT count(*) FROM epoch"
    wait_for(lambda: (tmp_path / "results.db").exists())
    wait_for(lambda: launcher.poll() is not None or query(tmp_path, count)[0][0] >= epochs)
    for worker in engine.workers(launcher):
        worker.kill()
    assert launcher.wait(120) == 0, launcher.stderr.read()
    assert_all_as_if_alone(tmp_path)
