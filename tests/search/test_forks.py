"""Where runs fork, what that saves, and in which order runs are trained for it."""

from contextlib import closing

import pytest
from helpers import specs
from helpers.planning import ENVIRONMENT, finish
from helpers.store_rows import epoch

from ressmooth.search.forks import Sharing, forks, sharing
from ressmooth.search.planner import Planner
from ressmooth.spec import bundled, load
from ressmooth.store import open_store

ARMS = {
    "sgd": {"method": "mse"},
    "laplace": {"method": "smoothing", "b": {"grid": [0.1, 0.5, 2.0]}},  # forks: 32, 19, none
}


def study(arms=ARMS, **settings):
    return specs.study(arms, **{"epochs": 48, "cutoff": 1e-3, **settings})


@pytest.fixture
def plan(tmp_path):
    with closing(open_store(f"sqlite:///{tmp_path}/results.db")) as store:
        yield lambda spec: Planner(store, store.open_study(spec), spec)


def width(run):
    return "sgd" if run.config["method"] == "mse" else run.config["b"]


def record(planner, run, last):
    """Record epochs of a run that goes on."""
    attempt = planner.store.claim(run.id, ENVIRONMENT)
    for number in range(1, last + 1):
        planner.store.record_epoch(attempt, epoch(number), None)


def test_the_forks_of_a_grid_and_of_a_sampled_width():
    assert [*forks(study()).values()] == [{19, 32}]
    assert forks(study(cutoff=0.0)) == {}
    sampled = {"laplace": {"method": "smoothing", "b": {"low": 0.1, "high": 0.5}}}
    search = {"sampler": "random", "trials": 3}
    assert [*forks(study(sampled, search=search)).values()] == [{5, 10, 15, 20, 25, 30, 35, 40, 45}]


def test_sharing_is_counted_for_all_seeds():
    assert sharing(study(seeds=3)) == Sharing(3 * 4 * 48, 3 * (4 * 48 - 32 - 19))
    assert sharing(study(seeds=3, cutoff=0.0)) == Sharing(3 * 4 * 48, 3 * 4 * 48)
    assert sharing(study(cutoff=0.0), 1e-3) == sharing(study())


def test_other_weight_decays_have_prefixes_of_their_own():
    decays = {"weight_decay": [1e-3, 1e-4]}
    assert sharing(study(grid=decays)).trained == 2 * sharing(study()).trained


def test_the_bundled_studies_save_what_the_issue_counted():
    shares = {name: round(100 * sharing(load(name)).share) for name in bundled()}
    assert shares["paper-table1"] == 66 and shares["paper-table2"] == 78
    assert {shares[name] for name in shares if "table3" in name} == {76, 77}


def test_a_run_waits_for_the_prefix_that_is_being_trained(plan):
    """The run without a prefix starts first; then no place stands idle."""
    planner = plan(study())
    sgd, free = planner.next(), planner.next()
    assert (width(sgd), width(free)) == ("sgd", 2.0)
    assert width(planner.next()) == 0.5  # it loses the least by training its prefix itself
    assert width(planner.next()) == 0.1 and planner.next() is None


def test_a_run_starts_once_its_prefix_is_there(plan):
    planner = plan(study())
    sgd = planner.next()
    assert width(planner.next()) == 2.0
    record(planner, sgd, 20)
    assert width(planner.next()) == 0.5  # its prefix has 19 epochs; 0.1 comes first in the file
    record(planner, sgd, 32)
    assert width(planner.next()) == 0.1


def test_seeds_do_not_wait_for_each_other(plan):
    planner = plan(study({"laplace": ARMS["laplace"]}, seeds=2))
    started = [planner.next() for _ in range(4)]
    assert [(width(run), run.seed) for run in started] == [(0.1, 0), (0.1, 1), (2.0, 0), (2.0, 1)]


def test_a_run_that_has_begun_waits_for_nobody(plan):
    planner = plan(study())
    sgd = planner.next()
    free = planner.next()
    begun = planner.next()
    record(planner, begun, 1)
    planner.requeue(begun.id)
    assert planner.next().id == begun.id
    for run in (sgd, free, begun):
        finish(planner, run)
    assert width(planner.next()) == 0.1


def test_a_dead_worker_and_an_ended_run_keep_nobody_waiting(plan):
    planner = plan(study())
    sgd = planner.next()
    record(planner, sgd, 1)
    planner.worker_died(sgd.id, "killed")
    assert planner.next().id == sgd.id
    finish(planner, sgd)
    assert [width(planner.next()) for _ in range(3)] == [0.1, 2.0, 0.5]  # 0.1 trains the prefix


def test_samplers_are_not_asked_ahead(plan):
    arms = {"laplace": {"method": "smoothing", "b": {"low": 0.1, "high": 0.2}}}
    planner = plan(study(arms, search={"sampler": "tpe", "trials": 5}))
    planner.next()
    planner.next()
    assert len(planner.store.trials(planner.study_id)) == 2
