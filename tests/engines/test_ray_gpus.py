"""Which places of a cluster are kept from use. Whole studies are in test_broken_gpus.py."""

import pytest
import ray

from ressmooth.engines import ray_gpus
from ressmooth.engines.ray_gpus import GpuRecord, Kept, Place, Reservations


@pytest.fixture
def freed(monkeypatch):
    """The reservations that were given back, without a cluster."""
    given_back = []
    monkeypatch.setattr(ray_gpus, "remove_placement_group", given_back.append)
    monkeypatch.setattr(ray, "get", lambda place, timeout: place)
    monkeypatch.setattr(Reservations, "kept", {})
    return given_back


def place(gpu, reservation, node="n"):
    return Place(node, "host", (gpu,), reservation)


def test_strikes_count_runs_not_losses():
    record = GpuRecord()
    assert [record.strike(place("0", 1), run) for run in (7, 7, 8)] == [1, 1, 2]
    assert record.strike(place("1", 1), 7) == record.strike(place("0", 1, "other"), 7) == 1


def test_a_gpu_is_used_again_once_its_run_trains_elsewhere_or_another_one_trains_on_it(freed):
    record = GpuRecord()
    first, again, retired = place("0", "a"), place("0", "b"), place("1", "c")
    record.asked = {"elsewhere": place("2", "d"), "neighbour": place("1", "e")}
    record.kept |= {"a": Kept(first, 7), "b": Kept(again, 8), "c": Kept(retired)}
    for run, broken in ((7, first), (8, again), (8, retired)):
        record.strike(broken, run)
    assert not record.works("elsewhere", run_id=9) and freed == []
    assert record.works("elsewhere", run_id=7) and freed == ["a"]
    assert record.works("neighbour", run_id=9) and freed == ["a", "c"]
    assert record.strikes == {first.gpu: {7, 8}}
    assert record.ended(8) and freed == ["a", "c", "b"] and record.kept == {}


def test_what_no_node_or_study_needs_is_given_back(freed):
    record = GpuRecord()
    record.kept |= {
        "dead": Kept(place("0", "dead", "gone")),
        "left": Kept(place("0", "left"), 7, study="left"),
        "waits": Kept(place("1", "waits"), 8, study="here"),
        "retired": Kept(place("2", "retired")),
    }
    record.clean({"n"}, ["here"])
    assert freed == ["dead", "left"]
    assert record.free_all() and freed == ["dead", "left", "waits"]
    assert not record.free_all() and [*record.kept] == ["retired"]
