"""A run's way through the Store, from waiting to finished.

Every write carries its attempt number; a stale attempt writes nothing, a finished run stays as it
is. Each method may be done twice (see Database.transact) and then counts once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    case,
    delete,
    insert,
    or_,
    select,
    update,
)

from ressmooth.config import METRICS
from ressmooth.errors import ConfigError, RunFinished, StaleAttempt
from ressmooth.store.database import Database, reading, writing
from ressmooth.store.rows import TERMINAL, Attempt, EpochRow, Event, RunRow, State
from ressmooth.store.tables import PENDING, Epoch, Outbox, Run, Trial, db_now, insert_new

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ENVIRONMENT = ("host", "device", "threads", "versions", "git_commit")
LIKE = ("dataset", "model", "fraction", "batch_size")  # settings that an epoch's time depends on
RECENT = 200  # runs from which the time of an epoch is estimated
OUTCOME = (
    "max_acc",
    "mean_acc",
    "test_acc",
    "seconds",
    "error",
    "started_at",
    "finished_at",
    "weights_sha256",
)

# Built once, since an epoch may be short.
ADVANCE = (
    update(Run)
    .where(
        Run.id == bindparam("of_run"),
        Run.attempt == bindparam("of_attempt"),
        Run.state == State.RUNNING,
    )
    .values(
        last_epoch=case(
            (Run.last_epoch < bindparam("reached"), bindparam("reached")), else_=Run.last_epoch
        )
    )
)
INSERT_EPOCH = {
    dialect: insert_new(Epoch, dialect).values(recorded_at=db_now()).returning(Epoch.epoch)
    for dialect in ("sqlite", "postgresql")
}
STUDY_OF_RUN = (
    select(Trial.study_id)
    .join(Run, Run.trial_id == Trial.id)
    .where(Run.id == bindparam("of_run"))
    .scalar_subquery()
)
ANNOUNCE = insert(Outbox).values(study_id=STUDY_OF_RUN, created_at=db_now())


class Runs:
    """The part of the Store that a run's worker and its launcher write."""

    database: Database

    @reading
    def run(self, connection: Connection, run_id: int) -> RunRow:
        row = connection.execute(select(Run).where(Run.id == run_id)).mappings().first()
        if row is None:
            raise ConfigError(f"there is no run {run_id}")
        return RunRow(**row)

    @reading
    def curve(self, connection: Connection, run_id: int) -> list[EpochRow]:
        columns = [column for column in Epoch.__table__.columns if column.name != "run_id"]
        query = select(*columns).where(Epoch.run_id == run_id).order_by(Epoch.epoch)
        return [EpochRow(**row) for row in connection.execute(query).mappings()]

    @reading
    def checkpoints(self, connection: Connection, run_id: int) -> list[tuple[int, str]]:
        """Return epoch and SHA-256 of every checkpoint that was written, newest first."""
        query = (
            select(Epoch.epoch, Epoch.checkpoint_sha256)
            .where(Epoch.run_id == run_id, Epoch.checkpoint_sha256.is_not(None))
            .order_by(Epoch.epoch.desc())
        )
        return [(row.epoch, row.checkpoint_sha256) for row in connection.execute(query)]

    @reading
    def seconds_per_epoch(self, connection: Connection, like: Mapping[str, Any]) -> float | None:
        """Return the median over the latest runs with settings like these, None without any."""
        alike = [_setting(key) == like[key] for key in LIKE if key in like]
        for key, used in (("device", Run.device), ("threads", Run.threads)):
            if key in like:  # as it was set, or as "auto" or 0 threads turned out
                alike.append(or_(_setting(key) == like[key], used == like[key]))
        query = (
            select(Run.seconds / Run.last_epoch)
            .where(
                Run.state.in_((State.COMPLETE, State.PRUNED)),
                Run.last_epoch > 0,
                Run.seconds > 0,
                *alike,
            )
            .order_by(Run.id.desc())
            .limit(RECENT)
        )
        seconds = [value for value in connection.scalars(query) if value is not None]
        return median(seconds) if seconds else None

    @writing
    def claim(self, connection: Connection, run_id: int, environment: Mapping[str, Any]) -> Attempt:
        """Take a run; whoever had it before is stale from now on."""
        unknown = environment.keys() - set(ENVIRONMENT)
        if unknown:
            raise ValueError(
                f"Unknown environment {sorted(unknown)}; known: {', '.join(ENVIRONMENT)}."
            )
        claimed = connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.state.in_((State.WAITING, State.RUNNING)))
            .values(
                attempt=Run.attempt + 1,
                state=State.RUNNING,
                started_at=case((Run.started_at.is_(None), db_now()), else_=Run.started_at),
                **environment,
            )
            .returning(Run.attempt, Run.last_epoch)
        ).first()
        if claimed is None:
            raise RunFinished(f"Run {run_id} is {_state(connection, run_id)} already.")
        _announce(connection, run_id, Event.RUN)
        return Attempt(run_id, claimed.attempt, claimed.last_epoch)

    @writing
    def record_epoch(
        self,
        connection: Connection,
        attempt: Attempt,
        epoch: "Mapping[str, Any] | DataclassInstance",
        checkpoint_sha256: str | None,
    ) -> None:
        """Add an epoch to the curve (`train.Epoch` or its fields); known already, it stays."""
        fields = epoch if isinstance(epoch, Mapping) else asdict(epoch)
        number = fields["epoch"]
        advanced = connection.execute(
            ADVANCE,
            {"of_run": attempt.run_id, "of_attempt": attempt.number, "reached": number},
        )
        if advanced.rowcount == 0:
            raise _stale(connection, attempt)
        row: dict[str, Any] = {name: fields[name] for name in METRICS}
        row |= {"run_id": attempt.run_id, "epoch": number, "checkpoint_sha256": checkpoint_sha256}
        if connection.scalar(INSERT_EPOCH[connection.dialect.name], row) is not None:
            _announce(connection, attempt.run_id, Event.EPOCH, number)

    @writing
    def finish_run(
        self,
        connection: Connection,
        attempt: Attempt,
        state: State,
        *,
        max_acc: float | None = None,
        mean_acc: float | None = None,
        test_acc: float | None = None,
        weights_sha256: str | None = None,
        error: str | None = None,
        seconds: float | None = None,
    ) -> None:
        check_terminal(state)
        finished = connection.execute(
            update(Run)
            .where(
                Run.id == attempt.run_id, Run.attempt == attempt.number, Run.state == State.RUNNING
            )
            .values(
                state=state,
                max_acc=max_acc,
                mean_acc=mean_acc,
                test_acc=test_acc,
                weights_sha256=weights_sha256,
                error=error,
                seconds=seconds,
                finished_at=db_now(),
            )
        )
        if finished.rowcount:
            _announce(connection, attempt.run_id, Event.RUN)
        elif _position(connection, attempt.run_id) != (attempt.number, state):
            raise _stale(connection, attempt)

    @writing
    def release_run(self, connection: Connection, run_id: int) -> None:
        """Its launcher stops: the run waits for the next launch."""
        released = connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.state == State.RUNNING)
            .values(state=State.WAITING)
        )
        if released.rowcount:
            _announce(connection, run_id, Event.RUN)

    def fail_worker(self, run_id: int, reason: str) -> int:
        """Its worker died: the run waits for another one; how often that has happened to it."""
        return self._fail_worker(run_id, self._attempt(run_id), reason)

    @reading
    def _attempt(self, connection: Connection, run_id: int) -> int:
        return _position(connection, run_id)[0]

    @writing
    def _fail_worker(self, connection: Connection, run_id: int, seen: int, reason: str) -> int:
        connection.execute(
            update(Run)
            .where(
                Run.id == run_id, Run.attempt == seen, Run.state.in_((State.WAITING, State.RUNNING))
            )
            .values(attempt=seen + 1, failures=Run.failures + 1, state=State.WAITING, error=reason)
        )
        return connection.scalars(select(Run.failures).where(Run.id == run_id)).one()

    @writing
    def give_up(self, connection: Connection, run_id: int, reason: str) -> None:
        given_up = connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.state.in_((State.WAITING, State.RUNNING)))
            .values(
                attempt=Run.attempt + 1,
                state=State.FAILED,
                error=reason,
                finished_at=db_now(),
            )
        )
        if given_up.rowcount:
            _announce(connection, run_id, Event.RUN)

    @writing
    def reset_failed(self, connection: Connection, study_id: int) -> int:
        """Let every failed run of a study be trained again from the start; how many."""
        failed = connection.execute(
            update(Run)
            .where(
                Run.state == State.FAILED,
                Run.trial_id.in_(select(Trial.id).where(Trial.study_id == study_id)),
            )
            .values(
                state=State.WAITING,
                failures=0,
                last_epoch=0,
                **dict.fromkeys(OUTCOME),
            )
            .returning(Run.id, Run.trial_id)
        ).all()
        runs = [{"of_run": run.id} for run in failed]
        if runs:
            connection.execute(delete(Epoch).where(Epoch.run_id == bindparam("of_run")), runs)
            unsent = update(Outbox).where(
                Outbox.run_id == bindparam("of_run"), Outbox.kind == Event.EPOCH, PENDING
            )
            connection.execute(unsent.values(parked="the run is trained again"), runs)
            reopen(connection, {run.trial_id for run in failed})
        return len(failed)


def check_terminal(state: State) -> None:
    if state not in TERMINAL:
        raise ValueError(f"Cannot finish as {state!r}; known: {', '.join(TERMINAL)}.")


def reopen(connection: Connection, trial_ids: Iterable[int]) -> None:
    statement = update(Trial).where(Trial.id == bindparam("reopened"))
    connection.execute(
        statement.values(state=State.RUNNING, value=None, finished_at=None),
        [{"reopened": id} for id in trial_ids],
    )


def _state(connection: Connection, run_id: int) -> State:
    return _position(connection, run_id)[1]


def _position(connection: Connection, run_id: int) -> tuple[int, State]:
    row = connection.execute(select(Run.attempt, Run.state).where(Run.id == run_id)).first()
    if row is None:
        raise ConfigError(f"there is no run {run_id}")
    return row.attempt, row.state


def _stale(connection: Connection, attempt: Attempt) -> StaleAttempt:
    number, state = _position(connection, attempt.run_id)
    return StaleAttempt(
        f"Attempt {attempt.number} of run {attempt.run_id} is stale: "
        f"the run is {state} in attempt {number}."
    )


def _announce(connection: Connection, run_id: int, kind: Event, epoch: int | None = None) -> None:
    row = {"of_run": run_id, "run_id": run_id, "epoch": epoch, "kind": kind}
    connection.execute(ANNOUNCE, row)


def _setting(key: str) -> ColumnElement[Any]:
    """Return a field of a run's stored config, for comparison."""
    setting: Any = Run.config[key]
    is_text = key in ("dataset", "model", "device")
    compared: ColumnElement[Any] = setting.as_string() if is_text else setting.as_float()
    return compared
