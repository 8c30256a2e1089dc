"""Who holds a lease: a process, and the machine and PID namespace in which its pid is valid."""

import os
import socket
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Holder:
    """The launcher process that holds a study's lease."""

    host: str
    pid: int
    started: float  # of the process, clock ticks since the machine's start
    token: str  # unique; its first part is the place that the pid is valid in

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}"

    @classmethod
    def here(cls) -> Self:
        found = _process(os.getpid())
        started = found[1] if found else 0.0
        token = f"{_place()}/{uuid.uuid4().hex}"
        return cls(socket.gethostname(), os.getpid(), started, token)

    def is_dead(self) -> bool:
        """Tell whether the process has certainly ended, which only its own place can know.

        Containers and cloned machines can share a host name, and each has its own pids.
        """
        if not self._is_near():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # it is somebody else's
        found = _process(self.pid)
        return found is not None and (found[0] in "ZX" or found[1] != self.started)

    def is_running(self) -> bool:
        """Tell whether the process is certainly alive and not stopped, whatever the clock says."""
        found = _process(self.pid) if self._is_near() else None
        return found is not None and found[0] in "RSD" and found[1] == self.started

    def _is_near(self) -> bool:
        """Tell whether its pid is valid here."""
        place = self.token.rpartition("/")[0]
        return bool(place) and self.host == socket.gethostname() and place == _place()


@cache
def _place() -> str:
    """Return what tells running machines and PID namespaces apart. It is empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, float] | None:
    """Return a process's state and its start in ticks, which no change of the clock shifts.

    Return None if they cannot be read.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], float(fields[19])
