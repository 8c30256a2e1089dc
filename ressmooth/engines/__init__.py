"""Two bodies for one brain: worker processes on this machine, or Ray Tune on a cluster."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from ressmooth import places

if TYPE_CHECKING:
    from ressmooth.dispatch import Dispatcher
    from ressmooth.store import RunRow

GRACE = 10.0  # seconds


def lost(dispatcher: "Dispatcher", home: Path, run: "RunRow", reason: str) -> str:
    """A run's worker died; what becomes of the run."""
    told = dispatcher.lost(run.id, reason)
    if dispatcher.store.run(run.id).finished_at is not None:
        places.clear(places.of_run(home, run.uid))
    return told


class Grace:
    """The time that runs get to end their epoch when the study is stopped."""

    def __init__(self) -> None:
        self.ends: float | None = None

    def begin(self) -> None:
        """Asked for a second time, there is no more of it."""
        self.ends = time.monotonic() + (GRACE if self.ends is None else 0)

    @property
    def begun(self) -> bool:
        return self.ends is not None

    @property
    def over(self) -> bool:
        return self.ends is not None and time.monotonic() >= self.ends
