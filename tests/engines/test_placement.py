import os

import pytest
from helpers.nvml import BROKEN, MISSING, Nvml

from ressmooth.engines import placement
from ressmooth.engines.placement import (
    capacity,
    concurrency,
    gpus_per_run,
    slots,
    visible_gpus,
)
from ressmooth.errors import ConfigError
from ressmooth.spec import Resources


@pytest.fixture
def gpus_of_slots(monkeypatch):
    """Return a function that returns the GPUs of each worker on a machine with 8 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))

    def make(gpus, workers=None, **resources):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(gpus))
        return slots(workers, Resources(**resources))

    return make


def test_without_gpus_there_are_as_many_workers_as_cores(gpus_of_slots):
    assert len(gpus_of_slots(gpus_per_run=0, gpus=["0"])) == 8
    assert len(gpus_of_slots(gpus_per_run=0, gpus=[], cpus_per_run=3)) == 2
    assert len(gpus_of_slots(gpus_per_run=0, gpus=[], cpus_per_run=16)) == 1


def test_with_a_fraction_workers_share_gpus_once_each_gpu_has_one(gpus_of_slots):
    assert gpus_of_slots(gpus_per_run=0.5, gpus=["0", "1"]) == [("0",), ("1",), ("0",), ("1",)]
    assert len(gpus_of_slots(gpus_per_run=0.3, gpus=["0"])) == 3


def test_whole_gpus_are_never_shared(gpus_of_slots):
    named = ["GPU-a", "MIG-b"]
    assert gpus_of_slots(gpus_per_run=1, gpus=named) == [("GPU-a",), ("MIG-b",)]


def test_more_than_one_gpu_for_a_run_is_refused(gpus_of_slots):
    with pytest.raises(ConfigError, match="gpus_per_run = 2: a run trains on one GPU; use 1, a"):
        gpus_of_slots(gpus_per_run=2, gpus=["0", "1"])


def test_the_parts_of_a_divided_gpu_are_places(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    Nvml(1).install(monkeypatch).parts = ("MIG-a", "MIG-b")
    assert visible_gpus() == ["MIG-a", "MIG-b"]


def test_auto_is_a_gpu_for_each_run_or_the_cpu(gpus_of_slots):
    assert gpus_of_slots(gpus=["0", "1"]) == [("0",), ("1",)]
    assert gpus_of_slots(gpus=[]) == [()] * 8
    assert gpus_of_slots(gpus_per_run="auto", gpus=["5"]) == [("5",)]


@pytest.mark.parametrize(
    "given, gpus, expected",
    [("auto", 4.0, 1), ("auto", 0, 0), (0, 4, 0), (0.25, 0, 0.25)],
)
def test_only_auto_depends_on_what_is_there(given, gpus, expected):
    assert gpus_per_run(Resources(gpus_per_run=given), gpus) == expected


def test_a_missing_gpu_is_an_error_that_names_the_setting(gpus_of_slots):
    hint = "a study takes --set resources.gpus_per_run=0, and serve --gpus-per-run 0"
    with pytest.raises(ConfigError, match=hint):
        gpus_of_slots(gpus_per_run=0.25, gpus=[])


def test_more_workers_than_the_gpus_have_capacity_for_are_refused(gpus_of_slots):
    with pytest.raises(ConfigError, match="room for 2"):
        gpus_of_slots(workers=3, gpus_per_run=0.5, gpus=["0"])
    assert len(gpus_of_slots(workers=2, gpus_per_run=0.25, gpus=["0"])) == 2
    with pytest.raises(ConfigError, match="at 1 per run have room for 1; a smaller resources.gpus"):
        gpus_of_slots(workers=2, gpus=["0"])


@pytest.mark.parametrize("gpus", ([], ["0"]))
def test_workers_are_limited_by_the_cpus_however_little_they_ask_for(gpus_of_slots, gpus):
    tiny = {"gpus": gpus, "cpus_per_run": 0.0001, "gpus_per_run": 0.001 if gpus else 0}
    assert len(gpus_of_slots(**tiny)) == len(gpus_of_slots(workers=128, **tiny)) == 128
    message = "1024 workers: this machine has 8 CPUs and room for 128; lower --workers or resources"
    with pytest.raises(ConfigError, match=message):
        gpus_of_slots(workers=1024, **tiny)


@pytest.mark.parametrize(
    "chosen, expected",
    [
        ("2,5", ["2", "5"]),
        ("", []),
        (" 1, GPU-8a ", ["1", "GPU-8a"]),
        ("0,-1,1", ["0"]),  # CUDA ignores what follows an invalid name
        ("NoDevFiles", []),  # Slurm, for a job without GPUs
    ],
)
def test_only_gpus_visible_to_this_process_count(chosen, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_gpus() == expected


@pytest.mark.parametrize(
    "nvml, in_kernel, devices, expected",
    [
        (Nvml(2), 2, True, ["0", "1"]),
        (Nvml(1), 0, False, ["0"]),  # Windows' subsystem for Linux
        (MISSING, 0, False, []),
        (MISSING, 2, False, []),  # a container that was given no GPU
        (BROKEN, 2, True, ["0", "1"]),  # runs must fail then, not train on the CPU
    ],
)
def test_gpus_are_those_that_a_process_can_use(
    nvml, in_kernel, devices, expected, tmp_path, monkeypatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml.install(monkeypatch)
    for number in range(in_kernel):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
    if devices:
        (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(placement, "KERNEL_GPUS", tmp_path / "gpus")
    monkeypatch.setattr(placement, "CONTROL", tmp_path / "nvidiactl")
    assert visible_gpus() == expected


@pytest.mark.parametrize(
    "cpus, gpus, cpus_per_run, gpus_per_run, expected",
    [
        (8, 2, 1, 0.5, 4),
        (3, 2, 1, 0.5, 3),  # limited by the CPUs
        (16, 4, 1, 0.3, 12),  # three on each GPU, not thirteen on four
        (0, 2, 1, 0.5, 0),
        (8, 0, 1, 0.5, 0),
        (8, 2, 3, 0, 2),
        (1, 0, 0.1, 0, 10),
        (2, 0, 0.0001, 0, 32),  # however little a run asks for
        (2, 1, 0.0001, 0.001, 32),
    ],
)
def test_a_nodes_capacity_is_limited_by_its_cpus_and_its_gpus(
    cpus, gpus, cpus_per_run, gpus_per_run, expected
):
    assert capacity(cpus, gpus, cpus_per_run, gpus_per_run) == expected


@pytest.mark.parametrize(
    "wanted, capacity, expected", [(None, 4, 4), (2, 4, 2), (8, 4, 4), (None, 0, 1), (8, 0, 1)]
)
def test_concurrency_is_at_most_the_capacity_but_at_least_one(wanted, capacity, expected):
    assert concurrency(wanted, capacity) == expected
