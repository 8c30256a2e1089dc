"""Show comparisons as tables: for terminals, Markdown and LaTeX, and as CSV and JSON records."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from ressmooth.formatting import duration, last_line, settings
from ressmooth.report.compare import (
    ArmResult,
    Comparison,
    Line,
    arm_results,
    by_selecting_statistic,
    compare_studies,
)
from ressmooth.report.verdicts import (
    condition_text,
    decimal,
    interval_text,
    mean_and_sd,
    notes,
    probability,
    signed,
    verdict_sentences,
)
from ressmooth.store import Store, StudyRow, TrialRow

WIDTH = 120  # characters of a terminal
LATEX = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "<": "$<$",
        ">": "$>$",
    }
)


@dataclass(frozen=True)
class Sheet:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int | None = None  # row to highlight


def sheets(comparisons: Iterable[Comparison], *, against_paper: bool) -> Iterator[Sheet]:
    for comparison in comparisons:
        yield comparison_sheet(comparison)
        if against_paper and comparison.has_paper:
            yield paper_sheet(comparison)


def comparison_sheet(comparison: Comparison) -> Sheet:
    """Show each arm's selected configuration, its accuracy, and its difference to SGD."""
    studies = " + ".join(dict.fromkeys(line.arm.study for line in comparison.lines))
    condition = condition_text(comparison.condition)
    title = f"{studies}: {comparison.statistic} accuracy in %, {condition}"
    head = ["arm", "configuration", "trials", "n", comparison.statistic, "95 % interval"]
    rows = [
        [
            line.arm.label,
            settings(line.arm.searched) or "–",
            str(line.arm.tried),
            str(line.sample.n),
            mean_and_sd(line.sample),
            interval_text(line.sample.interval),
            *_difference(line),
        ]
        for line in comparison.lines
    ]
    return Sheet(title, [*head, "− SGD", "95 % interval", "p"], rows, _best(comparison))


def paper_sheet(comparison: Comparison) -> Sheet:
    """Show the paper's figures, how far ours are from them, and whether its ordering holds."""
    title = f"{comparison.statistic} accuracy in %, compared with the paper"
    head = ["arm", comparison.statistic, "paper", "ours − paper", "− SGD", "paper's − SGD"]
    rows = [
        [
            line.arm.label,
            mean_and_sd(line.sample),
            decimal(line.paper),
            signed(line.from_paper),
            signed(line.difference.mean if line.difference else None),
            signed(line.paper_difference),
            line.ordering or "–",
        ]
        for line in comparison.lines
    ]
    return Sheet(title, [*head, "paper's ordering"], rows, _best(comparison))


def _difference(line: Line) -> list[str]:
    tested = line.difference
    if tested is None:
        return ["–", "–", "–"]
    interval = interval_text(tested.interval, signs=True)
    return [signed(tested.mean), interval, probability(tested.p)]


def _best(comparison: Comparison) -> int:
    means = [line.sample.mean for line in comparison.lines]
    return means.index(max(means))


def comparison_text(comparisons: Sequence[Comparison], *, against_paper: bool) -> str:
    parts = [render_sheet(s).rstrip() for s in sheets(comparisons, against_paper=against_paper)]
    return "\n".join(parts + _sentences(comparisons, against_paper))


def markdown(comparisons: Sequence[Comparison], *, against_paper: bool) -> str:
    parts = [
        f"**{sheet.title}**\n\n{markdown_table(sheet)}"
        for sheet in sheets(comparisons, against_paper=against_paper)
    ]
    return "\n".join(parts + [f"- {each}" for each in _sentences(comparisons, against_paper)])


def _sentences(comparisons: Sequence[Comparison], against_paper: bool) -> list[str]:
    return verdict_sentences(comparisons) + notes(comparisons, against_paper=against_paper)


def markdown_table(sheet: Sheet) -> str:
    rows = [sheet.head, ["---"] * len(sheet.head), *sheet.rows]
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def latex(comparisons: Sequence[Comparison], *, against_paper: bool) -> str:
    """Return tables for the booktabs package, after the notes as comments."""
    comments = [f"% {note}" for note in notes(comparisons, against_paper=against_paper)]
    tables = map(_latex_table, sheets(comparisons, against_paper=against_paper))
    return "\n".join([*comments, *tables])


def _latex_table(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(cell.translate(LATEX) for cell in cells) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{sheet.title.translate(LATEX)}}}",
            rf"\begin{{tabular}}{{ll{'r' * (len(sheet.head) - 2)}}}",
            r"\toprule",
            line(sheet.head),
            r"\midrule",
            *map(line, sheet.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def as_csv(comparisons: Iterable[Comparison]) -> str:
    rows, out = _records(comparisons), io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        lists = {key: " ".join(map(str, row[key])) for key in ("runs", "values")}
        writer.writerow({**row, "configuration": settings(row["configuration"]), **lists})
    return out.getvalue().rstrip("\n")


def as_json(comparisons: Iterable[Comparison]) -> str:
    return json.dumps(_records(comparisons), indent=1, ensure_ascii=False)


def _records(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    return [_record(line, table) for table in comparisons for line in table.lines]


def _record(line: Line, comparison: Comparison) -> dict[str, Any]:
    arm, tested = line.arm, line.difference
    low, high = line.sample.interval or (None, None)
    difference_low, difference_high = (tested and tested.interval) or (None, None)
    return {
        "study": arm.study,
        **comparison.condition,
        "arm": arm.name,
        "statistic": comparison.statistic,
        "configuration": arm.params,
        "tried": arm.tried,
        "fresh": arm.is_fresh,
        "trial": arm.trial,
        "runs": list(arm.runs),
        "values": line.sample.values,
        "n": line.sample.n,
        "failed": arm.failed,
        "mean": line.sample.mean,
        "sd": line.sample.sd,
        "low": low,
        "high": high,
        "baseline": line.reference.name if line.reference else None,
        "difference": tested.mean if tested else None,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "p": tested.p if tested else None,
        "test": tested.test if tested else None,
        "more_seeds": tested.more_seeds if tested else None,
        "paper": line.paper,
        "from_paper": line.from_paper,
        "paper_difference": line.paper_difference,
        "ordering": line.ordering,
    }


def overview(store: Store) -> str:
    table = Table("study", "dataset", "model", "runs", "best arm", "since", "held by")
    for study in store.studies():
        arms = arm_results(study, store.winners(study.id))
        states = Counter(run.state for trial in store.trials(study.id) for run in trial.runs)
        common = study.spec["settings"]
        table.add_row(
            study.name,
            str(common.get("dataset", "digits")),
            str(common.get("model", "small")),
            ", ".join(f"{number} {state}" for state, number in states.items()) or "none",
            _best_arm(arms),
            f"{study.created_at:%Y-%m-%d %H:%M}",
            study.held_by or "",
        )
    return render_table(table).rstrip()


def _best_arm(arms: Sequence[ArmResult]) -> str:
    best = max((arm.selecting_sample.mean for arm in arms), default=None)
    names = [arm.name for arm in arms if arm.selecting_sample.mean == best]
    if len(names) > 1:
        return f"{len(names)} arms tie at {best:.2f} %"
    return f"{names[0]} {best:.2f} %" if names else "–"


def details(store: Store, study: StudyRow) -> str:
    """Return every trial and run of a study, then the comparison."""
    trials = store.trials(study.id)
    folded = ("arm", "configuration", "value", "run", "seed", "epochs", "state", "max")
    columns = [Column(name, overflow="fold") for name in folded]
    table = Table(*columns, "mean", "time", title=study.name)
    for trial in trials:
        for cells in _run_rows(trial):
            table.add_row(*cells)
    errors = [
        f"run {run.id} ({trial.arm}, seed {run.seed}): {last_line(run.error)}"
        for trial in trials
        for run in trial.runs
        if run.error
    ]
    comparisons = by_selecting_statistic(compare_studies(store, [study]))
    compared = comparison_text(comparisons, against_paper=False)
    return "\n".join([render_table(table).rstrip(), *errors, compared])


def _run_rows(trial: TrialRow) -> Iterator[list[str]]:
    arm = trial.arm if trial.confirms is None else f"{trial.arm} (fresh seeds)"
    head = [arm, settings(trial.params), decimal(trial.value, "")]
    for run in trial.runs:
        yield [
            *head,
            str(run.id),
            str(run.seed),
            f"{run.last_epoch}/{run.config['epochs']}",
            run.state,
            decimal(run.max_acc, ""),
            decimal(run.mean_acc, ""),
            duration(run.seconds) if run.seconds is not None else "",
        ]
        head = [""] * len(head)


def render_sheet(sheet: Sheet) -> str:
    table = Table(title=sheet.title)
    for number, name in enumerate(sheet.head):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for number, row in enumerate(sheet.rows):
        table.add_row(*row, style="bold" if number == sheet.best else None)
    return render_table(table)


def render_table(table: Table) -> str:
    console = Console(width=WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
