"""Transactional outbox of undelivered MLflow events. One relay reads it."""

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, func, insert, select, update

from ressmooth.store.database import Part, reading, writing
from ressmooth.store.lease import check_held
from ressmooth.store.rows import Event, OutboxRow
from ressmooth.store.tables import PENDING, Outbox, db_now

RETRAINED = "the run is trained again"  # why its old epochs are never sent
COLUMNS = [Outbox.__table__.columns[name] for name in OutboxRow.__dataclass_fields__]


class OutboxQueue(Part):
    """The rows that the relay reads and marks as sent."""

    @reading
    def pending(self, connection: Connection, study_id: int | None, limit: int) -> list[OutboxRow]:
        """Return the oldest rows neither sent nor rejected. None means all studies."""
        query = select(*COLUMNS).where(PENDING).order_by(Outbox.id).limit(limit)
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
            connection.execute(statement.values(sent_at=db_now()), rows)

    @writing
    def reject(self, connection: Connection, id: int, reason: str) -> None:
        """Never send this row, because MLflow refuses it for `reason`."""
        connection.execute(update(Outbox).where(Outbox.id == id).values(parked=reason))

    @writing
    def unreject(self, connection: Connection) -> int:
        """Make rejected rows pending again, of which a later try may be accepted. Return how many.

        Epochs of runs that were trained again stay as they are.
        """
        rejected = update(Outbox).where(Outbox.parked.is_not(None), Outbox.parked != RETRAINED)
        return connection.execute(rejected.values(parked=None)).rowcount

    @writing
    def announce_study(self, connection: Connection, study_id: int) -> None:
        check_held(connection, self.holder, study_id)
        announce(connection, study_id)


def announce(connection: Connection, study_id: int) -> None:
    """Add an event that refreshes the study's own page in MLflow."""
    row = insert(Outbox).values(study_id=study_id, kind=Event.STUDY, created_at=db_now())
    connection.execute(row)
