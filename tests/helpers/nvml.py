"""A stand-in for the module pynvml, which needs a driver."""

import sys
from types import ModuleType, SimpleNamespace


class NVMLError(Exception):
    pass


class Nvml(ModuleType):
    """A machine with some GPUs. A handle is a GPU's index.

    `readings` are the values of memory (bytes), utilisation (%) and power (mW) of one question
    after the other; the last ones stay. None raises, as NVML does where it cannot tell.
    """

    NVMLError, NVML_DEVICE_MIG_ENABLE = NVMLError, 1
    parts = ()  # UUIDs of MIG instances of each GPU

    def __init__(self, gpus=1, readings=((3 * 2**30, 50, 100_000),), error=None):
        super().__init__("pynvml")
        self.gpus, self.error, self.sessions = gpus, error, 0
        self.readings = {i: list(r) for i, r in enumerate(zip(*readings, strict=True))}
        self.asked = []  # handles

    def install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", self)
        return self

    def nvmlInit(self):
        if self.error:
            raise NVMLError(self.error)
        self.sessions += 1

    def nvmlShutdown(self):
        self.sessions -= 1

    def nvmlDeviceGetCount(self):
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in (known := [f"GPU-{i}" for i in range(self.gpus)]):
            raise NVMLError("Not Found")
        return known.index(uuid)

    def nvmlDeviceGetName(self, handle):
        return f"GeForce {handle}"

    def nvmlSystemGetDriverVersion(self):
        return "580.95.05"

    def nvmlDeviceGetMigMode(self, handle):
        if not self.parts:
            raise NVMLError("Not Supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(self.parts):
            raise NVMLError("Not Found")
        return self.parts[index]

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=8 * 2**30, used=self._next(0, handle))

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=self._next(1, handle))

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._next(2, handle)

    def _next(self, quantity, handle):
        self.asked.append(handle)
        values = self.readings[quantity]
        value = values.pop(0) if len(values) > 1 else values[0]
        if value is None:
            raise NVMLError("Not Supported")
        return value


MISSING = Nvml(0, error="NVML Shared Library Not Found")
BROKEN = Nvml(0, error="Driver/library version mismatch")
