"""How many runs go at once on this machine, and which GPU each may see."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from ressmooth.errors import ConfigError


@dataclass(frozen=True)
class Slot:
    """Room for one worker."""

    number: int
    gpus: tuple[str, ...]  # what CUDA_VISIBLE_DEVICES is set to; empty on a CPU


def visible_gpus() -> list[str]:
    """The GPUs of this machine, without loading torch."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip() and name != "-1"]
    driver = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(driver.iterdir())))] if driver.is_dir() else []


def room(cpus: float, gpus: float, *, gpus_per_run: float, cpus_per_run: float) -> int:
    """How many runs a node of a cluster holds at once, where a run has CPUs and GPUs."""
    fitting = int(cpus / cpus_per_run + 1e-9)
    if gpus_per_run == 0:
        return fitting
    return min(fitting, len(_gpu_places([str(i) for i in range(int(gpus))], gpus_per_run)))


def at_once(wanted: int | None, fitting: int) -> int:
    """How many runs are begun where `fitting` have room; one at least, which waits for a node."""
    possible = max(1, fitting)
    return min(wanted or possible, possible)


def slots(
    workers: int | None,
    *,
    gpus_per_run: float,
    cpus_per_run: float,
    gpus: list[str] | None = None,
    cpus: int | None = None,
) -> list[Slot]:
    """One slot per worker; `workers` None takes as many as the GPUs, or else the cores, allow."""
    gpus = visible_gpus() if gpus is None else gpus
    cpus = len(os.sched_getaffinity(0)) if cpus is None else cpus
    if gpus_per_run == 0:
        count = workers or max(1, int(cpus / cpus_per_run))
        return [Slot(number, ()) for number in range(count)]
    places = _gpu_places(gpus, gpus_per_run)
    if not places:
        raise ConfigError(
            f"resources.gpus_per_run = {gpus_per_run:g}: this machine has {len(gpus)} GPUs; "
            "use --set resources.gpus_per_run=0 for the CPU"
        )
    if workers and workers > len(places):
        raise ConfigError(
            f"--workers {workers}: {len(gpus)} GPUs at {gpus_per_run:g} per run have room for "
            f"{len(places)}"
        )
    return [Slot(number, place) for number, place in enumerate(places[:workers])]


def _gpu_places(gpus: list[str], per_run: float) -> list[tuple[str, ...]]:
    """The GPUs of each worker, spread so that the first workers do not share one."""
    if per_run >= 1:
        whole = math.ceil(per_run)
        return [tuple(gpus[i : i + whole]) for i in range(0, len(gpus) - whole + 1, whole)]
    sharing = int(1 / per_run + 1e-9)
    return [(gpu,) for _ in range(sharing) for gpu in gpus]
