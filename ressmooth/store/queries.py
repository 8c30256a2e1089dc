"""Read trials with their runs, the best trial of each arm, and the published figures."""

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

from ressmooth.store.database import Part, reading
from ressmooth.store.rows import Problem, PublishedFigure, RunRow, State, TrialRow, Winner
from ressmooth.store.tables import Baseline, Run, Trial

# Statements are built once, because SQLAlchemy takes longer to build one than to run it.
SELECTABLE = (  # confirmations are never selected
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
    .where(SELECTABLE)
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
    .where(SELECTABLE)
    .group_by(Trial.arm, Trial.condition, ARMS.c.tried, ARMS.c.first)
    .order_by(ARMS.c.first)
)


def _statements(predicate: ColumnElement[bool]) -> tuple[Select[Any], Select[Any]]:
    """Return the statements for some trials and for their runs."""
    runs = select(Run).join(Trial, Run.trial_id == Trial.id).where(predicate).order_by(Run.seed)
    return select(Trial).where(predicate).order_by(Trial.id), runs


CHOSEN: BindParameter[Any] = bindparam("chosen", expanding=True)
WITH_CONFIRMATIONS = _statements(Trial.id.in_(CHOSEN) | Trial.confirms.in_(CHOSEN))
PROBLEM = tuple_(Baseline.dataset, Baseline.model, Baseline.fraction)
PUBLISHED = (
    select(*(Baseline.__table__.columns[field.name] for field in fields(PublishedFigure)))
    .where(PROBLEM.in_(bindparam("problems", expanding=True)))
    .order_by(Baseline.id)
)


class Queries(Part):
    """Reads for planners and comparisons."""

    @reading
    def trial(self, connection: Connection, trial_id: int) -> TrialRow:
        return trials_where(connection, Trial.id == trial_id)[0]

    @reading
    def trials(self, connection: Connection, study_id: int) -> list[TrialRow]:
        return trials_where(connection, Trial.study_id == study_id)

    @reading
    def winners(self, connection: Connection, study_id: int) -> list[Winner]:
        """Return the best complete trial per arm and condition, oldest arms first."""
        chosen = connection.execute(WINNERS, {"of_study": study_id}).all()
        found = _fetch(connection, WITH_CONFIRMATIONS, {"chosen": [row.id for row in chosen]})
        trials = {trial.id: trial for trial in found}
        confirmations = {trial.confirms: trial for trial in found}
        return [Winner(trials[row.id], row.tried, confirmations.get(row.id)) for row in chosen]

    @reading
    def published_figures(
        self, connection: Connection, problems: Iterable[Problem]
    ) -> list[PublishedFigure]:
        """Return the published figures for some problems, in the order of the paper."""
        rows = connection.execute(PUBLISHED, {"problems": list(set(problems))})
        return [PublishedFigure(*row) for row in rows]


def trials_where(connection: Connection, predicate: ColumnElement[bool]) -> list[TrialRow]:
    return _fetch(connection, _statements(predicate), {})


def _fetch(
    connection: Connection, statements: tuple[Select[Any], Select[Any]], values: dict[str, Any]
) -> list[TrialRow]:
    of_trials, of_runs = statements
    runs: dict[int, list[RunRow]] = defaultdict(list)
    for row in connection.execute(of_runs, values).mappings():
        runs[row["trial_id"]].append(RunRow(**row))
    return [
        TrialRow(**{**row, "condition": json.loads(row["condition"])}, runs=runs[row["id"]])
        for row in connection.execute(of_trials, values).mappings()
    ]
