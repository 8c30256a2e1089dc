"""Read trials with their runs, the best trial of each arm, and the published figures."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
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

from ressmooth.config import METRIC
from ressmooth.store.database import Part, reading
from ressmooth.store.placing import Placing, RaceResult
from ressmooth.store.published import Problem, PublishedFigure
from ressmooth.store.rows import (
    TERMINAL,
    RunFiles,
    RunRow,
    State,
    TrialRow,
    Winner,
)
from ressmooth.store.tables import Baseline, Epoch, Race, Run, Study, Trial

PAGE = 500  # trials that are loaded at once

# Statements are built once, because SQLAlchemy takes longer to build one than to run it.
SEARCHED = (Trial.study_id == bindparam("of_study")) & Trial.confirms.is_(None)
OUT = select(Race.trial_id).where(Race.result.in_((RaceResult.DROPPED, RaceResult.BEHIND)))
# Confirmations are never selected, nor who has lost a race: it was trained with fewer seeds.
# A running trial with a value is in a race.
HAS_VALUE = Trial.state.in_((State.COMPLETE, State.RUNNING)) & Trial.value.is_not(None)
SELECTABLE = SEARCHED & HAS_VALUE & Trial.id.not_in(OUT)
STATES = (
    select(Trial.arm, Trial.condition, Trial.state, func.count())
    .where(SEARCHED)
    .group_by(Trial.arm, Trial.condition, Trial.state)
)


def _winners(best: Any) -> Select[int, str, str]:
    """Return the statement for the best trials, `best` being SQL's max or min."""
    arms = (
        select(
            Trial.arm,
            Trial.condition,
            best(Trial.value).label("best"),
            func.min(Trial.id).label("first"),
        )
        .where(SELECTABLE)
        .group_by(Trial.arm, Trial.condition)
        .subquery()
    )
    return (
        select(func.min(Trial.id).label("id"), Trial.arm, Trial.condition)
        .join(
            arms,
            (Trial.arm == arms.c.arm)
            & (Trial.condition == arms.c.condition)
            & (Trial.value == arms.c.best),
        )
        .where(SELECTABLE)
        .group_by(Trial.arm, Trial.condition, arms.c.first)
        .order_by(arms.c.first)
    )


WINNERS = {True: _winners(func.max), False: _winners(func.min)}  # by: is higher better?
SETTINGS_OF_STUDY = select(Study.spec).where(Study.id == bindparam("of_study"))


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
    def trials_with_ids(self, connection: Connection, ids: Iterable[int]) -> list[TrialRow]:
        return trials_where(connection, Trial.id.in_(list(ids)))

    @reading
    def trials_page(
        self, connection: Connection, study_id: int, page: int, size: int
    ) -> list[TrialRow]:
        """Return the trials of a page, the oldest on page 1."""
        ids = select(Trial.id).where(Trial.study_id == study_id).order_by(Trial.id)
        return trials_where(connection, Trial.id.in_(ids.limit(size).offset((page - 1) * size)))

    @reading
    def count_trials(self, connection: Connection, study_id: int) -> int:
        query = select(func.count()).select_from(Trial).where(Trial.study_id == study_id)
        return connection.scalars(query).one()

    @reading
    def first_trials(self, connection: Connection, study_id: int) -> list[TrialRow]:
        """Return the oldest trial of each branch. Those of a branch have the same parameters."""
        oldest = select(func.min(Trial.id)).where(Trial.study_id == study_id)
        return trials_where(connection, Trial.id.in_(oldest.group_by(Trial.branch)))

    def trial_pages(self, study_id: int) -> Iterator[list[TrialRow]]:
        """Yield the trials of a study, oldest first, without loading all of them at once."""
        last = 0
        while page := self._trials_after(study_id, last):
            yield page
            last = page[-1].id

    def each_trial(self, study_id: int) -> Iterator[TrialRow]:
        """Yield the trials of a study, oldest first, without loading all of them at once."""
        for page in self.trial_pages(study_id):
            yield from page

    @reading
    def _trials_after(self, connection: Connection, study_id: int, last: int) -> list[TrialRow]:
        later = select(Trial.id).where(Trial.study_id == study_id, Trial.id > last)
        return trials_where(connection, Trial.id.in_(later.order_by(Trial.id).limit(PAGE)))

    @reading
    def best_by_epoch(
        self, connection: Connection, run_ids: Iterable[int], metric: str
    ) -> dict[int, dict[int, float]]:
        """Return the best value of a metric so far, by run and epoch, from the first one on."""
        column = Epoch.__table__.columns[METRIC[metric].column]
        best = func.max if METRIC[metric].is_higher_better else func.min
        so_far = best(column).over(partition_by=Epoch.run_id, order_by=Epoch.epoch)
        query = select(Epoch.run_id, Epoch.epoch, so_far).where(Epoch.run_id.in_(list(run_ids)))
        found: dict[int, dict[int, float]] = defaultdict(dict)
        for run_id, epoch, value in connection.execute(query):
            if value is not None:
                found[run_id][epoch] = value
        return found

    @reading
    def spec_of(self, connection: Connection, run_id: int) -> dict[str, Any]:
        """Return the stored spec of a run's study."""
        query = (
            select(Study.spec)
            .join(Trial, Trial.study_id == Study.id)
            .join(Run, Run.trial_id == Trial.id)
            .where(Run.id == run_id)
        )
        found: dict[str, Any] = connection.scalars(query).one()
        return found

    @reading
    def winners(self, connection: Connection, study_id: int) -> list[Winner]:
        """Return the best complete trial per arm and condition, oldest arms first."""
        study = {"of_study": study_id}
        settings = connection.scalars(SETTINGS_OF_STUDY, study).one()["settings"]
        metric = METRIC[settings.get("metric", "accuracy")]
        chosen = connection.execute(WINNERS[metric.is_higher_better], study).all()
        found = _fetch(connection, WITH_CONFIRMATIONS, {"chosen": [row.id for row in chosen]})
        trials = {trial.id: trial for trial in found}
        confirmations = {trial.confirms: trial for trial in found}
        states: dict[tuple[str, str], dict[State, int]] = defaultdict(dict)
        for arm, condition, state, number in connection.execute(STATES, {"of_study": study_id}):
            states[arm, condition][state] = number
        return [
            Winner(
                trials[row.id], _in_order(states[row.arm, row.condition]), confirmations.get(row.id)
            )
            for row in chosen
        ]

    @reading
    def race(self, connection: Connection, study_id: int) -> list[Placing]:
        """Return what a study's race has decided, by trial."""
        return race_of(connection, study_id)

    @reading
    def run_states(self, connection: Connection) -> dict[int, Counter[State]]:
        """Return how many runs each study has by state, the ended ones first."""
        query = select(Trial.study_id, Run.state, func.count()).join(Run, Run.trial_id == Trial.id)
        found: dict[int, dict[State, int]] = defaultdict(dict)
        for study_id, state, number in connection.execute(
            query.group_by(Trial.study_id, Run.state)
        ):
            found[study_id][state] = number
        return {study_id: Counter(_in_order(states)) for study_id, states in found.items()}

    @reading
    def run_files(self, connection: Connection) -> list[RunFiles]:
        """Return what decides about the files of every run."""
        query = select(Run.uid, Run.state, Study.id, Study.state)
        query = query.join(Trial, Run.trial_id == Trial.id).join(Study, Trial.study_id == Study.id)
        return [RunFiles(*row) for row in connection.execute(query)]

    @reading
    def datasets(self, connection: Connection) -> set[tuple[str, int]]:
        """Return the data sets of all runs, with the size of their images."""
        config: Any = Run.config
        query = select(config["dataset"].as_string(), config["image_size"].as_integer())
        return {(name, size or 0) for name, size in connection.execute(query.distinct())}

    @reading
    def published_figures(
        self, connection: Connection, problems: Iterable[Problem]
    ) -> list[PublishedFigure]:
        """Return the published figures for some problems, in the order of the paper."""
        rows = connection.execute(PUBLISHED, {"problems": list(set(problems))})
        return [PublishedFigure(*row) for row in rows]


def race_of(connection: Connection, study_id: int) -> list[Placing]:
    query = select(Race.__table__).join(Trial, Race.trial_id == Trial.id)
    query = query.where(Trial.study_id == study_id).order_by(Race.trial_id)
    return [Placing(*row) for row in connection.execute(query)]


def _in_order(states: dict[State, int]) -> dict[State, int]:
    """Return numbers by state, those of ended trials or runs first."""
    order = (*TERMINAL, State.RUNNING, State.WAITING)
    return {state: states[state] for state in order if state in states}


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
