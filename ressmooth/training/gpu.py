"""NVIDIA's GPUs as NVML sees them: those of this machine, and the use of one by epoch.

Without a driver there are none. NVML measures whole devices: runs that share one read the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PERIOD = 1.0  # seconds between two samples
MIB = 2**20  # bytes

Reading = tuple[float | None, float | None, float | None, float | None]  # the last of a Gpu


@dataclass(frozen=True)
class Gpu:
    """A GPU now. What NVML cannot tell is None."""

    index: int  # NVML's; torch's may differ
    name: str
    memory_total: float | None  # MiB
    memory_used: float | None  # MiB
    utilization: float | None  # % of the last second, or less, in which a kernel ran
    power: float | None  # W
    parts: tuple[str, ...] = ()  # UUIDs of its MIG instances, if it is divided into such


def gpus() -> list[Gpu]:
    """Return the GPUs of this machine, an empty list without a working driver. Loads no torch."""
    with suppress(Exception):  # ImportError, NVMLError
        import pynvml as nvml

        nvml.nvmlInit()
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            names = map(nvml.nvmlDeviceGetName, handles)
            return [
                Gpu(i, name, *_read(nvml, handles[i]), _parts(nvml, handles[i]))
                for i, name in enumerate(names)
            ]
        finally:
            nvml.nvmlShutdown()
    return []


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver, or None without a working one."""
    with suppress(Exception):
        import pynvml as nvml

        nvml.nvmlInit()
        try:
            return str(nvml.nvmlSystemGetDriverVersion())
        finally:
            nvml.nvmlShutdown()
    return None


class Monitor:
    """Measures the GPU with this UUID, as torch writes it. Does nothing without one."""

    def __init__(self, uuid: str | None) -> None:
        self.read: Callable[[], Reading] | None = None
        with suppress(Exception):
            if uuid is not None:
                import pynvml as nvml

                nvml.nvmlInit()
                handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
                self.read = partial(_read, nvml, handle)

    @contextmanager
    def measure(self) -> Iterator[dict[str, Any]]:
        """Yield a dictionary that gets an epoch's columns at the end. Without a GPU, it gets none.

        A thread takes samples, because what ends an epoch is an evaluation, not training.
        """
        usage: dict[str, Any] = {}
        if (read := self.read) is None:
            yield usage
            return
        samples, ended = [], Event()

        def sample() -> None:
            while not ended.wait(PERIOD):
                samples.append(read())

        thread = Thread(target=sample, name="gpu", daemon=True)
        thread.start()
        try:
            yield usage
        finally:
            ended.set()
            thread.join()
        samples.append(read())  # the only one of a short epoch
        columns = [[v for v in column if v is not None] for column in zip(*samples, strict=True)]
        _, memory, utilization, power = columns
        usage["gpu_memory_mib"] = max(memory, default=None)
        usage["gpu_utilization_percent"] = fmean(utilization) if utilization else None
        usage["gpu_power_watts"] = fmean(power) if power else None


def _parts(nvml: Any, handle: Any) -> tuple[str, ...]:
    """Return the UUIDs of a GPU's MIG instances. CUDA numbers only the first one."""
    found = []
    with suppress(nvml.NVMLError):  # not supported
        if nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with suppress(nvml.NVMLError):  # fewer than there may be
                    part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)
                    found.append(str(nvml.nvmlDeviceGetUUID(part)))
    return tuple(found)


def _read(nvml: Any, handle: Any) -> Reading:
    def ask(question: Callable[[Any], Any]) -> Any:
        with suppress(nvml.NVMLError):  # not supported, or the GPU is lost
            return question(handle)

    memory, rates = ask(nvml.nvmlDeviceGetMemoryInfo), ask(nvml.nvmlDeviceGetUtilizationRates)
    power = ask(nvml.nvmlDeviceGetPowerUsage)  # mW
    total, used = (memory.total / MIB, memory.used / MIB) if memory else (None, None)
    return total, used, rates and float(rates.gpu), power and power / 1000


def gpu_uuid(device: "torch.device") -> str | None:
    """Return what names a GPU whatever CUDA_VISIBLE_DEVICES is, or None for a CPU."""
    if device.type != "cuda":
        return None
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)
