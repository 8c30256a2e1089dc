"""Read the queue: every study with its progress and speed, and the runs that execute.

SQL counts, so that it takes milliseconds for hundreds of studies. No spec and no trial is loaded.
"""

from collections.abc import Collection, Iterable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, func, select
from sqlalchemy.engine import Row, RowMapping

from ressmooth.store.database import Part, reading
from ressmooth.store.lease import HOLDER, LEASE, find_service, is_over
from ressmooth.store.rows import (
    TERMINAL,
    Queue,
    QueuedStudy,
    RunningRun,
    ServiceRow,
    State,
    StudyState,
)
from ressmooth.store.runs import IS_OPEN
from ressmooth.store.tables import Epoch, Run, Study, Trial, db_now

RECENT = timedelta(minutes=10)  # the speed is measured over these
EXECUTED = (StudyState.RUNNING, StudyState.STOPPING)
EPOCHS: ColumnElement[int] = Run.config["epochs"].as_integer()
SEEDS: ColumnElement[int] = Study.spec["seeds"].as_integer()
SINCE = func.coalesce(Study.submitted_at, Study.created_at)


class QueueQueries(Part):
    """Reads for people who look at the queue."""

    @reading
    def queue(self, connection: Connection, ended: int | None = None) -> Queue:
        """Return the queue, with at most `ended` of the studies that neither wait nor run."""
        service = find_service(connection)
        studies = _studies(connection)
        active = [row for row in studies if row["state"].is_active]
        rest = [row for row in reversed(studies) if not row["state"].is_active]
        shown = [*sorted(active, key=lambda row: row["state"] == StudyState.QUEUED), *rest[:ended]]
        interrupted = {row["id"] for row in active if _is_interrupted(row, service)}
        executed = [row["id"] for row in active if row["state"] in EXECUTED]
        executed = [study_id for study_id in executed if study_id not in interrupted]
        counts = {row.study_id: row for row in _counts(connection, [row["id"] for row in shown])}
        speeds = _speeds(connection, executed)
        return Queue(
            service=service,
            studies=[
                _queued_study(
                    row,
                    counts.get(row["id"]),
                    speeds.get(row["id"]),
                    is_interrupted=row["id"] in interrupted,
                    is_served=_is_served(row, service),
                )
                for row in shown
            ],
            running=_running(connection, executed),
            hidden=len(active) + len(rest) - len(shown),
        )


def _studies(connection: Connection) -> list[RowMapping]:
    """Return the rows of all studies without their specs, in the order of their submission."""
    names = ("id", "name", "state", "priority", "owner", "problem", "runs_planned", "beat_at")
    columns = [Study.__table__.columns[name] for name in (*names, *HOLDER)]
    query = select(*columns, SINCE.label("since"), db_now().label("now")).order_by(SINCE, Study.id)
    return list(connection.execute(query).mappings())


def _is_served(row: RowMapping, service: ServiceRow | None) -> bool:
    """Tell whether the last service runs or ran a study."""
    return service is not None and row["holder_token"] == service.holder.token


def _is_interrupted(row: RowMapping, service: ServiceRow | None) -> bool:
    """Tell whether nobody runs a study that should be running."""
    if row["state"] not in EXECUTED:
        return False
    is_orphan = service is not None and _is_served(row, service) and not service.is_alive
    return is_orphan or is_over(row, LEASE)


def _total(condition: ColumnElement[bool], number: Any = 1) -> ColumnElement[int]:
    """Return SQL for the sum of a number over the rows that meet a condition."""
    return func.sum(case((condition, number), else_=0))


def _counts(connection: Connection, study_ids: Collection[int]) -> Iterable[Row[Any]]:
    """Count the runs and epochs of some studies.

    `spared` are runs that were planned but never come: after a pruned or failed seed, a searched
    trial gets no more.
    """
    spares = Trial.confirms.is_(None) & (_total(Run.state.in_((State.PRUNED, State.FAILED))) > 0)
    trials = (
        select(
            Trial.study_id,
            func.count().label("runs"),
            _total(Run.state.in_(TERMINAL)).label("done"),
            _total(Run.state == State.RUNNING).label("running"),
            func.sum(EPOCHS).label("epochs"),
            _total(IS_OPEN, EPOCHS - Run.last_epoch).label("epochs_open"),
            case((spares, 1), else_=0).label("is_short"),
        )
        .join(Run, Run.trial_id == Trial.id)
        .where(Trial.study_id.in_(study_ids))
        .group_by(Trial.id)
        .subquery()
    )
    names = ("runs", "done", "running", "epochs", "epochs_open")
    spared = _total((trials.c.is_short == 1) & (trials.c.runs < SEEDS), SEEDS - trials.c.runs)
    query = (
        select(
            trials.c.study_id,
            *(func.sum(trials.c[name]).label(name) for name in names),
            spared.label("spared"),
        )
        .join(Study, Study.id == trials.c.study_id)
        .group_by(trials.c.study_id)
    )
    return connection.execute(query)


def _speeds(connection: Connection, study_ids: Collection[int]) -> dict[int, float]:
    """Return recent epochs per minute by study, for those with two epochs or more.

    Runs that ended a short while ago count too, because a run can be shorter than its measurement.
    """
    began = _now(connection) - RECENT
    query = (
        select(
            Trial.study_id,
            func.count().label("epochs"),
            func.min(Epoch.recorded_at).label("first"),
            func.max(Epoch.recorded_at).label("last"),
        )
        .join(Run, Run.trial_id == Trial.id)
        .join(Epoch, Epoch.run_id == Run.id)
        .where(Trial.study_id.in_(study_ids), IS_OPEN | (Run.finished_at > began))
        .where(Epoch.recorded_at > began)
        .group_by(Trial.study_id)
    )
    return {
        row.study_id: (row.epochs - 1) / ((row.last - row.first) / timedelta(minutes=1))
        for row in connection.execute(query)
        if row.last > row.first
    }


def _now(connection: Connection) -> datetime:
    return connection.scalars(select(db_now())).one()


def _running(connection: Connection, study_ids: Collection[int]) -> list[RunningRun]:
    """Return the runs that execute, by study, in the order of their start."""
    run: list[Any] = [Run.seed, Run.last_epoch, EPOCHS, Run.host, Run.gpus, Run.device]
    query = (
        select(Study.id, Study.name, Trial.arm, Trial.params, *run, Run.started_at)
        .join(Trial, Trial.study_id == Study.id)
        .join(Run, Run.trial_id == Trial.id)
        .where(Study.id.in_(study_ids), Trial.state == State.RUNNING, Run.state == State.RUNNING)
        .order_by(Run.started_at, Run.id)
    )
    return [RunningRun(*row) for row in connection.execute(query)]


def _queued_study(
    row: RowMapping, counts: Row[Any] | None, speed: float | None, **facts: Any
) -> QueuedStudy:
    names = {field.name for field in fields(QueuedStudy)} & row.keys()
    numbers = (counts.runs, counts.done, counts.running, counts.spared) if counts else (0, 0, 0, 0)
    runs, done, running, spared = map(int, numbers)  # PostgreSQL's sums are decimals
    known = runs
    if row["state"] not in (StudyState.ENDED, StudyState.FAILED):
        known = max(runs, (row["runs_planned"] or 0) - spared)
    left = None
    if counts:  # runs that are not recorded yet are assumed to be as long as the others
        left = round(counts.epochs_open + (known - runs) * counts.epochs / runs)
    return QueuedStudy(
        **{name: row[name] for name in names},
        runs_done=done,
        runs_known=known,
        epochs_left=left,
        epochs_per_minute=speed if running else None,
        **facts,
    )
