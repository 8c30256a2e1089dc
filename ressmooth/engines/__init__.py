"""Two bodies for one brain: worker processes on this machine, or Ray Tune on a cluster."""

import time

GRACE = 10.0  # seconds


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
