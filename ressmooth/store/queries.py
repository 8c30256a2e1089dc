"""Trials with their runs, the best of them, and the paper's figures: what comparisons read."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    bindparam,
    func,
    select,
    tuple_,
)
from sqlalchemy.engine import RowMapping

from ressmooth.store import tables
from ressmooth.store.database import Database, reading
from ressmooth.store.lease import holder_of
from ressmooth.store.rows import Problem, PublishedFigure, RunRow, State, StudyRow, TrialRow, Winner
from ressmooth.store.tables import Run, Trial

Query = Select[Any]

SEARCHED = (
    (Trial.study_id == bindparam("of_study"))
    & (Trial.state == State.COMPLETE)
    & Trial.confirms.is_(None)
)
ARMS = (
    select(
        Trial.arm,
        Trial.condition,
        func.max(Trial.value).label("best"),
        func.count().label("tried"),
        func.min(Trial.id).label("first"),
    )
    .where(SEARCHED)
    .group_by(Trial.arm, Trial.condition)
    .subquery()
)
WINNERS = (
    select(func.min(Trial.id).label("id"), ARMS.c.tried)
    .join(
        ARMS,
        (Trial.arm == ARMS.c.arm)
        & (Trial.condition == ARMS.c.condition)
        & (Trial.value == ARMS.c.best),
    )
    .where(SEARCHED)
    .group_by(Trial.arm, Trial.condition, ARMS.c.tried, ARMS.c.first)
    .order_by(ARMS.c.first)
)


def _queries(where: ColumnElement[bool]) -> tuple[Query, Query]:
    """For the runs of some trials, and for the trials."""
    of_runs = select(Run).join(Trial, Run.trial_id == Trial.id).where(where).order_by(Run.seed)
    return of_runs, select(Trial).where(where).order_by(Trial.id)


CHOSEN: BindParameter[Any] = bindparam("chosen", expanding=True)
WITH_CONFIRMATIONS = _queries(Trial.id.in_(CHOSEN) | Trial.confirms.in_(CHOSEN))
PROBLEM = tuple_(tables.Baseline.dataset, tables.Baseline.model, tables.Baseline.fraction)
PUBLISHED = (
    select(*(tables.Baseline.__table__.columns[field.name] for field in fields(PublishedFigure)))
    .where(PROBLEM.in_(bindparam("problems", expanding=True)))
    .order_by(tables.Baseline.id)
)


class Queries:
    database: Database

    @reading
    def trial(self, connection: Connection, trial_id: int) -> TrialRow:
        return trials_where(connection, Trial.id == trial_id)[0]

    @reading
    def trials(self, connection: Connection, study_id: int) -> list[TrialRow]:
        return trials_where(connection, Trial.study_id == study_id)

    @reading
    def winners(self, connection: Connection, study_id: int) -> list[Winner]:
        """Per arm and condition its best complete trial, oldest arms first; reads no epoch."""
        chosen = connection.execute(WINNERS, {"of_study": study_id}).all()
        found = _fetch(connection, *WITH_CONFIRMATIONS, {"chosen": [row.id for row in chosen]})
        trials = {trial.id: trial for trial in found}
        confirming = {trial.confirms: trial for trial in found}
        return [Winner(trials[row.id], row.tried, confirming.get(row.id)) for row in chosen]

    @reading
    def published_figures(
        self, connection: Connection, problems: Iterable[Problem]
    ) -> list[PublishedFigure]:
        """Return the paper's figures for some problems."""
        rows = connection.execute(PUBLISHED, {"problems": list(set(problems))})
        return [PublishedFigure(*row) for row in rows]


def study_row(row: RowMapping) -> StudyRow:
    holder = holder_of(row)
    names = [field.name for field in fields(StudyRow) if field.name != "held_by"]
    return StudyRow(**{name: row[name] for name in names}, held_by=str(holder) if holder else None)


def trials_where(connection: Connection, where: ColumnElement[bool]) -> list[TrialRow]:
    return _fetch(connection, *_queries(where), {})


def _fetch(
    connection: Connection, of_runs: Query, of_trials: Query, given: dict[str, Any]
) -> list[TrialRow]:
    runs: dict[int, list[RunRow]] = defaultdict(list)
    for row in connection.execute(of_runs, given).mappings():
        runs[row["trial_id"]].append(RunRow(**row))
    trials = connection.execute(of_trials, given).mappings()
    return [
        TrialRow(**{**row, "condition": json.loads(row["condition"])}, runs=runs[row["id"]])
        for row in trials
    ]
