"""The rows that the Store returns: frozen dataclasses with the names of the SQL columns."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ressmooth.config import Epoch
from ressmooth.store.holder import Holder

OUT_OF_MEMORY = "CUDA out of memory"


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


class StudyState(StrEnum):
    """The state of a study, as stored in SQL."""

    QUEUED = "queued"  # waits for the service
    RUNNING = "running"  # a launcher or the service executes its runs
    STOPPING = "stopping"  # as asked for; its runs end their epoch
    STOPPED = "stopped"
    ENDED = "ended"
    FAILED = "failed"  # nothing of it can be trained, for the reason in `problem`

    @property
    def is_active(self) -> bool:
        """Tell whether the study waits or runs."""
        return self in (StudyState.QUEUED, StudyState.RUNNING, StudyState.STOPPING)


class Priority(StrEnum):
    """The priority of a study in the service."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def weight(self) -> int:
        """Return the share of the workers that the study gets, relative to others."""
        return {"low": 1, "normal": 4, "high": 16}[self]


class Event(StrEnum):
    """What an outbox row reports to MLflow."""

    EPOCH = "epoch"
    RUN = "run"
    STUDY = "study"


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
    state: StudyState
    priority: Priority
    owner: str | None  # user@host
    submitted_at: datetime | None
    problem: str | None  # why it failed
    runs_planned: int | None  # at most; None in rows of older schemas


@dataclass(frozen=True)
class Submission:
    """What the service reads of a study every second, without its spec."""

    id: int
    name: str
    state: StudyState
    priority: Priority
    owner: str | None
    submitted_at: datetime | None
    holder_token: str | None


@dataclass(frozen=True)
class ServiceRow:
    """The service of a Store, as it was at its last heartbeat."""

    holder: Holder
    held_at: datetime
    silent: float  # seconds since the last heartbeat
    is_alive: bool
    build: str  # of ressmooth
    engine: str  # its name
    description: str  # of its workers
    nodes: list[dict[str, Any]]  # a dict per machine: node, workers, gpus

    def __str__(self) -> str:
        return self.description

    @property
    def workers(self) -> int:
        return sum(node["workers"] for node in self.nodes)

    @property
    def gpus_per_run(self) -> None:
        """Return None: it is not recorded."""


@dataclass(frozen=True)
class QueuedStudy:
    """A study in the queue, with its progress."""

    id: int
    name: str
    state: StudyState
    priority: Priority
    owner: str | None
    problem: str | None
    since: datetime  # of its submission, or else of its creation
    runs_done: int
    runs_known: int  # recorded and planned ones
    epochs_left: int | None  # an estimate; None before the first run is recorded
    epochs_per_minute: float | None  # None if no run executes, or too few epochs ended lately
    is_interrupted: bool  # it should run, but its launcher or service is dead
    is_served: bool  # by the last service, dead or alive


@dataclass(frozen=True)
class RunningRun:
    """A run that executes."""

    study_id: int
    study: str
    arm: str
    params: dict[str, Any]
    seed: int
    last_epoch: int
    epochs: int
    host: str | None
    gpus: str | None  # CUDA_VISIBLE_DEVICES of its worker
    device: str | None
    started_at: datetime


@dataclass(frozen=True)
class Queue:
    """All studies at one moment: active ones first, then the others, the newest first."""

    service: ServiceRow | None
    studies: list[QueuedStudy]
    running: list[RunningRun]
    hidden: int  # studies that were left out

    @property
    def has_service(self) -> bool:
        """Tell whether a living service takes up studies."""
        return self.service is not None and self.service.is_alive


@dataclass(frozen=True)
class Notification:
    """A message for the webhook."""

    id: int
    study: str
    kind: str  # ended, failed or standstill
    problem: str | None  # why it failed
    owner: str | None


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
    gpus: str | None  # CUDA_VISIBLE_DEVICES of its worker
    threads: int | None
    versions: dict[str, Any] | None
    git_commit: str | None
    started_at: datetime | None
    finished_at: datetime | None
    weights_sha256: str | None
    metrics: dict[str, dict[str, float]] | None  # other than accuracy: name -> statistic -> value
    data_sha256: str | None  # of the user's own data set
    prefix: str | None  # key of the prefix that it shares; None if no epoch is plain
    plain_epochs: int | None  # that the prefix has
    forked_from: int | None  # the run whose prefix it continues
    forked_at: int | None  # the last epoch of that

    @property
    def trained_epochs(self) -> int:
        """Return the epochs that it trained itself."""
        return max(0, self.last_epoch - (self.forked_at or 0))

    @property
    def needs_whole_gpu(self) -> bool:
        """Tell whether the last attempt ran out of GPU memory. The next one has it to itself."""
        return self.error == OUT_OF_MEMORY and not self.state.is_terminal

    @property
    def next_attempt(self) -> Attempt:
        """Return the attempt of the worker that this run, as it waits, is given to."""
        return Attempt(self.id, self.attempt + 1, self.last_epoch)

    def result(self, metric: str, statistic: str) -> float | None:
        """Return a metric of the best epoch (max), over the last tenth (mean), or tested (test)."""
        if metric == "accuracy":
            found: float | None = getattr(self, f"{statistic}_acc")
            return found
        return (self.metrics or {}).get(metric, {}).get(statistic)


@dataclass(frozen=True)
class RunFiles:
    """What decides whether the files of a run are still needed."""

    uid: str
    state: State
    study_id: int
    study_state: StudyState


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
    states: dict[State, int]  # number of the arm's trials by state, without confirmations
    confirmation: TrialRow | None

    @property
    def tried(self) -> int:
        """The complete trials, from which this one was selected."""
        return self.states.get(State.COMPLETE, 0)


@dataclass(frozen=True, kw_only=True)
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
