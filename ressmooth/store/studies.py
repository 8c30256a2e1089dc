"""Record studies and their trials, before anything is trained."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.engine import RowMapping

from ressmooth.errors import ConfigError
from ressmooth.spec import StudySpec, differences
from ressmooth.store.database import Part, reading, writing
from ressmooth.store.lease import holder_of
from ressmooth.store.queries import trials_where
from ressmooth.store.rows import State, StudyRow, TrialRow
from ressmooth.store.runs import check_terminal, reopen
from ressmooth.store.tables import Run, Study, Trial, db_now, insert_new


class Studies(Part):
    """The writes of the planner."""

    @writing
    def open_study(self, connection: Connection, spec: StudySpec) -> int:
        """Record a study, or find it if it is recorded already. Return its id."""
        content = {"spec": spec.to_dict(), "file_text": spec.text}
        new = {"uid": uuid.uuid4().hex, "name": spec.name, "created_at": db_now(), "elapsed": 0.0}
        connection.execute(insert_new(Study, connection.dialect.name).values(new | content))
        query = select(Study).where(Study.name == spec.name)
        stored = _study_row(connection.execute(query).mappings().one())
        if stored.spec != content["spec"]:
            check_same_spec(stored.spec, spec)
        if (stored.spec, stored.file_text) != (content["spec"], content["file_text"]):
            connection.execute(update(Study).where(Study.id == stored.id).values(**content))
        return stored.id

    @reading
    def study(self, connection: Connection, name: str) -> StudyRow | None:
        row = connection.execute(select(Study).where(Study.name == name)).mappings().first()
        return None if row is None else _study_row(row)

    @reading
    def studies(self, connection: Connection) -> list[StudyRow]:
        """Return all studies, oldest first."""
        rows = connection.execute(select(Study).order_by(Study.id)).mappings()
        return [_study_row(row) for row in rows]

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
        """Record a trial with one run per config, unless it exists already. Return it."""
        added = connection.scalars(
            insert_new(Trial, connection.dialect.name)
            .values(study_id=study_id, branch=branch, number_in_branch=number_in_branch)
            .values(arm=arm, condition=json.dumps(condition, sort_keys=True), confirms=confirms)
            .values(params=params, sampler_state=sampler_state)
            .values(state=State.RUNNING, created_at=db_now())
            .returning(Trial.id)
        ).first()
        if added is not None:
            _add_runs(connection, added, configs)
        same = (Trial.study_id == study_id) & (Trial.branch == branch)
        return trials_where(connection, same & (Trial.number_in_branch == number_in_branch))[0]

    @writing
    def add_runs(
        self, connection: Connection, trial_id: int, configs: Sequence[dict[str, Any]]
    ) -> None:
        """Add runs for seeds that the trial does not have yet, and reopen it."""
        if _add_runs(connection, trial_id, configs):
            reopen(connection, [trial_id])

    @writing
    def finish_trial(
        self, connection: Connection, trial_id: int, state: State, value: float | None
    ) -> None:
        check_terminal(state)
        values = {"state": state, "value": value, "finished_at": db_now()}
        connection.execute(update(Trial).where(Trial.id == trial_id).values(values))


def check_same_spec(stored: dict[str, Any], spec: StudySpec) -> None:
    """Raise a ConfigError if `spec` is a different study from the stored one."""
    if lines := differences(stored, spec):
        raise ConfigError(
            f"study {spec.name!r} is recorded with other settings; give this one another name:",
            *lines,
        )


def _study_row(row: RowMapping) -> StudyRow:
    holder = holder_of(row)
    held_by = str(holder) if holder and not holder.is_dead() else None
    names = [field.name for field in fields(StudyRow) if field.name != "held_by"]
    return StudyRow(**{name: row[name] for name in names}, held_by=held_by)


def _add_runs(connection: Connection, trial_id: int, configs: Sequence[dict[str, Any]]) -> int:
    """Add runs for the seeds that are missing. Return how many."""
    known = set(connection.scalars(select(Run.seed).where(Run.trial_id == trial_id)))
    rows = [
        {"uid": uuid.uuid4().hex, "seed": config["seed"], "config": config}
        for config in configs
        if config["seed"] not in known
    ]
    if rows:
        new = insert_new(Run, connection.dialect.name).values(trial_id=trial_id)
        new = new.values(state=State.WAITING, attempt=0, failures=0, last_epoch=0)
        connection.execute(new, rows)
    return len(rows)
