import pytest

from ressmooth.engines.placement import capacity, concurrency, slots, visible_gpus
from ressmooth.errors import ConfigError


def visible(**given):
    return [slot.gpus for slot in slots(None, **{"cpus_per_run": 1, "cpus": 8, **given})]


def test_without_gpus_the_cores_decide():
    assert len(visible(gpus_per_run=0, gpus=["0"])) == 8
    assert len(visible(gpus_per_run=0, gpus=[], cpus_per_run=3)) == 2
    assert len(visible(gpus_per_run=0, gpus=[], cpus_per_run=16)) == 1


def test_a_fraction_lets_workers_share_but_the_first_ones_have_their_own():
    assert visible(gpus_per_run=0.5, gpus=["0", "1"]) == [("0",), ("1",), ("0",), ("1",)]
    assert len(visible(gpus_per_run=0.3, gpus=["0"])) == 3


def test_whole_gpus_are_never_shared():
    assert visible(gpus_per_run=1, gpus=["a", "b"]) == [("a",), ("b",)]
    assert visible(gpus_per_run=2, gpus=["0", "1", "2", "3", "4"]) == [("0", "1"), ("2", "3")]


def test_asking_for_a_gpu_where_there_is_none_says_what_to_do():
    with pytest.raises(ConfigError, match="resources.gpus_per_run=0"):
        visible(gpus_per_run=0.25, gpus=[])


def test_more_workers_than_the_gpus_have_room_for_are_refused():
    with pytest.raises(ConfigError, match="room for 2"):
        slots(3, gpus_per_run=0.5, cpus_per_run=1, gpus=["0"], cpus=8)
    assert len(slots(2, gpus_per_run=0.25, cpus_per_run=1, gpus=["0"], cpus=8)) == 2


def test_only_the_gpus_this_process_may_see_count(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert visible_gpus() == ["2", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


@pytest.mark.parametrize(
    "cpus, gpus, cpus_per_run, gpus_per_run, expected",
    [
        (8, 2, 1, 0.5, 4),
        (3, 2, 1, 0.5, 3),  # the CPUs decide
        (16, 4, 1, 0.3, 12),  # three on each, not thirteen on four
        (8, 5, 1, 2, 2),
        (0, 2, 1, 0.5, 0),
        (8, 0, 1, 0.5, 0),
        (8, 2, 3, 0, 2),
        (1, 0, 0.1, 0, 10),
    ],
)
def test_a_node_holds_what_its_cpus_and_gpus_both_allow(
    cpus, gpus, cpus_per_run, gpus_per_run, expected
):
    assert capacity(cpus, gpus, cpus_per_run=cpus_per_run, gpus_per_run=gpus_per_run) == expected


@pytest.mark.parametrize(
    "wanted, fitting, expected", [(None, 4, 4), (2, 4, 2), (8, 4, 4), (None, 0, 1), (8, 0, 1)]
)
def test_a_cluster_begins_what_fits_and_never_nothing(wanted, fitting, expected):
    assert concurrency(wanted, fitting) == expected
