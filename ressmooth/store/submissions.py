"""Submit studies to the service, stop and resume them, and record how they end.

A study's state changes only here and when a lease is released, each time in one transaction, so
commands and the service may act at the same moment. A study that is running or stopping has a
living holder. If the holder died, commands act as if it had released the study.
"""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, select, update

from ressmooth.errors import ConfigError
from ressmooth.spec import StudySpec
from ressmooth.store.database import reading, writing
from ressmooth.store.lease import (
    LEASE,
    check_held,
    check_serving,
    held_by,
    is_held_by_another,
    is_over,
    locked,
)
from ressmooth.store.notifications import Notifications
from ressmooth.store.rows import Priority, StudyState, Submission
from ressmooth.store.studies import record_study
from ressmooth.store.tables import Study, db_now

COLUMNS = [Study.__table__.columns[name] for name in Submission.__dataclass_fields__]
IN_QUEUE = (StudyState.QUEUED, StudyState.RUNNING, StudyState.STOPPING)
SUBMIT = {  # the state after a submission; a running study is taken up again with its new spec
    StudyState.STOPPING: StudyState.RUNNING,
    StudyState.RUNNING: StudyState.RUNNING,
}
STOP = {
    StudyState.QUEUED: StudyState.STOPPED,
    StudyState.RUNNING: StudyState.STOPPING,
}


class Submissions(Notifications):
    """The states of studies."""

    @writing
    def submit(
        self, connection: Connection, spec: StudySpec, owner: str, priority: Priority | None
    ) -> int:
        """Record a study and put it into the queue of the service. Return its id.

        Without a priority, a recorded study keeps its own.
        """
        study_id = record_study(connection, spec)
        state = SUBMIT.get(_state(connection, study_id), StudyState.QUEUED)
        values = {"state": state, "owner": owner, "problem": None, "submitted_at": db_now()}
        _update(connection, study_id, **values, **({"priority": priority} if priority else {}))
        return study_id

    @writing
    def take_up(self, connection: Connection, row: Submission) -> bool:
        """Begin to execute a study in the service. Return False if it has changed or is held."""
        assert self.holder is not None
        check_serving(connection, self.holder)
        study = locked(connection, row.id)
        if (
            study is None
            or study["submitted_at"] != row.submitted_at
            or study["state"] not in (StudyState.QUEUED, StudyState.RUNNING)
            or is_held_by_another(study, self.holder)
        ):
            return False
        values = {"state": StudyState.RUNNING, "problem": None}
        _update(connection, row.id, **values, **held_by(self.holder))
        return True

    @writing
    def begin(self, connection: Connection, study_id: int, owner: str) -> datetime | None:
        """Record that a launcher runs the study from now on. Return the time of it."""
        check_held(connection, self.holder, study_id)
        values = {"owner": owner, "submitted_at": db_now()}
        _update(connection, study_id, state=StudyState.RUNNING, problem=None, **values)
        return self._submission(connection, study_id).submitted_at

    @writing
    def end(
        self,
        connection: Connection,
        study_id: int,
        state: StudyState,
        submitted_at: datetime | None,
        problem: str | None = None,
    ) -> StudyState:
        """Record how a study ended that was submitted at that time. Return its state.

        It is queued if somebody has submitted it again meanwhile. The webhook is told unless
        somebody stopped it.
        """
        check_held(connection, self.holder, study_id)
        before = self._submission(connection, study_id)
        if before.state not in (StudyState.RUNNING, StudyState.STOPPING):
            return before.state
        if before.submitted_at != submitted_at:
            state, problem = StudyState.QUEUED, None
        _update(connection, study_id, state=state, problem=problem)
        if state in (StudyState.ENDED, StudyState.FAILED):
            self.add_notification(connection, study_id, state, problem)
        return state

    @writing
    def stop_study(self, connection: Connection, study_id: int) -> StudyState:
        """Ask for a stop at the next epoch ends. Return the study's state."""
        return _move(connection, study_id, STOP)

    @writing
    def resume_study(self, connection: Connection, study_id: int) -> StudyState:
        """Put a study back into the queue. Return its state."""
        after = {state: SUBMIT.get(state, StudyState.QUEUED) for state in StudyState}
        return _move(connection, study_id, after)

    @writing
    def confirm_stop(self, connection: Connection, study_id: int) -> StudyState:
        """Record that no run of a stopping study executes any more. Return its state.

        It is running if somebody has resumed it meanwhile.
        """
        check_held(connection, self.holder, study_id)
        state = self._submission(connection, study_id).state
        if state == StudyState.STOPPING:
            state = StudyState.STOPPED
            _update(connection, study_id, state=state)
        return state

    @writing
    def set_priority(self, connection: Connection, study_id: int, priority: Priority) -> None:
        _update(connection, study_id, priority=priority)

    @reading
    def submissions(self, connection: Connection) -> list[Submission]:
        """Return the studies that wait, run or stop, oldest submission first."""
        query = select(*COLUMNS).where(Study.state.in_(IN_QUEUE))
        rows = connection.execute(query.order_by(Study.submitted_at, Study.id))
        return [Submission(*row) for row in rows]

    @reading
    def submission(self, connection: Connection, study_id: int) -> Submission:
        return self._submission(connection, study_id)

    def _submission(self, connection: Connection, study_id: int) -> Submission:
        return Submission(*connection.execute(select(*COLUMNS).where(Study.id == study_id)).one())


def _state(connection: Connection, study_id: int) -> StudyState:
    """Lock a study and return its state: stopped, if whoever ran it has died."""
    study = locked(connection, study_id)
    if study is None:
        raise ConfigError("the study was just deleted")
    state = StudyState(study["state"])
    is_active = state in (StudyState.RUNNING, StudyState.STOPPING)
    return StudyState.STOPPED if is_active and is_over(study, LEASE) else state


def _move(
    connection: Connection, study_id: int, transitions: Mapping[StudyState, StudyState]
) -> StudyState:
    """Change the state if there is a transition from it. Return the state."""
    before = _state(connection, study_id)
    after = transitions.get(before, before)
    _update(connection, study_id, state=after, **({} if after == before else {"problem": None}))
    return after


def _update(connection: Connection, study_id: int, **values: object) -> None:
    connection.execute(update(Study).where(Study.id == study_id).values(values))
