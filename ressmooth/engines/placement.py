"""How many runs fit on a machine, and which GPUs each may use."""

import math
import os
from pathlib import Path

from ressmooth.errors import ConfigError
from ressmooth.spec import Resources

Gpus = tuple[str, ...]  # of a worker, for CUDA_VISIBLE_DEVICES; empty on a CPU


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine, without loading torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() and name != "-1"]
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(driver.iterdir())))] if driver.is_dir() else []


def capacity(cpus: float, gpus: float, resources: Resources) -> int:
    """Return how many runs fit on a node of a cluster."""
    fit_cpus = int(cpus / resources.cpus_per_run + 1e-9)
    if resources.gpus_per_run == 0:
        return fit_cpus
    names = [str(i) for i in range(int(gpus))]
    return min(fit_cpus, len(_gpu_shares(names, resources.gpus_per_run)))


def concurrency(wanted: int | None, capacity: int) -> int:
    """Return how many runs to start. At least one, which waits for a node."""
    possible = max(1, capacity)
    return min(wanted or possible, possible)


def slots(workers: int | None, resources: Resources) -> list[Gpus]:
    """Return the GPUs of each worker. By default, as many workers as the GPUs or cores allow."""
    per_run = resources.gpus_per_run
    if per_run == 0:
        cores = len(os.sched_getaffinity(0))
        return [()] * (workers or max(1, int(cores / resources.cpus_per_run)))
    gpus = visible_gpus()
    shares = _gpu_shares(gpus, per_run)
    if not shares:
        raise ConfigError(
            f"resources.gpus_per_run = {per_run:g}: this machine has {len(gpus)} GPUs; "
            "use --set resources.gpus_per_run=0 for the CPU"
        )
    if workers and workers > len(shares):
        raise ConfigError(
            f"--workers {workers}: {len(gpus)} GPUs at {per_run:g} per run have room for "
            f"{len(shares)}"
        )
    return shares[:workers]


def _gpu_shares(gpus: list[str], per_run: float) -> list[Gpus]:
    """Return the GPUs of each worker, ordered so that the first workers do not share one."""
    if per_run >= 1:
        whole = math.ceil(per_run)
        return [tuple(gpus[i : i + whole]) for i in range(0, len(gpus) - whole + 1, whole)]
    sharing = int(1 / per_run + 1e-9)
    return [(gpu,) for _ in range(sharing) for gpu in gpus]
