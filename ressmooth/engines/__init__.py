"""Local and Ray execution of planned runs, for one study or for a service of many.

How a study resumes: the launcher takes the lease (store/lease.py), the planner queues what the
Store has not recorded as finished (search/planner.py), and the runner restores each run from its
newest intact checkpoint (engines/runner.py).
"""

import os
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ressmooth import paths
from ressmooth.errors import ConfigError

if TYPE_CHECKING:
    from ressmooth.engines.progress import EventLog
    from ressmooth.engines.scheduler import Scheduler
    from ressmooth.spec import Resources, StudySpec
    from ressmooth.store import RunRow, Store

MAX_STRIKES = 2  # runs whose workers a GPU may lose before they record an epoch
GRACE = 10.0  # seconds that a stopped study gives its runs to end their epoch


class Decision(StrEnum):
    """What a run does after an epoch has been recorded."""

    CONTINUE = "continue"
    PRUNE = "prune"
    STOP = "stop"


class Engine(Protocol):
    """Executes the scheduler's runs on some machines. `str(engine)` describes them."""

    @property
    def workers(self) -> int: ...  # concurrent runs

    @property
    def gpus(self) -> float: ...  # that there are, used or not

    @property
    def gpus_per_run(self) -> float: ...  # what "auto" means here

    def nodes(self) -> list[dict[str, Any]]:
        """Return a dict per machine: node (its name), workers and gpus."""

    def run(
        self,
        scheduler: "Scheduler",
        store: "Store",
        home: Path,
        view: "EventLog",
        tick: Callable[[], None],
    ) -> None:
        """Execute runs until nothing is left or the engine is stopped.

        `tick` is called about twice a second, and before anything is recorded.
        """

    def stop(self) -> None:
        """End every run after its current epoch. A second call ends them at once."""


class Stoppable:
    """An engine whose runs get time to end their epoch after the study was stopped."""

    grace_ends: float | None = None  # monotonic seconds

    def stop(self) -> None:
        self.grace_ends = time.monotonic() + (0 if self.is_stopping else GRACE)

    @property
    def is_stopping(self) -> bool:
        return self.grace_ends is not None

    @property
    def grace_is_over(self) -> bool:
        return self.grace_ends is not None and time.monotonic() >= self.grace_ends


def worker_died(
    scheduler: "Scheduler", store: "Store", home: Path, run: "RunRow", reason: str
) -> str:
    """Requeue or fail a run whose worker died. Return a message for the view."""
    message = scheduler.worker_died(run, reason)
    if store.run(run.id).finished_at is not None:
        paths.remove_checkpoints(paths.run_directory(home, run.uid))
    return message


def number_of_workers(text: str) -> int | None:
    """Return the value of --workers, None for auto."""
    if text == "auto":
        return None
    if not (text.isdecimal() and 0 < int(text) <= 1024):
        raise ConfigError(f"--workers {text}: a number from 1 to 1024, or auto")
    return int(text)


def new_engine(name: str, resources: "Resources", workers: int | None, home: Path) -> Engine:
    """Return the engine of that name. Ray's asks the cluster for its nodes."""
    if name == "local":
        from ressmooth.engines.local import LocalEngine

        return LocalEngine(resources, workers)
    from ressmooth.store import default_url

    # Read by `import ray`. Otherwise ray.init replaces our signal handlers by ones that end the
    # process, and ray.shutdown by the default action, which does the same.
    os.environ["RAY_DISABLE_FAILURE_SIGNAL_HANDLER"] = "1"
    if os.environ.get("RAY_ADDRESS", "local") in ("", "local"):
        # A Ray of our own then listens on 127.0.0.1 only, on Linux too.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        from ressmooth.engines.ray import RayEngine
    except ImportError as error:
        raise ConfigError("--engine ray: Ray is missing; pip install 'ressmooth[ray]'") from error
    return RayEngine(resources, workers, default_url(home))


def check_fits(spec: "StudySpec", engine: Engine) -> None:
    """Raise a ConfigError if the engine's runs get fewer GPUs than the study needs."""
    given = spec.resources.gpus_per_run
    if "cuda" in spec.devices and not engine.gpus_per_run:
        raise ConfigError(
            f"device = 'cuda': runs get no GPU, because resources.gpus_per_run = {given!r}, and "
            f"there are {engine.gpus:g} GPUs; this would be {engine}"
        )
    if "tf32" in spec.precisions and not engine.gpus_per_run:
        raise ConfigError(
            f"precision = 'tf32': only GPUs have it, and this would be {engine}; use 'fp32'"
        )
    if given != "auto" and given > engine.gpus_per_run:  # the service's workers are for all studies
        raise ConfigError(
            f"resources.gpus_per_run = {given:g}: the service gives each run "
            f"{engine.gpus_per_run:g}; use auto, or start it with --gpus-per-run {given:g}"
        )
