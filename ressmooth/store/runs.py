"""Record runs, from waiting to finished.

A worker's writes carry its attempt number: a stale attempt writes nothing, and a finished run never
changes. A launcher that lost its lease begins no attempt. Every write is safe to repeat, because
Database.transact may repeat it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, TypedDict, Unpack

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)

from ressmooth import config
from ressmooth.errors import ConfigError, RunFinished, StaleAttempt
from ressmooth.store.database import Part, reading, writing
from ressmooth.store.lease import check_held
from ressmooth.store.outbox import RETRAINED
from ressmooth.store.rows import TERMINAL, Attempt, EpochRow, Event, RunRow, State
from ressmooth.store.tables import PENDING, Epoch, Outbox, Run, Trial, db_now, insert_new

ENVIRONMENT = (
    "host",
    "device",
    "gpus",
    "threads",
    "versions",
    "git_commit",
)  # columns set by a claim
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
CURVES = select(Epoch.__table__).order_by(Epoch.run_id, Epoch.epoch)
ANNOUNCE = insert(Outbox).values(study_id=STUDY_OF_RUN, created_at=db_now())


class Outcome(TypedDict, total=False):
    """The columns that training sets. Omitted ones become NULL."""

    max_acc: float | None
    mean_acc: float | None
    test_acc: float | None
    metrics: dict[str, dict[str, float]] | None
    weights_sha256: str | None
    error: str | None
    seconds: float | None


NO_OUTCOME = dict.fromkeys(Outcome.__annotations__)


def pruned_outcome(curve: Sequence[config.Epoch]) -> Outcome:
    """Return the outcome of a run that was stopped after these epochs."""
    metrics = config.METRIC.items()
    best = {name: metric.best(config.values_of(curve, name)) for name, metric in metrics}
    return {
        "max_acc": best.pop("accuracy"),
        "metrics": {name: {"max": value} for name, value in best.items() if value is not None},
        "seconds": sum(epoch.seconds or 0.0 for epoch in curve),
    }


class Runs(Part):
    """Runs and their curves: what workers write, and what a launcher writes for dead workers."""

    @reading
    def run(self, connection: Connection, run_id: int) -> RunRow:
        return _run(connection, run_id)

    @reading
    def curve(self, connection: Connection, run_id: int) -> list[EpochRow]:
        return _curves(connection, CURVES.where(Epoch.run_id == run_id)).get(run_id, [])

    @reading
    def curves(self, connection: Connection, run_ids: Sequence[int]) -> dict[int, list[EpochRow]]:
        """Return the curves of runs by run id, without runs that have no epoch yet."""
        return _curves(connection, CURVES.where(Epoch.run_id.in_(run_ids)))

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
                similar.append((_setting(key) == settings[key]) | (used == settings[key]))
        trained = Run.last_epoch - func.coalesce(Run.forked_at, 0)
        query = (
            select(Run.seconds / trained)
            .where(
                Run.state.in_((State.COMPLETE, State.PRUNED)),
                trained > 0,
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
        if unknown := sorted(environment.keys() - set(ENVIRONMENT)):
            raise ValueError(f"Unknown environment {unknown}; known: {', '.join(ENVIRONMENT)}.")
        self._check_held(connection, run_id)
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
            raise RunFinished(f"Run {run_id} is {_run(connection, run_id).state} already.")
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
        reached = {"of_run": attempt.run_id, "of_attempt": attempt.number, "reached": epoch.epoch}
        if connection.execute(ADVANCE, reached).rowcount == 0:
            raise _stale(_run(connection, attempt.run_id), attempt)
        row = {name: getattr(epoch, name) for name in ("epoch", *config.METRICS)}
        row |= {"run_id": attempt.run_id, "checkpoint_sha256": checkpoint_sha256}
        if connection.scalar(INSERT_EPOCH[connection.dialect.name], row) is not None:
            _announce(connection, attempt.run_id, Event.EPOCH, epoch.epoch)

    @writing
    def finish_run(
        self, connection: Connection, attempt: Attempt, state: State, **outcome: Unpack[Outcome]
    ) -> None:
        check_terminal(state)
        self._check_held(connection, attempt.run_id)
        is_current = (Run.attempt == attempt.number) & (Run.state == State.RUNNING)
        values = {**NO_OUTCOME, **outcome, "state": state, "finished_at": db_now()}
        if not change_run(connection, attempt.run_id, is_current, values):
            run = _run(connection, attempt.run_id)
            if (run.attempt, run.state) != (attempt.number, state):
                raise _stale(run, attempt)

    @writing
    def record_data(self, connection: Connection, attempt: Attempt, sha256: str) -> str:
        """Record the hash of a run's own data. Return the one that it began with."""
        is_first = (Run.id == attempt.run_id) & Run.data_sha256.is_(None)
        connection.execute(update(Run).where(is_first).values(data_sha256=sha256))
        query = select(Run.data_sha256).where(Run.id == attempt.run_id)
        return str(connection.scalars(query).one())

    @writing
    def release_run(
        self, connection: Connection, attempt: Attempt, reason: str | None = None
    ) -> None:
        """Requeue a run whose attempt was stopped, or failed for a reason that may pass."""
        self._check_held(connection, attempt.run_id)
        is_current = (Run.state == State.RUNNING) & (Run.attempt == attempt.number)
        values = {"state": State.WAITING} | ({"error": reason} if reason else {})
        change_run(connection, attempt.run_id, is_current, values)

    def fail_worker(self, run_id: int, reason: str) -> int:
        """Requeue a run whose worker died. Return how often that has happened."""
        # The attempt is read in a transaction of its own, so that a repeated write counts once.
        return self._fail_attempt(run_id, self.run(run_id).attempt, reason)

    @writing
    def _fail_attempt(self, connection: Connection, run_id: int, number: int, reason: str) -> int:
        self._check_held(connection, run_id)
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
        """Mark an unfinished run as failed."""
        self._check_held(connection, run_id)
        values = {"state": State.FAILED, "error": reason, "finished_at": db_now()}
        change_run(connection, run_id, IS_OPEN, {"attempt": Run.attempt + 1, **values})

    def _check_held(self, connection: Connection, run_id: int) -> None:
        if self.holder is None:
            return
        study = select(Trial.study_id).join(Run, Run.trial_id == Trial.id).where(Run.id == run_id)
        check_held(connection, self.holder, study.scalar_subquery())

    @writing
    def reset_failed(self, connection: Connection, study_id: int) -> int:
        """Requeue the failed runs of a study from their first epoch. Return how many."""
        failed = connection.execute(
            update(Run)
            .where(
                Run.state == State.FAILED,
                Run.trial_id.in_(select(Trial.id).where(Trial.study_id == study_id)),
            )
            .values(state=State.WAITING, failures=0, last_epoch=0, **NO_OUTCOME)
            .values(started_at=None, finished_at=None, data_sha256=None)
            .values(forked_from=None, forked_at=None)
            .returning(Run.id, Run.trial_id)
        ).all()
        runs = [{"of_run": run.id} for run in failed]
        if runs:
            connection.execute(delete(Epoch).where(Epoch.run_id == bindparam("of_run")), runs)
            epoch_events = (Outbox.run_id == bindparam("of_run")) & (Outbox.kind == Event.EPOCH)
            reject = update(Outbox).where(epoch_events, PENDING)
            connection.execute(reject.values(parked=RETRAINED), runs)
            reopen(connection, {run.trial_id for run in failed})
        return len(failed)


def curves_of_study(connection: Connection, study_id: int) -> dict[int, list[EpochRow]]:
    runs = select(Run.id).join(Trial, Run.trial_id == Trial.id)
    of_study = Epoch.run_id.in_(runs.where(Trial.study_id == study_id))
    return _curves(connection, CURVES.where(of_study))


def _curves(connection: Connection, query: Select[Any]) -> dict[int, list[EpochRow]]:
    curves: dict[int, list[EpochRow]] = defaultdict(list)
    for row in connection.execute(query).mappings():
        values = dict(row)
        curves[values.pop("run_id")].append(EpochRow(**values))
    return curves


def check_terminal(state: State) -> None:
    if state not in TERMINAL:
        raise ValueError(f"Cannot finish as '{state}'; known: {', '.join(TERMINAL)}.")


def reopen(connection: Connection, trial_ids: Iterable[int], *, keeps_value: bool = False) -> None:
    """Reopen finished trials that have new runs."""
    statement = update(Trial).where(Trial.id == bindparam("reopened"))
    changes: dict[str, Any] = {"state": State.RUNNING, "finished_at": None}
    if not keeps_value:
        changes["value"] = None
    connection.execute(statement.values(changes), [{"reopened": id} for id in trial_ids])


def _run(connection: Connection, run_id: int) -> RunRow:
    row = connection.execute(select(Run).where(Run.id == run_id)).mappings().first()
    if row is None:
        raise ConfigError(f"there is no run {run_id}")
    return RunRow(**row)


def change_run(
    connection: Connection, run_id: int, condition: ColumnElement[bool], values: dict[str, Any]
) -> bool:
    """Update and announce a run if it meets the condition. Return whether it did."""
    changed = connection.execute(update(Run).where(Run.id == run_id, condition).values(values))
    if changed.rowcount:
        _announce(connection, run_id, Event.RUN)
    return bool(changed.rowcount)


def _stale(run: RunRow, attempt: Attempt) -> StaleAttempt:
    return StaleAttempt(
        f"Attempt {attempt.number} of run {run.id} is stale: "
        f"the run is {run.state} in attempt {run.attempt}."
    )


def _announce(connection: Connection, run_id: int, kind: Event, epoch: int | None = None) -> None:
    """Add an event to the outbox, in the transaction that it reports."""
    connection.execute(ANNOUNCE, {"of_run": run_id, "run_id": run_id, "epoch": epoch, "kind": kind})


def _setting(key: str) -> ColumnElement[Any]:
    """Return a field of a run's stored config as an SQL value."""
    setting: Any = Run.config[key]
    is_text = key in ("dataset", "model", "device")
    compared: ColumnElement[Any] = setting.as_string() if is_text else setting.as_float()
    return compared
