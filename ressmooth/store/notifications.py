"""Transactional outbox of messages for the webhook."""

from datetime import timedelta

from sqlalchemy import Connection, func, insert, select, update

from ressmooth.store.database import Part, reading, writing
from ressmooth.store.lease import check_held
from ressmooth.store.rows import Notification
from ressmooth.store.tables import Notification as Message
from ressmooth.store.tables import Study, db_now

SENDING = timedelta(seconds=60)  # after which the sender of a message has certainly ended
WAITS = Message.sent_at.is_(None)


class Notifications(Part):
    """Messages about studies, which one process at a time sends."""

    notifies = False  # whether this process has a webhook

    @writing
    def notify(self, connection: Connection, study_id: int, kind: str) -> None:
        """Add a message for the webhook."""
        check_held(connection, self.holder, study_id)
        self.add_notification(connection, study_id, kind, None)

    def add_notification(
        self, connection: Connection, study_id: int, kind: str, problem: str | None
    ) -> None:
        """Add a message in the transaction that it reports.

        Without a webhook it counts as sent. Otherwise all old messages would be sent on the day
        when somebody sets one.
        """
        row = {"study_id": study_id, "kind": kind, "text": problem or "", "created_at": db_now()}
        row |= {} if self.notifies else {"sent_at": db_now()}
        connection.execute(insert(Message).values(row))

    @reading
    def count_notifications(self, connection: Connection) -> int:
        """Return the number of messages that the webhook has not received."""
        return connection.scalars(select(func.count(Message.id)).where(WAITS)).one()

    @writing
    def claim_notification(self, connection: Connection) -> Notification | None:
        """Return the oldest message that nobody is sending, or None. Nobody else sends it now."""
        over = connection.scalars(select(db_now())).one() - SENDING
        is_free = Message.claimed_at.is_(None) | (Message.claimed_at <= over)
        query = select(Message.id, Study.name, Message.kind, Message.text, Study.owner)
        query = query.join(Study, Study.id == Message.study_id).where(WAITS, is_free)
        query = query.order_by(Message.id).limit(1).with_for_update(of=Message, skip_locked=True)
        row = connection.execute(query).first()
        if row is None:
            return None
        claimed = update(Message).where(Message.id == row.id)
        connection.execute(claimed.values(claimed_at=db_now()))
        return Notification(row.id, row.name, row.kind, row.text or None, row.owner)

    @writing
    def release_notification(self, connection: Connection, notification_id: int) -> None:
        """Let anybody send a message that could not be sent now."""
        released = update(Message).where(Message.id == notification_id)
        connection.execute(released.values(claimed_at=None))

    @writing
    def mark_notified(self, connection: Connection, notification_id: int) -> None:
        """Record that the webhook received a message, or refused it for ever."""
        sent = update(Message).where(Message.id == notification_id)
        connection.execute(sent.values(sent_at=db_now()))
