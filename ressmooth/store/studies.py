"""Record studies and their trials, before anything is trained."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, delete, insert, select, update
from sqlalchemy.engine import RowMapping

from ressmooth.errors import ConfigError
from ressmooth.prefix import prefix_of
from ressmooth.spec import (
    StudySpec,
    WarmStart,
    can_warm_start,
    differences,
    select_trials,
    with_name,
)
from ressmooth.store.database import Part, reading, writing
from ressmooth.store.lease import check_held, holder_of
from ressmooth.store.outbox import announce
from ressmooth.store.placing import Placing
from ressmooth.store.queries import race_of, trials_where
from ressmooth.store.rows import Priority, State, StudyRow, StudyState, TrialRow
from ressmooth.store.runs import check_terminal, reopen
from ressmooth.store.tables import (
    Epoch,
    Notification,
    Outbox,
    Race,
    Run,
    Study,
    Trial,
    db_now,
    insert_new,
)


class Studies(Part):
    """The writes of the planner."""

    @writing
    def open_study(self, connection: Connection, spec: StudySpec) -> int:
        """Record a study, or find it if it is recorded already. Return its id."""
        return record_study(connection, spec)

    @reading
    def study(self, connection: Connection, name: str) -> StudyRow | None:
        return find_study(connection, Study.name == name)

    @reading
    def study_with_id(self, connection: Connection, study_id: int) -> StudyRow:
        row = connection.execute(select(Study).where(Study.id == study_id)).mappings().one()
        return _study_row(row)

    @reading
    def warm_start(self, connection: Connection, spec: StudySpec) -> WarmStart | None:
        """Return what the samplers begin with: as recorded, or else from the study named."""
        return _warm_start(connection, spec)

    @reading
    def studies(self, connection: Connection) -> list[StudyRow]:
        """Return all studies, oldest first."""
        rows = connection.execute(select(Study).order_by(Study.id)).mappings()
        return [_study_row(row) for row in rows]

    @writing
    def rename_study(self, connection: Connection, study_id: int, name: str) -> None:
        """Rename a study, also in its stored spec and text, so that it resumes by its new name."""
        same_name = select(Study.id).where(Study.name == name)
        if connection.scalar(same_name) not in (None, study_id):
            raise ConfigError(f"there is a study {name!r} already; choose another name")
        of_study = Study.id == study_id
        stored = connection.execute(select(Study.spec, Study.file_text).where(of_study)).one()
        values = {
            "spec": {**stored.spec, "name": name},
            "file_text": with_name(stored.file_text, name),
        }
        connection.execute(update(Study).where(of_study).values(name=name, **values))

    @writing
    def delete_study(self, connection: Connection, study_id: int) -> None:
        """Delete a study with all that refers to it."""
        trials = select(Trial.id).where(Trial.study_id == study_id)
        runs = select(Run.id).where(Run.trial_id.in_(trials))
        connection.execute(delete(Epoch).where(Epoch.run_id.in_(runs)))
        connection.execute(delete(Outbox).where(Outbox.study_id == study_id))
        connection.execute(delete(Notification).where(Notification.study_id == study_id))
        connection.execute(delete(Race).where(Race.trial_id.in_(trials)))
        connection.execute(delete(Run).where(Run.trial_id.in_(trials)))
        connection.execute(delete(Trial).where(Trial.study_id == study_id))
        connection.execute(delete(Study).where(Study.id == study_id))

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
        check_held(connection, self.holder, study_id)
        added = connection.scalars(
            insert_new(Trial, connection.dialect.name)
            .values(study_id=study_id, branch=branch, number_in_branch=number_in_branch)
            .values(arm=arm, condition=json.dumps(condition, sort_keys=True), confirms=confirms)
            .values(params=params, sampler_state=sampler_state)
            .values(state=State.RUNNING, created_at=db_now())
            .returning(Trial.id)
        ).first()
        if added is not None:
            _add_runs(connection, {added: configs})
        same = (Trial.study_id == study_id) & (Trial.branch == branch)
        return trials_where(connection, same & (Trial.number_in_branch == number_in_branch))[0]

    @writing
    def add_runs(
        self,
        connection: Connection,
        configs: Mapping[int, Sequence[dict[str, Any]]],
        *,
        is_racing: bool = False,
    ) -> None:
        """Add runs to trials, given by their ids, for seeds that they do not have yet.

        Reopen the trials. In a race they keep their values, so that a comparison shows the race so
        far.
        """
        check_held(connection, self.holder, _study_of(next(iter(configs))))
        if changed := _add_runs(connection, configs):
            reopen(connection, changed, keeps_value=is_racing)

    @writing
    def finish_trial(
        self, connection: Connection, trial_id: int, state: State, value: float | None
    ) -> None:
        check_terminal(state)
        check_held(connection, self.holder, _study_of(trial_id))
        values = {"state": state, "value": value, "finished_at": db_now()}
        connection.execute(update(Trial).where(Trial.id == trial_id).values(values))

    @writing
    def record_race(
        self, connection: Connection, study_id: int, placings: Sequence[Placing]
    ) -> None:
        """Replace what is recorded of a study's race, and announce it if that is something new."""
        check_held(connection, self.holder, study_id)
        if race_of(connection, study_id) == sorted(placings, key=lambda each: each.trial_id):
            return
        trials = select(Trial.id).where(Trial.study_id == study_id)
        connection.execute(delete(Race).where(Race.trial_id.in_(trials)))
        if placings:
            connection.execute(insert(Race), [asdict(each) for each in placings])
        announce(connection, study_id)


def record_study(connection: Connection, spec: StudySpec) -> int:
    """Record a study, or find it if it is recorded already. Return its id."""
    content: dict[str, Any] = {"spec": spec.to_dict(), "file_text": spec.text}
    content["runs_planned"] = spec.runs_planned
    new = {"uid": uuid.uuid4().hex, "name": spec.name, "created_at": db_now(), "elapsed": 0.0}
    new |= {"state": StudyState.STOPPED, "priority": Priority.NORMAL}
    if warm_start := _warm_start(connection, spec):
        content["spec"] |= {"warm_start": warm_start.to_dict()}
    connection.execute(insert_new(Study, connection.dialect.name).values(new | content))
    stored = find_study(connection, Study.name == spec.name)
    assert stored is not None
    if "warm_start" in stored.spec:  # another launcher may have recorded it first
        content["spec"] |= {"warm_start": stored.spec["warm_start"]}
    if stored.spec != content["spec"]:
        check_same_spec(stored.spec, spec)
    if any(getattr(stored, name) != value for name, value in content.items()):
        connection.execute(update(Study).where(Study.id == stored.id).values(**content))
        announce(connection, stored.id)
    return stored.id


def check_same_spec(stored: dict[str, Any], spec: StudySpec) -> None:
    """Raise a ConfigError if `spec` is a different study from the stored one."""
    lines = differences(stored, spec)
    if not lines:
        return
    another = f"To run this as another study, add --set name={spec.name[:62]}-2"
    if can_warm_start(stored, spec):
        another += f" --set search.warm_start={spec.name}; its sampler begins with these trials"
    raise ConfigError(
        f"study {spec.name!r} is recorded with other settings:",
        *lines,
        "A recorded study can change search.trials, search.hours, description, reference and "
        "resources, raise seeds and confirm, let seeds race, and get more arms.",
        another,
    )


def unknown_study(name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a `search.warm_start` that is not recorded."""
    names = ", ".join(known) or "none yet"
    return ConfigError(f"search.warm_start = {name!r}: no such study here; known: {names}")


def _study_of(trial_id: int) -> ScalarSelect[int]:
    return select(Trial.study_id).where(Trial.id == trial_id).scalar_subquery()


def find_study(connection: Connection, predicate: ColumnElement[bool]) -> StudyRow | None:
    row = connection.execute(select(Study).where(predicate)).mappings().first()
    return None if row is None else _study_row(row)


def _warm_start(connection: Connection, spec: StudySpec) -> WarmStart | None:
    if spec.search.warm_start is None:
        return None
    if recorded := find_study(connection, Study.name == spec.name):
        found = recorded.spec.get("warm_start")
        return None if found is None else WarmStart(**found)
    source = find_study(connection, Study.name == spec.search.warm_start)
    if source is None:
        names = connection.scalars(select(Study.name).order_by(Study.id))
        raise unknown_study(spec.search.warm_start, names)
    completed = (Trial.study_id == source.id) & (Trial.state == State.COMPLETE)
    trials = trials_where(connection, completed & Trial.confirms.is_(None))
    values = [(t.arm, t.runs[0].config, t.value) for t in trials if t.value is not None]
    return select_trials(spec, source.spec, values)


def _study_row(row: RowMapping) -> StudyRow:
    holder = holder_of(row)
    held_by = str(holder) if holder and not holder.is_dead() else None
    names = [field.name for field in fields(StudyRow) if field.name != "held_by"]
    return StudyRow(**{name: row[name] for name in names}, held_by=held_by)


def _prefix(config: Mapping[str, Any]) -> dict[str, Any]:
    key, epochs = prefix_of(config) or (None, None)
    return {"prefix": key, "plain_epochs": epochs}


def _add_runs(
    connection: Connection, configs: Mapping[int, Sequence[dict[str, Any]]]
) -> dict[int, None]:
    """Add runs to trials for the seeds that they lack. Return the trials that lacked any."""
    query = select(Run.trial_id, Run.seed).where(Run.trial_id.in_(list(configs)))
    known = {(trial_id, seed) for trial_id, seed in connection.execute(query)}
    rows = [
        {"uid": uuid.uuid4().hex, "trial_id": trial_id, "seed": config["seed"], "config": config}
        | _prefix(config)
        for trial_id, of_trial in configs.items()
        for config in of_trial
        if (trial_id, config["seed"]) not in known
    ]
    if rows:
        new = insert_new(Run, connection.dialect.name)
        new = new.values(state=State.WAITING, attempt=0, failures=0, last_epoch=0)
        connection.execute(new, rows)
    return dict.fromkeys(row["trial_id"] for row in rows)
