"""How many runs fit on a machine, and which GPUs each may use."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from ressmooth.errors import ConfigError


@dataclass(frozen=True)
class Slot:
    """Room for one worker."""

    number: int
    gpus: tuple[str, ...]  # value of CUDA_VISIBLE_DEVICES; empty on a CPU


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine, without loading torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() and name != "-1"]
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(driver.iterdir())))] if driver.is_dir() else []


def capacity(cpus: float, gpus: float, *, gpus_per_run: float, cpus_per_run: float) -> int:
    """Return how many runs fit on a node of a cluster."""
    fit_cpus = int(cpus / cpus_per_run + 1e-9)
    if gpus_per_run == 0:
        return fit_cpus
    return min(fit_cpus, len(_gpu_shares([str(i) for i in range(int(gpus))], gpus_per_run)))


def concurrency(wanted: int | None, capacity: int) -> int:
    """Return how many runs to start. At least one, which waits for a node."""
    possible = max(1, capacity)
    return min(wanted or possible, possible)


def slots(
    workers: int | None,
    *,
    gpus_per_run: float,
    cpus_per_run: float,
    gpus: list[str] | None = None,
    cpus: int | None = None,
) -> list[Slot]:
    """Return one slot per worker. By default, as many as the GPUs, or else the cores, allow."""
    gpus = visible_gpus() if gpus is None else gpus
    cpus = len(os.sched_getaffinity(0)) if cpus is None else cpus
    if gpus_per_run == 0:
        count = workers or max(1, int(cpus / cpus_per_run))
        return [Slot(number, ()) for number in range(count)]
    shares = _gpu_shares(gpus, gpus_per_run)
    if not shares:
        raise ConfigError(
            f"resources.gpus_per_run = {gpus_per_run:g}: this machine has {len(gpus)} GPUs; "
            "use --set resources.gpus_per_run=0 for the CPU"
        )
    if workers and workers > len(shares):
        raise ConfigError(
            f"--workers {workers}: {len(gpus)} GPUs at {gpus_per_run:g} per run have room for "
            f"{len(shares)}"
        )
    return [Slot(number, share) for number, share in enumerate(shares[:workers])]


def _gpu_shares(gpus: list[str], per_run: float) -> list[tuple[str, ...]]:
    """Return the GPUs of each worker, ordered so that the first workers do not share one."""
    if per_run >= 1:
        whole = math.ceil(per_run)
        return [tuple(gpus[i : i + whole]) for i in range(0, len(gpus) - whole + 1, whole)]
    sharing = int(1 / per_run + 1e-9)
    return [(gpu,) for _ in range(sharing) for gpu in gpus]
