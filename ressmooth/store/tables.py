"""The tables of the database. Their history is in `migrations`.

    study 1─n trial 1─n run 1─n epoch
    race: what a race of seeds decided about a trial
    baseline: the published figures        outbox: events to deliver to MLflow
    service: who executes submitted studies    notification: messages for the webhook

A run's results are columns of `run`, so that a comparison never reads epochs.
"""

import math
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from ressmooth.config import METRICS
from ressmooth.store.placing import RaceResult
from ressmooth.store.rows import Event, Priority, State, StudyState

Json = dict[str, Any]


class UTCDateTime(sa.TypeDecorator[datetime]):
    """A datetime in UTC. SQLite has no time zones and stores its text."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value and value.astimezone(UTC)
        return value.replace(tzinfo=UTC)


class Finite(sa.TypeDecorator[float]):
    """A float. NaN and inf become NULL so that neither ranks best."""

    impl = sa.Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: sa.Dialect) -> float | None:
        return None if value is None or not math.isfinite(value) else float(value)


class EnumText(sa.TypeDecorator[StrEnum]):
    """A StrEnum, stored as its text."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> StrEnum | None:
        return None if value is None else self.kind(value)


class ShortText(sa.TypeDecorator[str]):
    """Text cut to 8 KiB, without what PostgreSQL refuses: NUL and lone surrogates."""

    impl = sa.Text
    cache_ok = True
    max_bytes = 8192

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        content = value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
        return content[: self.max_bytes].decode("utf-8", "ignore")


class db_now(FunctionElement[datetime]):
    """The time of the database's clock, so that the workers' clocks do not matter."""

    type = UTCDateTime()
    inherit_cache = True


@compiles(db_now, "postgresql")
def _postgresql_db_now(element: db_now, compiler: SQLCompiler, **options: Any) -> str:
    return "clock_timestamp()"


@compiles(db_now, "sqlite")
def _sqlite_db_now(element: db_now, compiler: SQLCompiler, **options: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"  # %f has milliseconds, DateTime microseconds


def insert_new(table: type["Base"], dialect: str) -> sa.Insert:
    """Return an INSERT that skips rows that exist already."""
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


class Base(DeclarativeBase):
    metadata = sa.MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
        }
    )
    type_annotation_map = {
        datetime: UTCDateTime,
        float: Finite,
        Json: sa.JSON,
        str: sa.Text,
        State: EnumText(State),
        StudyState: EnumText(StudyState),
        RaceResult: EnumText(RaceResult),
        Priority: EnumText(Priority),
        Event: EnumText(Event),
    }

    @declared_attr.directive
    def __tablename__(cls) -> str:
        return cls.__name__.lower()


class Lease:
    """The columns of a lease: the process that holds it, and its last heartbeat."""

    holder_host: Mapped[str | None]
    holder_pid: Mapped[int | None]
    holder_started: Mapped[float | None]
    holder_token: Mapped[str | None]
    held_at: Mapped[datetime | None]
    beat_at: Mapped[datetime | None]


class Study(Lease, Base):
    id: Mapped[int] = mapped_column(primary_key=True)
    uid: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str] = mapped_column(unique=True)
    spec: Mapped[Json]
    file_text: Mapped[str]
    created_at: Mapped[datetime]
    elapsed: Mapped[float]  # seconds over all launches
    state: Mapped[StudyState]
    priority: Mapped[Priority]
    owner: Mapped[str | None]
    submitted_at: Mapped[datetime | None]
    problem: Mapped[str | None] = mapped_column(ShortText)
    runs_planned: Mapped[int | None]


CONFIRMING = sa.text("confirms IS NOT NULL")


class Trial(Base):
    __table_args__ = (
        sa.UniqueConstraint("study_id", "branch", "number_in_branch"),
        sa.Index("ix_trial_value", "study_id", "state", "confirms", "arm", "condition", "value"),
        sa.Index(
            "ix_trial_confirms", "confirms", sqlite_where=CONFIRMING, postgresql_where=CONFIRMING
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(sa.ForeignKey("study.id"))
    arm: Mapped[str]
    condition: Mapped[str]  # JSON with sorted keys, so that equal conditions are equal text
    # The trial whose configuration this one retrains with fresh seeds.
    confirms: Mapped[int | None] = mapped_column(sa.ForeignKey("trial.id"))
    branch: Mapped[str]
    number_in_branch: Mapped[int]
    params: Mapped[Json]
    state: Mapped[State]
    value: Mapped[float | None]
    sampler_state: Mapped[Json]
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Race(Base):
    trial_id: Mapped[int] = mapped_column(
        sa.ForeignKey("trial.id"), primary_key=True, autoincrement=False
    )
    result: Mapped[RaceResult]
    seeds: Mapped[int]  # after which it was decided
    rival_id: Mapped[int | None] = mapped_column(sa.ForeignKey("trial.id"))
    chance: Mapped[float | None]
    e_value: Mapped[float | None]


class Run(Base):
    __table_args__ = (
        sa.UniqueConstraint("trial_id", "seed"),
        sa.Index("ix_run_prefix", "prefix", "seed"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    uid: Mapped[str] = mapped_column(unique=True)
    trial_id: Mapped[int] = mapped_column(sa.ForeignKey("trial.id"))
    seed: Mapped[int]
    state: Mapped[State]
    attempt: Mapped[int]
    failures: Mapped[int]
    config: Mapped[Json]
    max_acc: Mapped[float | None]  # accuracies in %
    mean_acc: Mapped[float | None]
    test_acc: Mapped[float | None]
    last_epoch: Mapped[int]
    seconds: Mapped[float | None]
    error: Mapped[str | None] = mapped_column(ShortText)
    host: Mapped[str | None]
    device: Mapped[str | None]
    threads: Mapped[int | None]
    versions: Mapped[Json | None] = mapped_column(sa.JSON(none_as_null=True))
    git_commit: Mapped[str | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    weights_sha256: Mapped[str | None]
    metrics: Mapped[Json | None] = mapped_column(sa.JSON(none_as_null=True))
    data_sha256: Mapped[str | None]
    gpus: Mapped[str | None]
    prefix: Mapped[str | None]
    plain_epochs: Mapped[int | None]
    forked_from: Mapped[int | None] = mapped_column(sa.ForeignKey("run.id"))
    forked_at: Mapped[int | None]


class Epoch(Base):
    __table_args__ = {"sqlite_with_rowid": False}  # one B-tree to write instead of two

    run_id: Mapped[int] = mapped_column(sa.ForeignKey("run.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    recorded_at: Mapped[datetime]
    checkpoint_sha256: Mapped[str | None]


# The metric columns come from config.METRICS, the fields of config.Epoch, so that a metric is
# declared once for training, the Store and MLflow.
for metric in METRICS:
    setattr(Epoch, metric, mapped_column(Finite, nullable=True))


class Baseline(Base):
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int]  # of this program's copy of the figures
    table_name: Mapped[str]  # in the paper
    dataset: Mapped[str]
    model: Mapped[str]
    fraction: Mapped[float]
    method: Mapped[str]
    weight_decay: Mapped[float]
    statistic: Mapped[str]
    value: Mapped[float]  # accuracy in %


PENDING = sa.text("sent_at IS NULL AND parked IS NULL")


class Outbox(Base):
    __table_args__ = (
        sa.Index("ix_outbox_pending", "id", sqlite_where=PENDING, postgresql_where=PENDING),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(sa.ForeignKey("study.id"))
    run_id: Mapped[int | None] = mapped_column(sa.ForeignKey("run.id"))
    epoch: Mapped[int | None]
    kind: Mapped[Event]
    created_at: Mapped[datetime]
    sent_at: Mapped[datetime | None]
    parked: Mapped[str | None] = mapped_column(ShortText)  # why it is never sent


class Service(Lease, Base):
    """One row, with the id 1, from the first service on."""

    id: Mapped[int] = mapped_column(primary_key=True)
    build: Mapped[str]  # of ressmooth
    engine: Mapped[str]
    description: Mapped[str]
    nodes: Mapped[list[Any]] = mapped_column(sa.JSON)


class Notification(Base):
    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(sa.ForeignKey("study.id"))
    kind: Mapped[str]
    text: Mapped[str] = mapped_column(ShortText)  # why the study failed
    created_at: Mapped[datetime]
    claimed_at: Mapped[datetime | None]  # by the process that sends it
    sent_at: Mapped[datetime | None]
