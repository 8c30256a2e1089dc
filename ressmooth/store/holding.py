"""One launcher per study: who runs it, since when, and whether it still lives."""

from dataclasses import fields
from datetime import timedelta

from sqlalchemy import Connection, select, update
from sqlalchemy.engine import RowMapping

from ressmooth.errors import StudyBusy
from ressmooth.store.database import Database
from ressmooth.store.rows import Holder
from ressmooth.store.tables import Study, clock
from ressmooth.store.transaction import writing

LEASE = timedelta(seconds=120)  # without a beat for this long, a launcher elsewhere counts as dead


class Holding:
    """The part of the Store that launchers agree by."""

    database: Database

    @writing
    def hold(self, connection: Connection, study_id: int, holder: Holder) -> None:
        """Become the launcher of a study that nobody else runs."""
        query = select(Study, clock().label("now")).where(Study.id == study_id).with_for_update()
        study = connection.execute(query).mappings().one()
        other = holder_of(study)
        if other and other.token != holder.token:
            silent = study["now"] - study["beat_at"] > LEASE
            if not (silent or other.is_dead()):
                raise StudyBusy(
                    f"Study {study['name']!r} is being run by {other} "
                    f"since {study['held_at']:%Y-%m-%d %H:%M:%S} UTC."
                )
        connection.execute(
            update(Study)
            .where(Study.id == study_id)
            .values(
                holder_host=holder.host,
                holder_pid=holder.pid,
                holder_started=holder.started,
                holder_token=holder.token,
                held_at=clock(),
                beat_at=clock(),
            )
        )

    @writing
    def beat(self, connection: Connection, study_id: int, holder: Holder, elapsed: float) -> None:
        """Say that the launcher lives, and the seconds that all launches have taken so far."""
        held = (Study.id == study_id) & (Study.holder_token == holder.token)
        beaten = connection.execute(
            update(Study).where(held).values(beat_at=clock(), elapsed=elapsed)
        )
        if not beaten.rowcount:
            study = connection.execute(select(Study).where(Study.id == study_id)).mappings().one()
            raise StudyBusy(
                f"Study {study['name']!r} was taken from this launcher, which had been silent for "
                f"too long; it is being run by {holder_of(study) or 'nobody'}."
            )

    @writing
    def release(self, connection: Connection, study_id: int, holder: Holder) -> None:
        held = (Study.id == study_id) & (Study.holder_token == holder.token)
        nobody = dict.fromkeys(
            ("holder_host", "holder_pid", "holder_started", "holder_token", "held_at", "beat_at")
        )
        connection.execute(update(Study).where(held).values(nobody))


def holder_of(study: RowMapping) -> Holder | None:
    if study["holder_token"] is None:
        return None
    return Holder(*(study[f"holder_{field.name}"] for field in fields(Holder)))
