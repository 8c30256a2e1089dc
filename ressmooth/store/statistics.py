"""Count what a Store holds, for Prometheus: a few statements that read no epochs."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select

from ressmooth.store.database import Part, reading
from ressmooth.store.rows import State, StudyState
from ressmooth.store.tables import PENDING, Notification, Outbox, Run, Service, Study, Trial, db_now

WANTS_WORKERS = (StudyState.QUEUED, StudyState.RUNNING)
STUDIES = select(Study.id, Study.name, Study.state, Study.submitted_at, Study.held_at)
RUNS = (
    select(
        Trial.study_id,
        Run.state,
        Run.host,
        func.count().label("number"),
        func.sum(Run.last_epoch).label("epochs"),
        func.min(Trial.created_at).label("planned_at"),
    )
    .join(Trial, Run.trial_id == Trial.id)
    .group_by(Trial.study_id, Run.state, Run.host)
)
PENDING_EVENTS = select(func.count(Outbox.id)).where(PENDING)
PENDING_MESSAGES = select(func.count(Notification.id)).where(Notification.sent_at.is_(None))


@dataclass(frozen=True)
class Statistics:
    studies: dict[StudyState, int]
    runs: dict[tuple[State, str], int]  # by state and host; waiting runs have none
    study_runs: dict[tuple[str, State], int]  # by name and state, of studies that wait or run
    epochs: dict[int, int]  # by study id: the sum of the runs' last epochs
    queue_length: int  # runs that wait for a worker
    oldest_wait: float  # seconds since the first of these was planned, or its study taken up
    pending_events: int  # for MLflow
    pending_messages: int  # for the webhook
    nodes: list[dict[str, Any]]  # of the service


class StatisticsQueries(Part):
    """Reads for monitoring."""

    @reading
    def statistics(self, connection: Connection) -> Statistics:
        studies = {row.id: row for row in connection.execute(STUDIES)}
        states: dict[StudyState, int] = defaultdict(int)
        runs: dict[tuple[State, str], int] = defaultdict(int)
        study_runs: dict[tuple[str, State], int] = defaultdict(int)
        epochs: dict[int, int] = defaultdict(int)
        queue_length = 0
        waiting_since: list[datetime] = []
        for study in studies.values():
            states[study.state] += 1
            if study.state == StudyState.QUEUED:
                waiting_since.append(study.submitted_at)
        for row in connection.execute(RUNS):
            is_waiting = row.state == State.WAITING
            runs[row.state, "" if is_waiting else row.host or ""] += row.number
            epochs[row.study_id] += row.epochs
            study = studies[row.study_id]
            if study.state.is_active:
                study_runs[study.name, row.state] += row.number
            if is_waiting and study.state in WANTS_WORKERS:
                queue_length += row.number
                times = (row.planned_at, study.submitted_at, study.held_at)
                waiting_since.append(max(time for time in times if time))
        now = connection.scalars(select(db_now())).one()
        oldest = min(waiting_since, default=now)
        return Statistics(
            studies=dict(states),
            runs=dict(runs),
            study_runs=dict(study_runs),
            epochs=dict(epochs),
            queue_length=queue_length,
            oldest_wait=max(0.0, (now - oldest).total_seconds()),
            pending_events=connection.scalars(PENDING_EVENTS).one(),
            pending_messages=connection.scalars(PENDING_MESSAGES).one(),
            nodes=connection.scalars(select(Service.nodes)).first() or [],
        )
