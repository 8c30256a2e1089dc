import pytest
import torch
from helpers.nvml import Nvml

from ressmooth.config import RunConfig, parse
from ressmooth.errors import ConfigError, DeviceError
from ressmooth.training import device
from ressmooth.training.trainer import Trainer

BUILT_FOR = ["sm_75", "sm_80", "sm_90", "compute_90"]


@pytest.mark.parametrize(
    ("capability", "built_for", "works"),
    [
        ((6, 1), BUILT_FOR, False),
        ((7, 0), BUILT_FOR, False),
        ((7, 5), BUILT_FOR, True),
        ((8, 6), BUILT_FOR, True),  # kernels run on newer ones of the same generation
        ((12, 0), BUILT_FOR, True),  # compute_90 is compiled there
        ((12, 0), BUILT_FOR[:-1], False),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_90a"], False),
    ],
)
def test_a_gpu_needs_kernels_for_its_compute_capability(capability, built_for, works):
    problem = device.unsupported("GTX 1080", capability, built_for)
    assert (problem is None) == works
    if problem:
        assert f"compute capability {capability[0]}.{capability[1]}, but torch" in problem
        assert "install a torch for an older CUDA" in problem


@pytest.fixture
def tesla(monkeypatch):
    """A GPU of compute capability 7.5."""
    cuda = {
        "is_available": True,
        "get_device_name": "Tesla T4",
        "get_device_capability": (7, 5),
        "get_arch_list": BUILT_FOR,
    }
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    return monkeypatch


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_a_precision_that_a_gpu_lacks_is_an_error_of_the_study(tesla, precision):
    device.check_gpu("fp16")
    with pytest.raises(ConfigError, match="needs a GPU of compute capability 8.0, but Tesla T4"):
        device.check_gpu(precision)


def test_a_gpu_without_kernels_is_an_error_of_its_place(tesla):
    tesla.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    with pytest.raises(DeviceError, match="Tesla T4 has compute capability 7.5"):
        device.check_gpu("fp32")


def test_a_run_without_a_study_is_checked_too(tesla):
    """`ressmooth train` and `rerun` ended with a traceback in the first kernel."""
    with pytest.raises(ConfigError, match="Tesla T4 has 7.5"):
        device.set_up(torch.device("cuda"), parse({"precision": "bf16"}))
    tesla.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    with pytest.raises(DeviceError, match="Tesla T4 has .*--device cpu"):
        device.set_up(torch.device("cuda"), RunConfig())


def test_a_driver_is_found_by_nvml_where_proc_has_none(monkeypatch, tmp_path):
    """As in Windows' subsystem for Linux."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device, "DRIVER", tmp_path / "missing")
    Nvml(0).install(monkeypatch)
    device.check_gpu("fp32")  # a machine without a GPU
    Nvml(1).install(monkeypatch)
    with pytest.raises(DeviceError, match="there is a driver, but torch"):
        device.check_gpu("fp32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_tf32_on_a_cpu_is_refused(tiny, tmp_path):
    with pytest.raises(ConfigError, match="precision = 'tf32': only GPUs have it; use 'fp32'"):
        Trainer(tiny(precision="tf32", device="auto"), tmp_path)


def test_only_failures_that_look_like_memory_count_as_such(monkeypatch):
    failed = RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")
    assert device.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert device.is_out_of_memory(failed)
    assert not device.is_out_of_memory(RuntimeError("shapes differ"))
    monkeypatch.setattr(device, "context_works", lambda: False)
    assert not device.is_out_of_memory(failed)
