"""What MLflow is still to hear of, written with what it tells about, read by one relay."""

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, func, insert, select, update

from ressmooth.store.database import Database
from ressmooth.store.rows import OutboxRow
from ressmooth.store.tables import PENDING, Outbox, clock
from ressmooth.store.transaction import reading, writing


class Mailing:
    """The part of the Store that the relay reads and ticks off."""

    database: Database

    @reading
    def pending(self, connection: Connection, study_id: int | None, limit: int) -> list[OutboxRow]:
        """The oldest of what is neither sent nor parked; of all studies for None."""
        columns = (
            Outbox.id,
            Outbox.study_id,
            Outbox.run_id,
            Outbox.epoch,
            Outbox.kind,
            Outbox.created_at,
        )
        query = select(*columns).where(PENDING).order_by(Outbox.id).limit(limit)
        if study_id is not None:
            query = query.where(Outbox.study_id == study_id)
        return [OutboxRow(*row) for row in connection.execute(query)]

    @reading
    def count_pending(self, connection: Connection, study_id: int | None) -> int:
        query = select(func.count()).select_from(Outbox).where(PENDING)
        if study_id is not None:
            query = query.where(Outbox.study_id == study_id)
        return connection.scalars(query).one()

    @writing
    def mark_sent(self, connection: Connection, ids: Iterable[int]) -> None:
        rows = [{"sent": id} for id in ids]
        if rows:
            statement = update(Outbox).where(Outbox.id == bindparam("sent"))
            connection.execute(statement.values(sent_at=clock()), rows)

    @writing
    def park(self, connection: Connection, id: int, reason: str) -> None:
        """Never send it: MLflow refuses it for `reason`."""
        connection.execute(update(Outbox).where(Outbox.id == id).values(parked=reason))

    @writing
    def touch_study(self, connection: Connection, study_id: int) -> None:
        """Let the mirror of the study itself be renewed."""
        row = insert(Outbox).values(study_id=study_id, kind="study", created_at=clock())
        connection.execute(row)
