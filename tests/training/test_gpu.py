"""What NVML tells about GPUs. No driver is here, so the module pynvml is replaced."""

import subprocess
import sys
import threading

import pytest
from helpers.nvml import BROKEN, MISSING, Nvml

from ressmooth.training import gpu
from ressmooth.training.gpu import Gpu, Monitor, gpus

NOTHING = {"gpu_memory_mib": None, "gpu_utilization_percent": None, "gpu_power_watts": None}


def is_sampling():
    return any(thread.name == "gpu" for thread in threading.enumerate())


def test_gpus_are_listed_with_their_use(monkeypatch):
    nvml = Nvml(2).install(monkeypatch)
    assert gpus() == [Gpu(i, f"GeForce {i}", 8192.0, 3072.0, 50.0, 100.0) for i in range(2)]
    assert nvml.sessions == 0


def test_what_a_gpu_does_not_tell_is_none(monkeypatch):
    Nvml(readings=[(None, None, None)]).install(monkeypatch)
    assert gpus() == [Gpu(0, "GeForce 0", None, None, None, None)]


@pytest.mark.parametrize("nvml", [None, MISSING, BROKEN])
def test_without_nvml_there_are_no_gpus_and_nothing_is_measured(nvml, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    if nvml:
        nvml.install(monkeypatch)
    assert gpus() == []
    with Monitor("0").measure() as usage:
        assert not is_sampling()
    assert usage == {}


def test_the_real_nvml_finds_nothing_here_or_a_named_gpu():
    assert all(found.name and found.memory_total > 0 for found in gpus())


def test_a_short_epoch_has_the_sample_at_its_end(monkeypatch):
    nvml = Nvml(2).install(monkeypatch)
    with Monitor("1").measure() as usage:
        pass
    assert usage == {
        "gpu_memory_mib": 3072.0,
        "gpu_utilization_percent": 50.0,
        "gpu_power_watts": 100.0,
    }
    assert set(nvml.asked) == {1}


def test_an_epoch_has_the_largest_memory_and_mean_utilisation_and_power(monkeypatch):
    readings = [(2**30, 90, 300_000), (2**31, None, 200_000), (2**29, 30, 100_000)]
    nvml = Nvml(readings=readings).install(monkeypatch)
    monkeypatch.setattr(gpu, "PERIOD", 0.001)
    monitor = Monitor("0")
    with monitor.measure() as usage:
        assert is_sampling()
        while len(nvml.asked) < 6:
            pass
    assert usage["gpu_memory_mib"] == 2048.0
    assert 30 <= usage["gpu_utilization_percent"] < 90  # of the samples that there are
    assert 100 <= usage["gpu_power_watts"] < 300
    assert not is_sampling()


def test_what_is_never_known_stays_none(monkeypatch):
    Nvml(readings=[(None, None, None)]).install(monkeypatch)
    with Monitor("0").measure() as usage:
        pass
    assert usage == NOTHING


def test_sampling_ends_with_an_epoch_that_fails(monkeypatch):
    Nvml().install(monkeypatch)
    with pytest.raises(ZeroDivisionError), Monitor("0").measure():
        raise ZeroDivisionError
    assert not is_sampling()


@pytest.mark.parametrize("uuid", [None, "gone"])
def test_a_device_that_nvml_does_not_know_is_not_measured(uuid, monkeypatch):
    nvml = Nvml().install(monkeypatch)
    with Monitor(uuid).measure() as usage:
        pass
    assert (usage, nvml.asked) == ({}, [])


def test_a_cpu_does_not_even_load_the_module():
    code = (
        "import sys; from ressmooth.training.gpu import Monitor\n"
        "with Monitor(None).measure() as usage: pass\n"
        "print(usage, {'pynvml', 'torch'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "{} set()\n", done.stderr


def test_the_drivers_version_is_known(monkeypatch):
    Nvml().install(monkeypatch)
    assert gpu.driver_version() == "580.95.05"
    BROKEN.install(monkeypatch)
    assert gpu.driver_version() is None


def test_a_divided_gpu_names_its_parts(monkeypatch):
    Nvml().install(monkeypatch).parts = ("MIG-a", "MIG-b")
    assert gpus()[0].parts == ("MIG-a", "MIG-b")
