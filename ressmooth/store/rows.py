"""What the Store hands out: plain frozen rows, named as the tables' columns."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psutil  # type: ignore[import-untyped]

# The clock that a start time is reckoned from is adjusted now and then; a reused pid is far off.
SAME_START = 10.0  # seconds

WAITING, RUNNING, COMPLETE, PRUNED, FAILED = "waiting", "running", "complete", "pruned", "failed"
TERMINAL = (COMPLETE, PRUNED, FAILED)


@dataclass(frozen=True)
class Holder:
    """The process that runs a study."""

    host: str
    pid: int
    started: float  # of the process, seconds since 1970
    token: str

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}"

    @classmethod
    def here(cls) -> Holder:
        process = psutil.Process()
        return cls(socket.gethostname(), os.getpid(), process.create_time(), uuid.uuid4().hex)

    def is_dead(self) -> bool:
        """True only if it certainly is: a process of this host that is no more."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            started, status = process.create_time(), process.status()
        except psutil.NoSuchProcess:
            return True
        return bool(status == psutil.STATUS_ZOMBIE or abs(started - self.started) > SAME_START)


@dataclass(frozen=True)
class Attempt:
    """The right to write a run, until somebody else claims it."""

    run_id: int
    number: int
    last_epoch: int  # recorded so far, by earlier attempts


@dataclass(frozen=True)
class StudyRow:
    id: int
    uid: str
    name: str
    spec: dict[str, Any]
    file_text: str
    created_at: datetime
    held_by: str | None  # host/pid
    held_at: datetime | None
    elapsed: float  # seconds over all launches


@dataclass(frozen=True)
class RunRow:
    id: int
    uid: str
    trial_id: int
    seed: int
    state: str
    attempt: int
    failures: int  # deaths of its workers
    config: dict[str, Any]
    max_acc: float | None
    mean_acc: float | None
    test_acc: float | None
    last_epoch: int
    seconds: float | None
    error: str | None
    host: str | None
    device: str | None
    threads: int | None
    versions: dict[str, Any] | None
    git_commit: str | None
    started_at: datetime | None
    finished_at: datetime | None
    weights_sha256: str | None


@dataclass(frozen=True)
class TrialRow:
    id: int
    study_id: int
    arm: str
    condition: dict[str, Any]  # arms are compared where it is the same
    confirms: int | None  # the trial whose configuration it trains with fresh seeds
    branch: str
    number_in_branch: int
    params: dict[str, Any]
    state: str
    value: float | None
    sampler_state: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None
    runs: list[RunRow]  # by seed


@dataclass(frozen=True)
class Winner:
    """The best complete trial of an arm under a condition, and of how many complete ones."""

    trial: TrialRow
    tried: int
    confirmation: TrialRow | None


@dataclass(frozen=True)
class EpochRow:
    epoch: int
    train_loss: float | None  # None where it was not measured or not finite
    train_acc: float | None
    val_loss: float | None
    val_acc: float | None
    lr: float | None
    scale: float | None
    diffusivity: float | None
    seconds: float | None
    recorded_at: datetime
    checkpoint_sha256: str | None


@dataclass(frozen=True)
class OutboxRow:
    id: int
    study_id: int
    run_id: int | None
    epoch: int | None
    kind: str  # epoch, run, study
    created_at: datetime
