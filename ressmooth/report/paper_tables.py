"""The paper's tables with our figures in them: its rows, its columns, ours above the paper's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ressmooth.report import verdicts
from ressmooth.report.compare import IN_PAPER, Arm, conditions, problem, samples
from ressmooth.report.paper import method_of
from ressmooth.report.stats import Sample
from ressmooth.spec.schema import PROBLEM
from ressmooth.store import PublishedFigure, State, TrialRow

Column = tuple[str, float]  # method, weight decay


@dataclass(frozen=True)
class Cell:
    ours: str
    n: int
    has_selected: bool  # the seeds did, while those of other cells are fresh
    paper: str
    is_best: bool  # of our row, among its like


@dataclass(frozen=True)
class PaperTable:
    title: str
    head: list[str]
    rows: list[tuple[str, list[Cell]]]


class Layout:
    def __init__(
        self, published: Sequence[PublishedFigure], arms: Sequence[Arm], trials: Sequence[TrialRow]
    ) -> None:
        self.published, self.arms = published, arms
        self.trials = [t for t in trials if t.state == State.COMPLETE and t.confirms is None]
        self.conditions = conditions(trials)

    def tables(self) -> Iterator[PaperTable]:
        """The paper's tables, of which `published` has the rows for what was trained."""
        for name in dict.fromkeys(row.table_name for row in self.published):
            yield self._table(name, [row for row in self.published if row.table_name == name])

    def _table(self, name: str, published: Sequence[PublishedFigure]) -> PaperTable:
        columns = list(dict.fromkeys((row.method, row.weight_decay) for row in published))
        methods = [method for method, _ in columns]
        head = [
            f"{method} {decay:.0e}".replace("e-0", "e-") if methods.count(method) > 1 else method
            for method, decay in columns
        ]
        rows = []
        for condition in self.conditions:
            like = [row for row in published if row.problem == problem(condition)]
            for statistic in dict.fromkeys(row.statistic for row in like):
                values = {
                    (row.method, row.weight_decay): row.value
                    for row in like
                    if row.statistic == statistic
                }
                cells = self._cells(condition, statistic, values)
                rows.append((_title(condition, statistic), cells))
        trained = dict.fromkeys(f"{row.dataset}, {row.model}" for row in published)
        return PaperTable(f"Table {name} of the paper: {'; '.join(trained)}", head, rows)

    def _cells(
        self, condition: Mapping[str, Any], statistic: str, values: Mapping[Column, float]
    ) -> list[Cell]:
        fresh = any(arm.is_fresh for arm in self.arms if arm.condition == condition)
        found = [(*self._ours(column, condition, statistic), values[column]) for column in values]
        best = max((s.mean for s, is_fresh, _ in found if s and is_fresh == fresh), default=None)
        return [
            Cell(
                verdicts.figure(sample) if sample else "–",
                sample.n if sample else 0,
                sample is not None and fresh and not is_fresh,
                f"{paper:.2f}",
                sample is not None and is_fresh == fresh and sample.mean == best,
            )
            for sample, is_fresh, paper in found
        ]

    def _ours(
        self, column: Column, condition: Mapping[str, Any], statistic: str
    ) -> tuple[Sample | None, bool]:
        """Of the selected arm with that method and weight decay, else of the search's best trial;
        and whether its seeds are fresh."""
        for arm in self.arms:
            if (arm.method, arm.config["weight_decay"]) == column and arm.condition == condition:
                return _by(statistic, arm.samples), arm.is_fresh
        alike = [
            trial
            for trial in self.trials
            if trial.condition == condition
            and (method_of(trial.runs[0].config), trial.runs[0].config["weight_decay"]) == column
        ]
        best = max(alike, key=lambda trial: trial.value or 0.0, default=None)
        return (None if best is None else _by(statistic, samples(best, "max"))), False


def _by(statistic: str, samples: Mapping[str, Sample]) -> Sample | None:
    """What stands beside the paper's figure by that statistic."""
    return next((s for name, s in samples.items() if IN_PAPER[name] == statistic), None)


def _title(condition: Mapping[str, Any], statistic: str) -> str:
    rest = {k: v for k, v in condition.items() if k not in PROBLEM}
    others = [f"{key} {value}" for key, value in rest.items()]
    return ", ".join([f"{condition['fraction']:g}", *others, statistic])
