"""How many runs fit on a machine, and which GPUs each may use."""

import os
import re
from itertools import takewhile
from pathlib import Path

from ressmooth.errors import ConfigError
from ressmooth.formatting import count
from ressmooth.spec import Resources
from ressmooth.training.gpu import gpus as nvml_gpus

Gpus = tuple[str, ...]  # of a worker, for CUDA_VISIBLE_DEVICES; empty on a CPU
IS_NAME = re.compile(r"\d+|(GPU|MIG)-.+").fullmatch  # CUDA ignores what follows any other name
KERNEL_GPUS = Path("/proc/driver/nvidia/gpus")  # also seen by containers that may not use them
CONTROL = Path("/dev/nvidiactl")
MAX_PER_CPU = 16  # runs, however little each asks for: a worker takes hundreds of megabytes


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine, without loading torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return list(takewhile(IS_NAME, map(str.strip, chosen.split(","))))
    found = [name for gpu in nvml_gpus() for name in gpu.parts or (str(gpu.index),)]
    if not found and CONTROL.exists() and KERNEL_GPUS.is_dir():
        number = len(list(KERNEL_GPUS.iterdir()))  # NVML is broken: runs say so, and use no CPU
        return [str(i) for i in range(number)]
    return found


def gpus_per_run(resources: Resources, gpus: float) -> float:
    """Return the GPUs of a run where there are `gpus`. "auto" is one if there are any."""
    given = resources.gpus_per_run
    if given != "auto" and given > 1:
        raise ConfigError(
            f"resources.gpus_per_run = {given:g}: a run trains on one GPU; use 1, a fraction to "
            "share one, or auto"
        )
    return float(gpus >= 1) if given == "auto" else given


def capacity(cpus: float, gpus: float, cpus_per_run: float, gpus_per_run: float) -> int:
    """Return how many runs fit on a node of a cluster."""
    fit_cpus = _fit_cpus(cpus, cpus_per_run)
    if gpus_per_run == 0:
        return fit_cpus
    names = [str(i) for i in range(int(gpus))]
    return min(fit_cpus, len(_gpu_shares(names, gpus_per_run)))


def concurrency(wanted: int | None, capacity: int) -> int:
    """Return how many runs to start. At least one, which waits for a node."""
    possible = max(1, capacity)
    return min(wanted or possible, possible)


def slots(workers: int | None, resources: Resources) -> list[Gpus]:
    """Return the GPUs of each worker. By default, as many workers as the GPUs or cores allow."""
    gpus, cores = visible_gpus(), len(os.sched_getaffinity(0))
    per_run = gpus_per_run(resources, len(gpus))
    limit = MAX_PER_CPU * cores
    if workers and workers > limit:
        raise ConfigError(
            f"{workers} workers: this machine has {count(cores, 'CPU')} and room for {limit}; "
            "lower --workers or resources.workers, or leave it out"
        )
    if per_run == 0:
        return [()] * (workers or max(1, _fit_cpus(cores, resources.cpus_per_run)))
    shares = _gpu_shares(gpus, per_run)[:limit]
    if not shares:
        raise ConfigError(
            f"resources.gpus_per_run = {per_run:g}: this machine has {len(gpus)} GPUs; for the "
            "CPU, a study takes --set resources.gpus_per_run=0, and serve --gpus-per-run 0"
        )
    if workers and workers > len(shares):
        raise ConfigError(
            f"--workers {workers}: {len(gpus)} GPUs at {per_run:g} per run have room for "
            f"{len(shares)}; a smaller resources.gpus_per_run shares them"
        )
    return shares[:workers]


def _fit_cpus(cpus: float, cpus_per_run: float) -> int:
    return int(cpus / max(cpus_per_run, 1 / MAX_PER_CPU) + 1e-9)


def _gpu_shares(gpus: list[str], per_run: float) -> list[Gpus]:
    """Return the GPUs of each worker, ordered so that the first workers do not share one."""
    sharing = int(1 / per_run + 1e-9)
    return [(gpu,) for _ in range(sharing) for gpu in gpus]
