"""The device of a run: which one, what it can do, and the settings of torch that decide its bits.

On a GPU these are expected to give the same bits for the same model, driver and image; that has not
been seen on hardware yet.
"""

import os
import re
from pathlib import Path
from typing import Any

import torch

from ressmooth.config import RunConfig
from ressmooth.errors import ConfigError, DeviceError
from ressmooth.training.gpu import MIB, driver_version, gpus

DRIVER = Path("/proc/driver/nvidia")
NEEDS = {"tf32": (8, 0), "bf16": (8, 0)}  # compute capability by precision
# How cuBLAS and cuDNN fail; most often they got no memory.
LIBRARY_FAILED = re.compile("CUBLAS_STATUS|CUDNN_STATUS|cuDNN error")
BACKENDS: Any = torch.backends  # its modules are typed in part
ON_CPUS = "or train on CPUs: a study with --set resources.gpus_per_run=0, a run with --device cpu"


def find_device(name: str) -> torch.device:
    """Return the device of that name, or raise a ConfigError if it is missing."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda': torch sees no GPU here; use 'auto' or 'cpu'")
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(automatic if name == "auto" else name)


def set_up(device: torch.device, config: RunConfig) -> None:
    """Choose the algorithms and the precision of a run, for the whole process."""
    is_gpu = device.type == "cuda"
    if is_gpu:
        check_gpu(config.precision)
    elif config.precision == "tf32":
        raise ConfigError("precision = 'tf32': only GPUs have it; use 'fp32'")
    is_deterministic = is_gpu and config.deterministic
    if is_deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it
    torch.use_deterministic_algorithms(is_deterministic)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # takes kernels, and nothing reads it
    cudnn, cuda = BACKENDS.cudnn, BACKENDS.cuda
    cudnn.benchmark = is_gpu and not config.deterministic
    # not their fp32_precision: torch.export reads these, which raise after the others are set
    cudnn.allow_tf32 = cuda.matmul.allow_tf32 = config.precision == "tf32"


def describe(config: RunConfig) -> dict[str, str]:
    """Return what else decides the bits of a run on this process's GPU, by name."""
    if config.device == "cpu" or not torch.cuda.is_available():
        return {}
    return {
        "CUDA": torch.version.cuda or "unknown",
        "cuDNN": str(BACKENDS.cudnn.version()),
        "driver": driver_version() or "unknown",
        "compute capability": "{}.{}".format(*torch.cuda.get_device_capability()),
        "TF32": "on" if config.precision == "tf32" else "off",
        "deterministic": "on" if config.deterministic else "off",
    }


def check_gpu(precision: str) -> None:
    """Raise a DeviceError if torch cannot use this process's GPU, a ConfigError if the run cannot.

    It must not train on a CPU in place of a GPU.
    """
    assigned = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        if assigned and (DRIVER.exists() or gpus()):
            raise DeviceError(
                f"CUDA_VISIBLE_DEVICES = {assigned}: there is a driver, but torch "
                f"{torch.__version__} sees no GPU; is the driver new enough for CUDA "
                f"{torch.version.cuda}? See nvidia-smi, {ON_CPUS}"
            )
        return
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if problem := unsupported(name, capability, torch.cuda.get_arch_list()):
        raise DeviceError(f"{problem}, {ON_CPUS}")
    if capability < NEEDS.get(precision, (0, 0)):
        raise ConfigError(
            f"precision = {precision!r}: needs a GPU of compute capability 8.0, but {name} has "
            f"{capability[0]}.{capability[1]}; use 'fp16' or 'fp32'"
        )


def unsupported(name: str, capability: tuple[int, int], built_for: list[str]) -> str | None:
    """Return what is wrong if torch has no kernels for a GPU, and what to install, else None."""
    for kind, digits in re.findall(r"(sm|compute)_(\d+)\b", " ".join(built_for)):
        major, minor = divmod(int(digits), 10)
        is_newer = (major, minor) <= capability
        if is_newer and (kind == "compute" or major == capability[0]):  # PTX runs on any newer one
            return None
    return (
        f"{name} has compute capability {capability[0]}.{capability[1]}, but torch "
        f"{torch.__version__} was built for {', '.join(built_for)}; install a torch for an older "
        "CUDA (https://pytorch.org/get-started/previous-versions)"
    )


def limit_memory(share: float) -> None:
    """Let this process use at most that share of its GPU's memory."""
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


def free_memory() -> None:
    """Give unused memory of the GPU back: other processes share it."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def memory_text() -> str:
    """Return how much memory of the GPU this process took, and how much there is."""
    if not torch.cuda.is_available():
        return ""
    total = torch.cuda.mem_get_info()[1]
    return f" ({torch.cuda.max_memory_reserved() / MIB:,.0f} of {total / MIB:,.0f} MiB)"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error is one of missing memory, or looks like one, and the GPU still works.

    After other errors a process can no longer use its GPU.
    """
    looks_so = isinstance(error, RuntimeError) and LIBRARY_FAILED.search(str(error))
    return bool(isinstance(error, torch.OutOfMemoryError) or (looks_so and context_works()))


def context_works() -> bool:
    """Tell whether this process can still use its GPU."""
    try:
        return not torch.cuda.is_available() or torch.ones(1, device="cuda").add(1).item() == 2
    except RuntimeError:
        return False
