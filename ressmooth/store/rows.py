"""The rows that the Store returns: frozen dataclasses with the names of the SQL columns."""

import os
import socket
import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import psutil  # type: ignore[import-untyped]

from ressmooth.config import Epoch

# Adjusting the system clock shifts a process's start time a little. A reused pid differs by more.
SAME_START = 10.0  # seconds


class State(StrEnum):
    """The state of a run or a trial, as stored in SQL. A trial never waits."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = (State.COMPLETE, State.PRUNED, State.FAILED)


class Event(StrEnum):
    """What an outbox row reports to MLflow."""

    EPOCH = "epoch"
    RUN = "run"
    STUDY = "study"


@dataclass(frozen=True)
class Holder:
    """The launcher process that holds a study's lease."""

    host: str
    pid: int
    started: float  # of the process, seconds since 1970
    token: str

    def __str__(self) -> str:
        return f"{self.host}/{self.pid}"

    @classmethod
    def here(cls) -> Self:
        process = psutil.Process()
        return cls(socket.gethostname(), os.getpid(), process.create_time(), uuid.uuid4().hex)

    def is_dead(self) -> bool:
        """Tell whether the process has certainly ended, which only its own host can know."""
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
    """A worker's claim on a run. Only the latest attempt may write."""

    run_id: int
    number: int
    last_epoch: int  # recorded by earlier attempts


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
    state: State
    attempt: int
    failures: int  # how often its worker died
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
    condition: dict[str, Any]  # arms are compared under the same condition
    confirms: int | None  # the trial whose configuration it retrains with fresh seeds
    branch: str
    number_in_branch: int
    params: dict[str, Any]
    state: State
    value: float | None
    sampler_state: dict[str, Any]
    created_at: datetime
    finished_at: datetime | None
    runs: list[RunRow]  # in the order of their seeds


@dataclass(frozen=True)
class Winner:
    """The best complete trial of an arm under a condition."""

    trial: TrialRow
    tried: int  # complete trials that it was selected from
    confirmation: TrialRow | None


@dataclass(frozen=True)
class EpochRow(Epoch):
    recorded_at: datetime
    checkpoint_sha256: str | None


@dataclass(frozen=True)
class OutboxRow:
    id: int
    study_id: int
    run_id: int | None
    epoch: int | None
    kind: Event
    created_at: datetime


Problem = tuple[str, str, float]  # data set, network, fraction


@dataclass(frozen=True)
class PublishedFigure:
    """One number of the paper's tables (SQL table `baseline`)."""

    table_name: str
    dataset: str
    model: str
    fraction: float
    method: str
    weight_decay: float
    statistic: str  # max: accuracy of the best epoch; mean: of the last tenth of the epochs
    value: float  # accuracy in %

    @property
    def problem(self) -> Problem:
        return self.dataset, self.model, self.fraction
