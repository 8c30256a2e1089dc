"""One launcher per study: a lease with a heartbeat says who runs it."""

from dataclasses import astuple, fields
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, select, update
from sqlalchemy.engine import RowMapping

from ressmooth.errors import StudyBusy
from ressmooth.store.database import Part, writing
from ressmooth.store.rows import Holder
from ressmooth.store.tables import Study, db_now

LEASE = timedelta(seconds=120)  # without a heartbeat for this long, a remote launcher is dead
HOLDER = [f"holder_{field.name}" for field in fields(Holder)]  # columns


class Leases(Part):
    """Keeps two launchers from running one study."""

    @writing
    def acquire(self, connection: Connection, study_id: int, holder: Holder) -> None:
        """Become the study's launcher, or raise StudyBusy with the name of the current one."""
        query = select(Study, db_now().label("now")).where(Study.id == study_id).with_for_update()
        study = connection.execute(query).mappings().one()
        other = holder_of(study)
        if other and other.token != holder.token:
            lapsed = study["now"] - study["beat_at"] > LEASE
            if not (lapsed or other.is_dead()):
                raise StudyBusy(
                    f"Study {study['name']!r} is being run by {other} "
                    f"since {study['held_at']:%Y-%m-%d %H:%M:%S} UTC."
                )
        values = dict(zip(HOLDER, astuple(holder), strict=True))
        acquired = update(Study).where(Study.id == study_id).values(values)
        connection.execute(acquired.values(held_at=db_now(), beat_at=db_now()))

    @writing
    def heartbeat(
        self, connection: Connection, study_id: int, holder: Holder, elapsed: float
    ) -> None:
        """Renew the lease, and record the seconds that all launches have taken so far."""
        renewed = update(Study).where(_is_held(study_id, holder))
        if not connection.execute(renewed.values(beat_at=db_now(), elapsed=elapsed)).rowcount:
            study = connection.execute(select(Study).where(Study.id == study_id)).mappings().one()
            raise StudyBusy(
                f"This launcher lost its lease on study {study['name']!r} because it sent no "
                f"heartbeat for too long. It is now being run by {holder_of(study) or 'nobody'}."
            )

    @writing
    def release(self, connection: Connection, study_id: int, holder: Holder) -> None:
        nobody = dict.fromkeys([*HOLDER, "held_at", "beat_at"])
        connection.execute(update(Study).where(_is_held(study_id, holder)).values(nobody))


def _is_held(study_id: int, holder: Holder) -> ColumnElement[bool]:
    return (Study.id == study_id) & (Study.holder_token == holder.token)


def holder_of(study: RowMapping) -> Holder | None:
    if study["holder_token"] is None:
        return None
    return Holder(*(study[column] for column in HOLDER))
