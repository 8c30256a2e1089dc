"""Record runs, from waiting to finished.

A worker's writes carry its attempt number: a stale attempt writes nothing, and a finished run never
changes. Every method is idempotent, because Database.transact may repeat it.
"""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

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

from ressmooth import config
from ressmooth.errors import ConfigError, RunFinished, StaleAttempt
from ressmooth.store.database import Database, reading, writing
from ressmooth.store.rows import TERMINAL, Attempt, EpochRow, Event, RunRow, State
from ressmooth.store.tables import PENDING, Epoch, Outbox, Run, Trial, db_now, insert_new

ENVIRONMENT = ("host", "device", "threads", "versions", "git_commit")  # columns set by a claim
OUTCOME = (  # columns set by training
    "max_acc",
    "mean_acc",
    "test_acc",
    "seconds",
    "error",
    "started_at",
    "finished_at",
    "weights_sha256",
)
COST = ("dataset", "model", "fraction", "batch_size")  # settings that an epoch's time depends on
RECENT = 200  # runs from which the time of an epoch is estimated
IS_OPEN = Run.state.in_((State.WAITING, State.RUNNING))

# The statements of an epoch are built once, because SQLAlchemy takes longer to build a statement
# than to run it, and an epoch can be short.
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
    """The part of the Store that workers write, and launchers for workers that died."""

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
        """Return the epoch and the SHA-256 of every checkpoint, newest first."""
        query = (
            select(Epoch.epoch, Epoch.checkpoint_sha256)
            .where(Epoch.run_id == run_id, Epoch.checkpoint_sha256.is_not(None))
            .order_by(Epoch.epoch.desc())
        )
        return [(row.epoch, row.checkpoint_sha256) for row in connection.execute(query)]

    @reading
    def seconds_per_epoch(
        self, connection: Connection, settings: Mapping[str, Any]
    ) -> float | None:
        """Return the median over recent runs with similar settings, or None without any."""
        similar = [_setting(key) == settings[key] for key in COST if key in settings]
        for key, used in (("device", Run.device), ("threads", Run.threads)):
            if key in settings:  # as configured, or as used if configured as "auto" or 0
                similar.append(or_(_setting(key) == settings[key], used == settings[key]))
        query = (
            select(Run.seconds / Run.last_epoch)
            .where(
                Run.state.in_((State.COMPLETE, State.PRUNED)),
                Run.last_epoch > 0,
                Run.seconds > 0,
                *similar,
            )
            .order_by(Run.id.desc())
            .limit(RECENT)
        )
        seconds = [value for value in connection.scalars(query) if value is not None]
        return median(seconds) if seconds else None

    @writing
    def claim(self, connection: Connection, run_id: int, environment: Mapping[str, Any]) -> Attempt:
        """Start a new attempt at a run. Earlier attempts become stale."""
        unknown = environment.keys() - set(ENVIRONMENT)
        if unknown:
            raise ValueError(
                f"Unknown environment {sorted(unknown)}; known: {', '.join(ENVIRONMENT)}."
            )
        claimed = connection.execute(
            update(Run)
            .where(Run.id == run_id, IS_OPEN)
            .values(
                attempt=Run.attempt + 1,
                state=State.RUNNING,
                started_at=case((Run.started_at.is_(None), db_now()), else_=Run.started_at),
                **environment,
            )
            .returning(Run.attempt, Run.last_epoch)
        ).first()
        if claimed is None:
            _, state = _attempt_and_state(connection, run_id)
            raise RunFinished(f"Run {run_id} is {state} already.")
        _announce(connection, run_id, Event.RUN)
        return Attempt(run_id, claimed.attempt, claimed.last_epoch)

    @writing
    def record_epoch(
        self,
        connection: Connection,
        attempt: Attempt,
        epoch: config.Epoch,
        checkpoint_sha256: str | None,
    ) -> None:
        """Add an epoch to the run's curve, unless it is there already."""
        advanced = connection.execute(
            ADVANCE,
            {"of_run": attempt.run_id, "of_attempt": attempt.number, "reached": epoch.epoch},
        )
        if advanced.rowcount == 0:
            raise _stale(connection, attempt)
        row = {name: getattr(epoch, name) for name in ("epoch", *config.METRICS)}
        row |= {"run_id": attempt.run_id, "checkpoint_sha256": checkpoint_sha256}
        if connection.scalar(INSERT_EPOCH[connection.dialect.name], row) is not None:
            _announce(connection, attempt.run_id, Event.EPOCH, epoch.epoch)

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
        elif _attempt_and_state(connection, attempt.run_id) != (attempt.number, state):
            raise _stale(connection, attempt)

    @writing
    def release_run(self, connection: Connection, run_id: int) -> None:
        """Let a run wait for the next launch, because its launcher stops."""
        released = connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.state == State.RUNNING)
            .values(state=State.WAITING)
        )
        if released.rowcount:
            _announce(connection, run_id, Event.RUN)

    def fail_worker(self, run_id: int, reason: str) -> int:
        """Let a run wait for another worker. Return how often its worker has died."""
        # The attempt is read in a transaction of its own, so that a repeated write counts once.
        return self._fail_attempt(run_id, self._latest_attempt(run_id), reason)

    @reading
    def _latest_attempt(self, connection: Connection, run_id: int) -> int:
        return _attempt_and_state(connection, run_id)[0]

    @writing
    def _fail_attempt(self, connection: Connection, run_id: int, number: int, reason: str) -> int:
        connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.attempt == number, IS_OPEN)
            .values(
                attempt=number + 1, failures=Run.failures + 1, state=State.WAITING, error=reason
            )
        )
        return connection.scalars(select(Run.failures).where(Run.id == run_id)).one()

    @writing
    def give_up(self, connection: Connection, run_id: int, reason: str) -> None:
        """Let an unfinished run fail."""
        failed = connection.execute(
            update(Run)
            .where(Run.id == run_id, IS_OPEN)
            .values(attempt=Run.attempt + 1, state=State.FAILED, error=reason, finished_at=db_now())
        )
        if failed.rowcount:
            _announce(connection, run_id, Event.RUN)

    @writing
    def reset_failed(self, connection: Connection, study_id: int) -> int:
        """Let every failed run of a study start over. Return how many."""
        failed = connection.execute(
            update(Run)
            .where(
                Run.state == State.FAILED,
                Run.trial_id.in_(select(Trial.id).where(Trial.study_id == study_id)),
            )
            .values(state=State.WAITING, failures=0, last_epoch=0, **dict.fromkeys(OUTCOME))
            .returning(Run.id, Run.trial_id)
        ).all()
        runs = [{"of_run": run.id} for run in failed]
        if runs:
            connection.execute(delete(Epoch).where(Epoch.run_id == bindparam("of_run")), runs)
            unsent = (Outbox.run_id == bindparam("of_run")) & (Outbox.kind == Event.EPOCH)
            reject = update(Outbox).where(unsent, PENDING)
            connection.execute(reject.values(parked="the run is trained again"), runs)
            reopen(connection, {run.trial_id for run in failed})
        return len(failed)


def check_terminal(state: State) -> None:
    if state not in TERMINAL:
        raise ValueError(f"Cannot finish as '{state}'; known: {', '.join(TERMINAL)}.")


def reopen(connection: Connection, trial_ids: Iterable[int]) -> None:
    """Let finished trials run again, because they have new runs to train."""
    statement = update(Trial).where(Trial.id == bindparam("reopened"))
    connection.execute(
        statement.values(state=State.RUNNING, value=None, finished_at=None),
        [{"reopened": id} for id in trial_ids],
    )


def _attempt_and_state(connection: Connection, run_id: int) -> tuple[int, State]:
    row = connection.execute(select(Run.attempt, Run.state).where(Run.id == run_id)).first()
    if row is None:
        raise ConfigError(f"there is no run {run_id}")
    return row.attempt, row.state


def _stale(connection: Connection, attempt: Attempt) -> StaleAttempt:
    number, state = _attempt_and_state(connection, attempt.run_id)
    return StaleAttempt(
        f"Attempt {attempt.number} of run {attempt.run_id} is stale: "
        f"the run is {state} in attempt {number}."
    )


def _announce(connection: Connection, run_id: int, kind: Event, epoch: int | None = None) -> None:
    """Add an event to the outbox, in the transaction that it reports."""
    row = {"of_run": run_id, "run_id": run_id, "epoch": epoch, "kind": kind}
    connection.execute(ANNOUNCE, row)


def _setting(key: str) -> ColumnElement[Any]:
    """Return a field of a run's stored config as an SQL value."""
    setting: Any = Run.config[key]
    is_text = key in ("dataset", "model", "device")
    compared: ColumnElement[Any] = setting.as_string() if is_text else setting.as_float()
    return compared
