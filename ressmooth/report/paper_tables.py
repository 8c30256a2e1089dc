"""The paper's tables with our figures in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ressmooth.report.compare import ArmResult, conditions, samples
from ressmooth.report.measure import MEASURES
from ressmooth.report.paper import STATISTICS, method_of, problem
from ressmooth.report.stats import Sample
from ressmooth.spec.schema import PROBLEM
from ressmooth.store import PublishedFigure, State, TrialRow

Column = tuple[str, float]  # method, weight decay


@dataclass(frozen=True)
class Cell:
    ours: str
    n: int
    has_selected: bool  # its seeds were used for selection while other cells have fresh ones
    paper: str
    is_best: bool  # of our figures in the row, if it has the same kind of seeds


@dataclass(frozen=True)
class PaperTable:
    title: str
    head: list[str]
    rows: list[tuple[str, list[Cell]]]


@dataclass(frozen=True)
class PaperTables:
    """Fills the paper's tables with what a study has trained."""

    published: Sequence[PublishedFigure]
    arms: Sequence[ArmResult]
    trials: Sequence[TrialRow]

    def tables(self) -> list[PaperTable]:
        """Return the tables of the paper that have published figures for the study."""
        names = dict.fromkeys(figure.table_name for figure in self.published)
        return [
            self._table(name, [f for f in self.published if f.table_name == name]) for name in names
        ]

    def _table(self, name: str, published: Sequence[PublishedFigure]) -> PaperTable:
        rows = []
        for condition in conditions(self.trials):
            figures = [figure for figure in published if figure.problem == problem(condition)]
            for statistic in dict.fromkeys(figure.statistic for figure in figures):
                values = {_column(f): f.value for f in figures if f.statistic == statistic}
                cells = self._cells(condition, statistic, values)
                rows.append((_row_title(condition, statistic), cells))
        trained = dict.fromkeys(f"{figure.dataset}, {figure.model}" for figure in published)
        title = f"Table {name} of the paper: {'; '.join(trained)}"
        return PaperTable(title, _head(published), rows)

    def _cells(
        self, condition: Mapping[str, Any], statistic: str, values: Mapping[Column, float]
    ) -> list[Cell]:
        fresh = any(arm.is_fresh for arm in self.arms if arm.condition == condition)
        found = [(*self._ours(c, condition, statistic), paper) for c, paper in values.items()]
        means = [s.mean for s, is_fresh, _ in found if s and is_fresh == fresh]
        best = max(means, default=None)
        return [
            Cell(
                ours=MEASURES["accuracy"].mean_and_sd(sample) if sample else "–",
                n=sample.n if sample else 0,
                has_selected=sample is not None and fresh and not is_fresh,
                paper=f"{paper:.2f}",
                is_best=sample is not None
                and is_fresh == fresh
                and sample.mean == best
                and means.count(best) == 1,
            )
            for sample, is_fresh, paper in found
        ]

    def _ours(
        self, column: Column, condition: Mapping[str, Any], statistic: str
    ) -> tuple[Sample | None, bool]:
        """Return our sample for a cell, and whether its seeds are fresh.

        It is the selected arm's if that belongs in the column, or the search's best trial's.
        """
        for arm in self.arms:
            if (arm.method, arm.config["weight_decay"]) == column and arm.condition == condition:
                return _sample(statistic, arm.samples), arm.is_fresh
        matching = [
            trial
            for trial in self.trials
            if trial.state == State.COMPLETE
            and trial.confirms is None
            and trial.condition == condition
            and (method_of(trial.runs[0].config), trial.runs[0].config["weight_decay"]) == column
        ]
        best = max(matching, key=lambda trial: trial.value or 0.0, default=None)
        return (None if best is None else _sample(statistic, samples(best, "max"))), False


def _column(figure: PublishedFigure) -> Column:
    return figure.method, figure.weight_decay


def _head(published: Sequence[PublishedFigure]) -> list[str]:
    """Return the columns' names, with the weight decay where a method has several."""
    columns = list(dict.fromkeys(map(_column, published)))
    methods = [method for method, _ in columns]
    return [
        f"{method} {decay:.0e}".replace("e-0", "e-") if methods.count(method) > 1 else method
        for method, decay in columns
    ]


def _sample(statistic: str, samples: Mapping[str, Sample]) -> Sample | None:
    """Return the sample that is compared with the paper's figure by that statistic."""
    return next((s for name, s in samples.items() if STATISTICS[name] == statistic), None)


def _row_title(condition: Mapping[str, Any], statistic: str) -> str:
    others = [f"{key} {value}" for key, value in condition.items() if key not in PROBLEM]
    return ", ".join([f"{condition['fraction']:g}", *others, statistic])
