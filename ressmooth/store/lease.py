"""Leases with a heartbeat: one launcher per study, and one service per Store.

A process that lost its lease writes nothing more: its writes check the lease in their own
transaction, see `check_held`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, fields
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, case, select, update
from sqlalchemy.engine import RowMapping

from ressmooth.build import build
from ressmooth.errors import StudyBusy
from ressmooth.store.database import Part, reading, writing
from ressmooth.store.holder import Holder
from ressmooth.store.rows import ServiceRow, StudyState
from ressmooth.store.tables import Service, Study, db_now, insert_new

LEASE = timedelta(seconds=120)  # without a heartbeat for this long, a remote launcher is dead
SERVICE_LEASE = timedelta(seconds=20)  # the same of a service, whose standby should take over soon
HOLDER = [f"holder_{field.name}" for field in fields(Holder)]  # columns
TAKEN_OVER = "Another service has taken over, because this one was silent too long."
NOBODY = dict.fromkeys([*HOLDER, "held_at", "beat_at"])


class Leases(Part):
    """Keeps two launchers from running one study, and two services from sharing a Store."""

    @writing
    def acquire(self, connection: Connection, study_id: int, holder: Holder) -> None:
        """Become the study's launcher, or raise StudyBusy with the name of the current one."""
        study = locked(connection, study_id)
        if study is None:
            raise StudyBusy("The study was just deleted.")
        if is_held_by_another(study, holder):
            name = study["name"]
            raise StudyBusy(
                f"Study {name!r} is being run by {holder_of(study)} "
                f"since {study['held_at']:%Y-%m-%d %H:%M:%S} UTC; "
                f"stop it: {self.database.command('stop', name)}"
            )
        acquired = update(Study).where(Study.id == study_id).values(held_by(holder))
        connection.execute(acquired)

    @writing
    def heartbeat(
        self, connection: Connection, study_id: int, holder: Holder, elapsed: float
    ) -> None:
        """Renew the lease, and record the seconds that all launches have taken so far."""
        check_held(connection, holder, study_id)
        renewed = update(Study).where(Study.id == study_id)
        connection.execute(renewed.values(beat_at=db_now(), elapsed=elapsed))

    @writing
    def release(self, connection: Connection, study_id: int, holder: Holder) -> None:
        """Give up the lease. A study that nobody holds is not running."""
        held = (Study.id == study_id) & (Study.holder_token == holder.token)
        connection.execute(update(Study).where(held).values(_released(StudyState.STOPPED)))

    @contextmanager
    def hold(self, study_id: int) -> Iterator[Holder]:
        """Hold the lease of a study. A running launcher would not notice a change."""
        holder = Holder.here()
        self.acquire(study_id, holder)
        try:
            yield holder
        finally:
            self.release(study_id, holder)

    @writing
    def acquire_service(self, connection: Connection, holder: Holder, engine: str) -> bool:
        """Become the Store's service, with the studies of the last one.

        Return False while another service is alive.
        """
        blank = {"id": 1, "build": build(), "engine": engine, "description": "", "nodes": []}
        connection.execute(insert_new(Service, connection.dialect.name).values(blank))
        query = select(Service, db_now().label("now")).with_for_update()
        service = connection.execute(query).mappings().one()
        other = holder_of(service)
        if other and other.token != holder.token:
            if not is_over(service, SERVICE_LEASE):
                return False
            inherited = update(Study).where(Study.holder_token == other.token)
            connection.execute(inherited.values(held_by(holder)))
        connection.execute(update(Service).values(blank | held_by(holder)))
        return True

    @writing
    def service_heartbeat(
        self,
        connection: Connection,
        holder: Holder,
        description: str,
        nodes: list[dict[str, Any]],
        elapsed: Mapping[int, float],
    ) -> None:
        """Renew the leases of the service and of its studies.

        Record its workers and nodes, and the seconds that studies have taken, by their ids.
        """
        renewed = update(Service).where(Service.holder_token == holder.token)
        values = {"beat_at": db_now(), "description": description, "nodes": nodes}
        if not connection.execute(renewed.values(values)).rowcount:
            raise StudyBusy(TAKEN_OVER)
        held = Study.holder_token == holder.token
        connection.execute(update(Study).where(held).values(beat_at=db_now()))
        for study_id, seconds in elapsed.items():
            ours = update(Study).where(held, Study.id == study_id)
            connection.execute(ours.values(elapsed=seconds))

    @writing
    def release_service(self, connection: Connection, holder: Holder) -> None:
        """Give up the Store's service. Its studies wait in the queue for the next one."""
        held = Study.holder_token == holder.token
        connection.execute(update(Study).where(held).values(_released(StudyState.QUEUED)))
        service = update(Service).where(Service.holder_token == holder.token)
        connection.execute(service.values(NOBODY | {"nodes": []}))

    @reading
    def service(self, connection: Connection) -> ServiceRow | None:
        """Return the service, or None if none is running or was left behind by a crash."""
        return find_service(connection)


def find_service(connection: Connection) -> ServiceRow | None:
    row = connection.execute(select(Service, db_now().label("now"))).mappings().first()
    holder = None if row is None else holder_of(row)
    if row is None or holder is None:
        return None
    return ServiceRow(
        holder=holder,
        held_at=row["held_at"],
        silent=(row["now"] - row["beat_at"]).total_seconds(),
        is_alive=not is_over(row, SERVICE_LEASE),
        build=row["build"],
        engine=row["engine"],
        description=row["description"],
        nodes=row["nodes"],
    )


def check_held(connection: Connection, holder: Holder | None, study_id: Any) -> None:
    """Raise StudyBusy if the holder has lost the study's lease. None is not checked.

    The row stays locked until the transaction ends, so nobody takes over before its commit.
    """
    if holder is None:
        return
    study = locked(connection, study_id)
    if study is None:
        raise StudyBusy("This launcher lost its lease, and the study was deleted.")
    if study["holder_token"] != holder.token:
        raise StudyBusy(
            f"This launcher lost its lease on study {study['name']!r} because it sent no "
            f"heartbeat for too long. It is now being run by {holder_of(study) or 'nobody'}."
        )


def check_serving(connection: Connection, holder: Holder) -> None:
    """Raise StudyBusy if the holder is not the Store's service any more."""
    query = select(Service.holder_token).with_for_update(key_share=True)
    if connection.scalar(query) != holder.token:
        raise StudyBusy(TAKEN_OVER)


def locked(connection: Connection, study_id: Any) -> RowMapping | None:
    """Return a study's row with the database's time as `now`, locked until the transaction ends.

    The lock is the one of an UPDATE, so that two transactions never wait for each other's.
    """
    query = select(Study, db_now().label("now")).where(Study.id == study_id)
    return connection.execute(query.with_for_update(key_share=True)).mappings().first()


def is_held_by_another(study: RowMapping, holder: Holder) -> bool:
    return study["holder_token"] != holder.token and not is_over(study, LEASE)


def holder_of(row: RowMapping) -> Holder | None:
    if row["holder_token"] is None:
        return None
    return Holder(*(row[column] for column in HOLDER))


def held_by(holder: Holder) -> dict[str, Any]:
    """Return the columns of a lease that begins now."""
    values = dict(zip(HOLDER, astuple(holder), strict=True))
    return {**values, "held_at": db_now(), "beat_at": db_now()}


def _released(running: StudyState) -> dict[str, Any]:
    """Return the columns of a study without a lease, with the state of one that was running."""
    states = {StudyState.RUNNING: running, StudyState.STOPPING: StudyState.STOPPED}
    return {**NOBODY, "state": case(states, value=Study.state, else_=Study.state)}


def is_over(row: RowMapping, lease: timedelta) -> bool:
    """Tell whether a lease has lapsed, or its process has certainly ended.

    When the clock jumps, all leases seem to have lapsed, so a process that is seen running keeps
    its own.
    """
    holder = holder_of(row)
    if holder is None:
        return True
    silent = abs(row["now"] - row["beat_at"])  # a clock that was set back leaves it in the future
    return holder.is_dead() or (silent > lease and not holder.is_running())
