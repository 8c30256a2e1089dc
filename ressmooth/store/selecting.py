"""Trials with their runs, the best of them, and the paper's figures: what comparisons read."""

import json
from collections import defaultdict
from dataclasses import fields

from sqlalchemy import ColumnElement, Connection, bindparam, func, select

from ressmooth.paper import Baseline
from ressmooth.store import tables
from ressmooth.store.database import Database
from ressmooth.store.rows import COMPLETE, RunRow, TrialRow, Winner
from ressmooth.store.tables import Run, Trial
from ressmooth.store.transaction import reading

SEARCHED = (
    (Trial.study_id == bindparam("of_study")) & (Trial.state == COMPLETE) & Trial.confirms.is_(None)
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


class Selecting:
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
        ids = [row.id for row in chosen]
        found = trials_where(connection, Trial.id.in_(ids) | Trial.confirms.in_(ids))
        trials = {trial.id: trial for trial in found}
        confirming = {trial.confirms: trial for trial in found}
        return [Winner(trials[row.id], row.tried, confirming.get(row.id)) for row in chosen]

    @reading
    def baselines(self, connection: Connection) -> list[Baseline]:
        """The paper's figures."""
        columns = [tables.Baseline.__table__.columns[field.name] for field in fields(Baseline)]
        rows = connection.execute(select(*columns).order_by(tables.Baseline.id)).mappings()
        return [Baseline(**row) for row in rows]


def trials_where(connection: Connection, where: ColumnElement[bool]) -> list[TrialRow]:
    query = select(Run).join(Trial, Run.trial_id == Trial.id).where(where)
    runs: dict[int, list[RunRow]] = defaultdict(list)
    for row in connection.execute(query.order_by(Run.seed)).mappings():
        runs[row["trial_id"]].append(RunRow(**row))
    trials = connection.execute(select(Trial).where(where).order_by(Trial.id)).mappings()
    return [
        TrialRow(**{**row, "condition": json.loads(row["condition"])}, runs=runs[row["id"]])
        for row in trials
    ]
