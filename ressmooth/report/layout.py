"""The paper's tables with our figures in them: its rows, its columns, ours above the paper's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ressmooth.compare import Arm, samples
from ressmooth.compare import problem as problem_of
from ressmooth.inference import Sample
from ressmooth.paper import Baseline, Problem, method_of
from ressmooth.report.words import figure
from ressmooth.store import TrialRow

Column = tuple[str, float]  # method, weight decay


@dataclass(frozen=True)
class Cell:
    ours: str
    n: int
    paper: str
    is_best: bool  # of our row


@dataclass(frozen=True)
class PaperTable:
    title: str
    head: list[str]
    rows: list[tuple[str, list[Cell]]]


def paper_tables(
    published: Sequence[Baseline], arms: Sequence[Arm], trials: Sequence[TrialRow], objective: str
) -> Iterator[PaperTable]:
    """The paper's tables, of which `published` has the rows for what was trained."""
    for name in dict.fromkeys(row.table_name for row in published):
        rows = [row for row in published if row.table_name == name]
        yield _table(name, rows, arms, trials, objective)


def _table(
    name: str,
    published: Sequence[Baseline],
    arms: Sequence[Arm],
    trials: Sequence[TrialRow],
    objective: str,
) -> PaperTable:
    columns = list(dict.fromkeys((row.method, row.weight_decay) for row in published))
    several = {method for method, _ in columns if [m for m, _ in columns].count(method) > 1}
    head = [f"{m} {decay:.0e}".replace("e-0", "e-") if m in several else m for m, decay in columns]
    rows = []
    for key in dict.fromkeys((row.problem, row.statistic) for row in published):
        problem, statistic = key
        values = {
            (row.method, row.weight_decay): row.value
            for row in published
            if (row.problem, row.statistic) == key
        }
        found = [_ours(column, problem, statistic, arms, trials, objective) for column in columns]
        best = max((sample.mean for sample in found if sample), default=None)
        cells = [
            Cell(
                figure(sample) if sample else "–",
                sample.n if sample else 0,
                f"{values[column]:.2f}",
                sample is not None and sample.mean == best,
            )
            for column, sample in zip(columns, found, strict=True)
        ]
        rows.append((f"{problem[2]:g}, {statistic}", cells))
    trained = dict.fromkeys(f"{row.dataset}, {row.model}" for row in published)
    return PaperTable(f"Table {name} of the paper: {'; '.join(trained)}", head, rows)


def _ours(
    column: Column,
    problem: Problem,
    statistic: str,
    arms: Sequence[Arm],
    trials: Sequence[TrialRow],
    objective: str,
) -> Sample | None:
    """The selected arm with that method and weight decay, else the best trial of the search."""
    method, decay = column
    for arm in arms:
        like = (arm.method, arm.config["weight_decay"], problem_of(arm.condition))
        if like == (method, decay, problem) and statistic in arm.samples:
            return arm.samples[statistic]
    alike = [
        trial
        for trial in trials
        if trial.state == "complete" and trial.confirms is None
        if problem_of(trial.condition) == problem
        if method_of(trial.runs[0].config) == method
        and trial.runs[0].config["weight_decay"] == decay
    ]
    best = max(alike, key=lambda trial: trial.value or 0.0, default=None)
    return None if best is None else samples(best, objective).get(statistic)
