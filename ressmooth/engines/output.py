"""Keep a process alive whose standard output or error breaks: it becomes quiet, nothing else."""

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO


class QuietFile(io.FileIO):
    """A file descriptor that leads nowhere from its first failed write on.

    Its reader has left (`| head`), its terminal was closed, or the disk of the log file is full.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError:
            _open_nowhere(self.fileno())
            return super().write(data)


def survive_broken_output() -> None:
    """Let no failed write to standard output or error raise an exception in this process."""
    for descriptor in (0, 1, 2):  # a closed one would be given to the next file that is opened
        try:
            os.fstat(descriptor)
        except OSError:
            _open_nowhere(descriptor)
    sys.stdout, sys.stderr = _quiet(sys.stdout, 1), _quiet(sys.stderr, 2)


def _quiet(stream: TextIO, descriptor: int) -> TextIO:
    """Return a stream that never fails, unless it leads elsewhere, or there is none."""
    try:
        if stream is None or stream.fileno() != descriptor:
            return stream
    except OSError:  # it is in memory
        return stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(QuietFile(descriptor, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


def _open_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
