"""The Store: every study, trial, run and epoch in SQL. It is the only source of truth."""

from contextlib import closing

from ressmooth.store.archive import ArchivedStudy, Archives, Imported
from ressmooth.store.database import Database, default_url, safe_url
from ressmooth.store.forks import Donor, Forks
from ressmooth.store.holder import Holder
from ressmooth.store.lease import Leases
from ressmooth.store.migrate import upgrade
from ressmooth.store.outbox import OutboxQueue
from ressmooth.store.placing import Placing, RaceResult
from ressmooth.store.published import Problem, PublishedFigure
from ressmooth.store.queries import Queries
from ressmooth.store.queue import QueueQueries
from ressmooth.store.rows import (
    OUT_OF_MEMORY,
    Attempt,
    EpochRow,
    Event,
    Notification,
    OutboxRow,
    Priority,
    Queue,
    QueuedStudy,
    RunFiles,
    RunningRun,
    RunRow,
    ServiceRow,
    State,
    StudyRow,
    StudyState,
    Submission,
    TrialRow,
    Winner,
)
from ressmooth.store.runs import Runs, pruned_outcome
from ressmooth.store.statistics import Statistics, StatisticsQueries
from ressmooth.store.studies import Studies, check_same_spec, unknown_study
from ressmooth.store.submissions import Submissions

__all__ = [
    "OUT_OF_MEMORY",
    "ArchivedStudy",
    "Attempt",
    "Donor",
    "EpochRow",
    "Event",
    "Holder",
    "Imported",
    "Notification",
    "OutboxRow",
    "Placing",
    "Priority",
    "Problem",
    "PublishedFigure",
    "Queue",
    "QueuedStudy",
    "RaceResult",
    "RunFiles",
    "RunRow",
    "RunningRun",
    "ServiceRow",
    "State",
    "Statistics",
    "Store",
    "StudyRow",
    "StudyState",
    "Submission",
    "TrialRow",
    "Winner",
    "check_same_spec",
    "default_url",
    "open_store",
    "pruned_outcome",
    "safe_url",
    "unknown_study",
    "upgrade",
]


class Store(
    Studies,
    Submissions,
    Runs,
    Forks,
    Queries,
    QueueQueries,
    StatisticsQueries,
    Leases,
    OutboxQueue,
    Archives,
):
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
