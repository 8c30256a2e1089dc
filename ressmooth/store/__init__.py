"""The Store: every study, trial, run and epoch in SQL, the only truth.

Who launches a study is in holding.py, what happens to a run in recording.py, which trials are the
best in selecting.py, what is still to be mirrored in outbox.py.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, or_, select, update
from sqlalchemy.engine import RowMapping

from ressmooth.errors import ConfigError
from ressmooth.store.database import Database, default_url, safe_url
from ressmooth.store.holding import Holding, holder_of
from ressmooth.store.outbox import Mailing
from ressmooth.store.recording import Recording, check_terminal, reopen
from ressmooth.store.rows import (
    COMPLETE,
    PRUNED,
    RUNNING,
    WAITING,
    Attempt,
    EpochRow,
    Holder,
    OutboxRow,
    RunRow,
    StudyRow,
    TrialRow,
    Winner,
)
from ressmooth.store.schema import upgrade
from ressmooth.store.selecting import Selecting, trials_where
from ressmooth.store.tables import Epoch, Run, Study, Trial, clock, insert_new
from ressmooth.store.transaction import reading, writing

if TYPE_CHECKING:
    from ressmooth.spec import StudySpec

__all__ = [
    "Attempt",
    "EpochRow",
    "Holder",
    "OutboxRow",
    "RunRow",
    "Store",
    "StudyRow",
    "TrialRow",
    "Winner",
    "default_url",
    "open_store",
    "refuse_another",
    "safe_url",
    "upgrade",
]

LIKE = ("dataset", "model", "fraction", "batch_size")  # settings that an epoch's time depends on
RECENT = 200  # runs that tell how long an epoch takes


def open_store(url: str, create: bool = True) -> "Store":
    """Open a store; with `create`, make one first where there is none."""
    if create:
        database = Database(url)
        try:
            is_new = database.is_new()
        finally:
            database.close()
        if is_new:
            upgrade(url)
    return Store(url)


class Store(Holding, Recording, Mailing, Selecting):
    """One database of results; opening it never changes its schema."""

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

    # studies

    @writing
    def open_study(self, connection: Connection, spec: "StudySpec", file_text: str) -> int:
        """Record a study, or go on with the recorded one if it is the same question."""
        given = spec.to_dict()
        connection.execute(
            insert_new(Study, connection.dialect.name).values(
                uid=uuid.uuid4().hex,
                name=spec.name,
                spec=given,
                file_text=file_text,
                created_at=clock(),
                elapsed=0.0,
            )
        )
        study = _study(connection, Study.name == spec.name)
        if study.spec != given:
            refuse_another(study.spec, spec)
        if (study.spec, study.file_text) != (given, file_text):
            changed = update(Study).where(Study.id == study.id)
            connection.execute(changed.values(spec=given, file_text=file_text))
        return study.id

    @reading
    def study(self, connection: Connection, name: str) -> StudyRow | None:
        row = connection.execute(select(Study).where(Study.name == name)).mappings().first()
        return None if row is None else _study_row(row)

    @reading
    def studies(self, connection: Connection) -> list[StudyRow]:
        rows = connection.execute(select(Study).order_by(Study.id)).mappings()
        return [_study_row(row) for row in rows]

    # trials

    @writing
    def add_trial(
        self,
        connection: Connection,
        study_id: int,
        *,
        arm: str,
        condition: Mapping[str, Any],
        branch: str,
        number_in_branch: int,
        params: dict[str, Any],
        configs: Sequence[dict[str, Any]],
        sampler_state: dict[str, Any],
        confirms: int | None = None,
    ) -> TrialRow:
        """Record a trial and its runs, one per seed's config; one that exists is returned as is."""
        added = connection.scalars(
            insert_new(Trial, connection.dialect.name)
            .values(
                study_id=study_id,
                arm=arm,
                condition=json.dumps(condition, sort_keys=True),
                confirms=confirms,
                branch=branch,
                number_in_branch=number_in_branch,
                params=params,
                state=RUNNING,
                sampler_state=sampler_state,
                created_at=clock(),
            )
            .returning(Trial.id)
        ).first()
        if added is not None:
            _add_runs(connection, added, configs)
            return trials_where(connection, Trial.id == added)[0]
        same = (Trial.study_id == study_id) & (Trial.branch == branch)
        return trials_where(connection, same & (Trial.number_in_branch == number_in_branch))[0]

    @writing
    def add_runs(
        self, connection: Connection, trial_id: int, configs: Sequence[dict[str, Any]]
    ) -> None:
        """Train a trial with more seeds; those that it has already are left as they are."""
        if _add_runs(connection, trial_id, configs):
            reopen(connection, [trial_id])

    @writing
    def finish_trial(
        self, connection: Connection, trial_id: int, state: str, value: float | None
    ) -> None:
        check_terminal(state)
        connection.execute(
            update(Trial)
            .where(Trial.id == trial_id)
            .values(state=state, value=value, finished_at=clock())
        )

    # runs

    @reading
    def run(self, connection: Connection, run_id: int) -> RunRow:
        row = connection.execute(select(Run).where(Run.id == run_id)).mappings().first()
        if row is None:
            raise ConfigError(f"there is no run {run_id}")
        return RunRow(**row)

    @reading
    def curve(self, connection: Connection, run_id: int) -> list[EpochRow]:
        columns = [column for column in Epoch.__table__.columns if column.name != "run_id"]
        query = select(*columns).where(Epoch.run_id == run_id).order_by(Epoch.epoch)
        return [EpochRow(**row) for row in connection.execute(query).mappings()]

    @reading
    def checkpoints(self, connection: Connection, run_id: int) -> list[tuple[int, str]]:
        """Epoch and SHA-256 of every checkpoint that was written, newest first."""
        query = (
            select(Epoch.epoch, Epoch.checkpoint_sha256)
            .where(Epoch.run_id == run_id, Epoch.checkpoint_sha256.is_not(None))
            .order_by(Epoch.epoch.desc())
        )
        return [(row.epoch, row.checkpoint_sha256) for row in connection.execute(query)]

    @reading
    def seconds_per_epoch(self, connection: Connection, like: Mapping[str, Any]) -> float | None:
        """Median over the latest runs with settings like these; None if there were none."""
        alike = [_setting(key) == like[key] for key in LIKE if key in like]
        for key, used in (("device", Run.device), ("threads", Run.threads)):
            if key in like:  # as the setting said or as it turned out ("auto", 0 threads)
                alike.append(or_(_setting(key) == like[key], used == like[key]))
        query = (
            select(Run.seconds / Run.last_epoch)
            .where(Run.state.in_((COMPLETE, PRUNED)), Run.last_epoch > 0, Run.seconds > 0, *alike)
            .order_by(Run.id.desc())
            .limit(RECENT)
        )
        seconds = [value for value in connection.scalars(query) if value is not None]
        return median(seconds) if seconds else None


def refuse_another(stored: dict[str, Any], spec: "StudySpec") -> None:
    from ressmooth.spec import differences

    lines = differences(stored, spec)
    if lines:
        raise ConfigError(
            f"study {spec.name!r} is recorded with other settings; give this one another name:",
            *lines,
        )


def _study(connection: Connection, condition: ColumnElement[bool]) -> StudyRow:
    return _study_row(connection.execute(select(Study).where(condition)).mappings().one())


def _study_row(row: RowMapping) -> StudyRow:
    holder = holder_of(row)
    names = [field.name for field in fields(StudyRow) if field.name != "held_by"]
    return StudyRow(**{name: row[name] for name in names}, held_by=str(holder) if holder else None)


def _add_runs(connection: Connection, trial_id: int, configs: Sequence[dict[str, Any]]) -> int:
    """Add the seeds that are missing; how many."""
    query = select(Run.seed).where(Run.trial_id == trial_id)
    known = set(connection.scalars(query))
    missing = [config for config in configs if config["seed"] not in known]
    if missing:
        rows = [
            {
                "uid": uuid.uuid4().hex,
                "trial_id": trial_id,
                "seed": config["seed"],
                "state": WAITING,
                "attempt": 0,
                "failures": 0,
                "config": config,
                "last_epoch": 0,
            }
            for config in missing
        ]
        connection.execute(insert_new(Run, connection.dialect.name), rows)
    return len(missing)


def _setting(key: str) -> ColumnElement[Any]:
    """A field of a run's stored config, to be compared."""
    setting: Any = Run.config[key]
    is_text = key in ("dataset", "model", "device")
    compared: ColumnElement[Any] = setting.as_string() if is_text else setting.as_float()
    return compared
