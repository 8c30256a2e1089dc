"""A run's way through the Store, from waiting to finished.

Every write carries its attempt number; a stale attempt writes nothing, a finished run stays as it
is. Each method may be done twice (see Database.transact) and then counts once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, case, delete, insert, select, update

from ressmooth.errors import ConfigError, RunFinished, StaleAttempt
from ressmooth.store.database import Database
from ressmooth.store.rows import FAILED, RUNNING, TERMINAL, WAITING, Attempt
from ressmooth.store.tables import PENDING, Epoch, Outbox, Run, Trial, clock, insert_new
from ressmooth.store.transaction import reading, writing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FACTS = ("host", "device", "threads", "versions", "git_commit")
METRICS = (
    "train_loss",
    "train_acc",
    "val_loss",
    "val_acc",
    "lr",
    "scale",
    "diffusivity",
    "seconds",
)
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
        Run.state == RUNNING,
    )
    .values(
        last_epoch=case(
            (Run.last_epoch < bindparam("reached"), bindparam("reached")), else_=Run.last_epoch
        )
    )
)
INSERT_EPOCH = {
    dialect: insert_new(Epoch, dialect).values(recorded_at=clock()).returning(Epoch.epoch)
    for dialect in ("sqlite", "postgresql")
}
STUDY_OF_RUN = (
    select(Trial.study_id)
    .join(Run, Run.trial_id == Trial.id)
    .where(Run.id == bindparam("of_run"))
    .scalar_subquery()
)
TELL = insert(Outbox).values(study_id=STUDY_OF_RUN, created_at=clock())


class Recording:
    """The part of the Store that a run's worker and its launcher write."""

    database: Database

    @writing
    def claim(self, connection: Connection, run_id: int, facts: Mapping[str, Any]) -> Attempt:
        """Take a run; whoever had it before is stale from now on."""
        unknown = facts.keys() - set(FACTS)
        if unknown:
            raise ValueError(f"Unknown facts {sorted(unknown)}; known: {', '.join(FACTS)}.")
        claimed = connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.state.in_((WAITING, RUNNING)))
            .values(
                attempt=Run.attempt + 1,
                state=RUNNING,
                started_at=case((Run.started_at.is_(None), clock()), else_=Run.started_at),
                **facts,
            )
            .returning(Run.attempt, Run.last_epoch)
        ).first()
        if claimed is None:
            raise RunFinished(f"Run {run_id} is {_state(connection, run_id)} already.")
        _tell(connection, run_id, "run")
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
            _tell(connection, attempt.run_id, "epoch", number)

    @writing
    def finish_run(
        self,
        connection: Connection,
        attempt: Attempt,
        state: str,
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
            .where(Run.id == attempt.run_id, Run.attempt == attempt.number, Run.state == RUNNING)
            .values(
                state=state,
                max_acc=max_acc,
                mean_acc=mean_acc,
                test_acc=test_acc,
                weights_sha256=weights_sha256,
                error=error,
                seconds=seconds,
                finished_at=clock(),
            )
        )
        if finished.rowcount:
            _tell(connection, attempt.run_id, "run")
        elif _position(connection, attempt.run_id) != (attempt.number, state):
            raise _stale(connection, attempt)

    @writing
    def release_run(self, connection: Connection, run_id: int) -> None:
        """Its launcher stops: the run waits for the next launch."""
        released = connection.execute(
            update(Run).where(Run.id == run_id, Run.state == RUNNING).values(state=WAITING)
        )
        if released.rowcount:
            _tell(connection, run_id, "run")

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
            .where(Run.id == run_id, Run.attempt == seen, Run.state.in_((WAITING, RUNNING)))
            .values(attempt=seen + 1, failures=Run.failures + 1, state=WAITING, error=reason)
        )
        return connection.scalars(select(Run.failures).where(Run.id == run_id)).one()

    @writing
    def give_up(self, connection: Connection, run_id: int, reason: str) -> None:
        given_up = connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.state.in_((WAITING, RUNNING)))
            .values(
                attempt=Run.attempt + 1,
                state=FAILED,
                error=reason,
                finished_at=clock(),
            )
        )
        if given_up.rowcount:
            _tell(connection, run_id, "run")

    @writing
    def reset_failed(self, connection: Connection, study_id: int) -> int:
        """Let every failed run of a study be trained again from the start; how many."""
        failed = connection.execute(
            update(Run)
            .where(
                Run.state == FAILED,
                Run.trial_id.in_(select(Trial.id).where(Trial.study_id == study_id)),
            )
            .values(
                state=WAITING,
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
                Outbox.run_id == bindparam("of_run"), Outbox.kind == "epoch", PENDING
            )
            connection.execute(unsent.values(parked="the run is trained again"), runs)
            reopen(connection, {run.trial_id for run in failed})
        return len(failed)


def check_terminal(state: str) -> None:
    if state not in TERMINAL:
        raise ValueError(f"Cannot finish as {state!r}; known: {', '.join(TERMINAL)}.")


def reopen(connection: Connection, trial_ids: Iterable[int]) -> None:
    statement = update(Trial).where(Trial.id == bindparam("reopened"))
    connection.execute(
        statement.values(state=RUNNING, value=None, finished_at=None),
        [{"reopened": id} for id in trial_ids],
    )


def _state(connection: Connection, run_id: int) -> str:
    return _position(connection, run_id)[1]


def _position(connection: Connection, run_id: int) -> tuple[int, str]:
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


def _tell(connection: Connection, run_id: int, kind: str, epoch: int | None = None) -> None:
    row = {"of_run": run_id, "run_id": run_id, "epoch": epoch, "kind": kind}
    connection.execute(TELL, row)
