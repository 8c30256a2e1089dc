"""The Store: every study, trial, run and epoch in SQL. It is the only source of truth."""

from contextlib import closing

from ressmooth.store.database import Database, default_url, safe_url
from ressmooth.store.lease import Leases
from ressmooth.store.migrate import upgrade
from ressmooth.store.outbox import OutboxQueue
from ressmooth.store.queries import Queries
from ressmooth.store.rows import (
    Attempt,
    EpochRow,
    Event,
    Holder,
    OutboxRow,
    Problem,
    PublishedFigure,
    RunRow,
    State,
    StudyRow,
    TrialRow,
    Winner,
)
from ressmooth.store.runs import Runs
from ressmooth.store.studies import Studies, check_same_spec

__all__ = [
    "Attempt",
    "EpochRow",
    "Event",
    "Holder",
    "OutboxRow",
    "Problem",
    "PublishedFigure",
    "RunRow",
    "State",
    "Store",
    "StudyRow",
    "TrialRow",
    "Winner",
    "check_same_spec",
    "default_url",
    "open_store",
    "safe_url",
    "upgrade",
]


class Store(Studies, Runs, Queries, Leases, OutboxQueue):
    """One database of results. Opening it never changes its schema."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = Database(url)
        try:
            self.database.check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.database.close()


def open_store(url: str, create: bool = True) -> Store:
    """Open a store. With `create`, create its tables first if the database has none."""
    if create:
        with closing(Database(url)) as database:
            is_new = database.is_new()
        if is_new:
            upgrade(url)
    return Store(url)
