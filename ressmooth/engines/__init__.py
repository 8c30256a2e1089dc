"""Local and Ray execution of one planner.

How a study resumes: the launcher takes the lease (store/lease.py), the planner queues what the
Store has not recorded as finished (search/planner.py), and the runner restores each run from its
newest intact checkpoint (engines/runner.py).
"""

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ressmooth import paths

if TYPE_CHECKING:
    from ressmooth.engines.progress import View
    from ressmooth.search.planner import Planner
    from ressmooth.store import RunRow

GRACE = 10.0  # seconds that a stopped study gives its runs to end their epoch


class Decision(StrEnum):
    """What a run does after an epoch has been recorded."""

    CONTINUE = "continue"
    PRUNE = "prune"
    STOP = "stop"


class Engine(Protocol):
    """Executes the planner's runs on some machines. `str(engine)` describes them."""

    @property
    def workers(self) -> int: ...  # concurrent runs

    @property
    def idle_gpus(self) -> float: ...  # GPUs that the study leaves unused

    def run(self, planner: "Planner", home: Path, view: "View", tick: Callable[[], None]) -> None:
        """Execute runs until nothing is left or the engine is stopped.

        `tick` is called about twice a second, for the heartbeat and the time budget.
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


def worker_died(planner: "Planner", home: Path, run: "RunRow", reason: str) -> str:
    """Requeue or fail a run whose worker died. Return a message for the view."""
    message = planner.worker_died(run.id, reason)
    if planner.store.run(run.id).finished_at is not None:
        paths.remove_checkpoints(paths.run_directory(home, run.uid))
    return message
