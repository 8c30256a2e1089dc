"""Comparisons as tables: for terminals, Markdown, LaTeX, and as records for CSV and JSON."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ressmooth.formatting import duration, last_line, settings
from ressmooth.report import verdicts
from ressmooth.report.compare import Arm, Comparison, Line, leading, searched
from ressmooth.store import StudyRow, TrialRow

WIDTH = 120
LATEX = {
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


@dataclass(frozen=True)
class Sheet:
    """A table of strings."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int | None = None  # the row to be seen first


def sheets(comparisons: Iterable[Comparison], *, against_paper: bool) -> list[Sheet]:
    found = []
    for comparison in comparisons:
        found.append(ours(comparison))
        if against_paper and comparison.has_paper:
            found.append(beside_paper(comparison))
    return found


def ours(comparison: Comparison) -> Sheet:
    """Each arm's selected configuration, its figure, and its difference to SGD."""
    head = ["arm", "configuration", "trials", "n", comparison.statistic, "95 % interval"]
    head += ["− SGD", "95 % interval", "p"]
    rows = [
        [
            line.arm.label,
            settings(searched(line.arm)) or "–",
            str(line.arm.tried),
            str(line.sample.n),
            verdicts.figure(line.sample),
            verdicts.between(line.sample.interval),
            *_difference(line),
        ]
        for line in comparison.lines
    ]
    return Sheet(_title(comparison), head, rows, _best(comparison))


def beside_paper(comparison: Comparison) -> Sheet:
    """The paper's figure, how far ours is from it, and whether its ordering holds."""
    head = ["arm", comparison.statistic, "paper", "ours − paper", "− SGD", "paper's − SGD"]
    rows = [
        [
            line.arm.label,
            verdicts.figure(line.sample),
            "–" if line.paper is None else f"{line.paper:.2f}",
            verdicts.signed(line.from_paper),
            verdicts.signed(line.difference.mean if line.difference else None),
            verdicts.signed(line.paper_difference),
            line.ordering or "–",
        ]
        for line in comparison.lines
    ]
    title = f"{comparison.statistic} accuracy in %, beside the paper"
    return Sheet(title, [*head, "paper's ordering"], rows, _best(comparison))


def _difference(line: Line) -> list[str]:
    if line.difference is None:
        return ["–", "–", "–"]
    tested = line.difference
    interval = verdicts.between(tested.interval, signs=True)
    return [verdicts.signed(tested.mean), interval, verdicts.probability(tested.p)]


def _title(comparison: Comparison) -> str:
    studies = " + ".join(dict.fromkeys(line.arm.study for line in comparison.lines))
    return (
        f"{studies}: {comparison.statistic} accuracy in %, {verdicts.problem(comparison.condition)}"
    )


def _best(comparison: Comparison) -> int:
    means = [line.sample.mean for line in comparison.lines]
    return means.index(max(means))


def text(comparisons: Iterable[Comparison], *, against_paper: bool) -> str:
    """Tables, then what they say."""
    found = list(comparisons)
    parts = [render(sheet).rstrip() for sheet in sheets(found, against_paper=against_paper)]
    notes = verdicts.notes(found, against_paper=against_paper)
    return "\n".join([*parts, *said(found), *notes])


def markdown(comparisons: Iterable[Comparison], *, against_paper: bool) -> str:
    found = list(comparisons)
    parts = [
        f"**{sheet.title}**\n\n{markdown_table(sheet)}"
        for sheet in sheets(found, against_paper=against_paper)
    ]
    sentences = [*said(found), *verdicts.notes(found, against_paper=against_paper)]
    return "\n".join([*parts, *(f"- {sentence}" for sentence in sentences)])


def said(comparisons: Sequence[Comparison]) -> list[str]:
    """Every verdict, and a summary of several."""
    found = [verdicts.verdict(line, each) for each in comparisons for line in each.tested]
    selecting = leading(comparisons)
    if sum(len(each.tested) for each in selecting) > 2:
        found.insert(0, verdicts.summary(selecting))
    return found + [sentence for each in comparisons for sentence in verdicts.ranking(each)]


def markdown_table(sheet: Sheet) -> str:
    rows = [sheet.head, ["---"] * len(sheet.head), *sheet.rows]
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def latex(comparisons: Iterable[Comparison], *, against_paper: bool) -> str:
    """Tables for the booktabs package, a comment with the notes above each."""
    found = list(comparisons)
    notes = "\n".join(f"% {note}" for note in verdicts.notes(found, against_paper=against_paper))
    tables = map(_latex_table, sheets(found, against_paper=against_paper))
    return "\n".join([notes, *tables])


def _latex_table(sheet: Sheet) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(_latex_text, cells)) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_latex_text(sheet.title)}}}",
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


def _latex_text(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def as_csv(comparisons: Iterable[Comparison]) -> str:
    rows = [record for comparison in comparisons for record in records(comparison)]
    out = io.StringIO()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        lists = {key: " ".join(map(str, row[key])) for key in ("runs", "values")}
        writer.writerow({**row, "configuration": settings(row["configuration"]), **lists})
    return out.getvalue().rstrip("\n")


def as_json(comparisons: Iterable[Comparison]) -> str:
    rows = [record for comparison in comparisons for record in records(comparison)]
    return json.dumps(rows, indent=1, ensure_ascii=False)


def records(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """One record per arm, for CSV and JSON."""
    for line in comparison.lines:
        arm, tested = line.arm, line.difference
        low, high = line.sample.interval or (None, None)
        yield {
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
            "baseline": line.baseline.name if line.baseline else None,
            "difference": tested.mean if tested else None,
            "difference_low": tested.interval[0] if tested and tested.interval else None,
            "difference_high": tested.interval[1] if tested and tested.interval else None,
            "p": tested.p if tested else None,
            "test": tested.test if tested else None,
            "more_seeds": tested.more_seeds if tested else None,
            "paper": line.paper,
            "from_paper": line.from_paper,
            "paper_difference": line.paper_difference,
            "ordering": line.ordering,
        }


def render(sheet: Sheet) -> str:
    """As wide as a terminal usually is; longer cells are folded."""
    table = Table(title=sheet.title)
    for number, name in enumerate(sheet.head):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for number, row in enumerate(sheet.rows):
        table.add_row(*row, style="bold" if number == sheet.best else None)
    return rendered(table)


def rendered(table: Table) -> str:
    console = Console(width=WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def overview(studies: Sequence[tuple[StudyRow, Sequence[TrialRow], Sequence[Arm]]]) -> str:
    """A line per study."""
    table = Table()
    for column in ("study", "dataset", "model", "runs", "best arm", "since", "held by"):
        table.add_column(column)
    for study, trials, arms in studies:
        best = max(arms, key=lambda arm: arm.leading.mean, default=None)
        common = study.spec["settings"]
        table.add_row(
            study.name,
            str(common.get("dataset", "digits")),
            str(common.get("model", "small")),
            _states(run.state for trial in trials for run in trial.runs),
            f"{best.name} {best.leading.mean:.2f} %" if best else "–",
            f"{study.created_at:%Y-%m-%d %H:%M}",
            study.held_by or "",
        )
    return rendered(table).rstrip()


def details(study: StudyRow, trials: Sequence[TrialRow], comparisons: Sequence[Comparison]) -> str:
    """Every trial and run of a study, then the comparison."""
    table = Table(title=study.name)
    for column in ("arm", "configuration", "value", "run", "seed", "epochs", "state", "max"):
        table.add_column(column, overflow="fold")
    for column in ("mean", "time"):
        table.add_column(column)
    for trial in trials:
        arm = trial.arm if trial.confirms is None else f"{trial.arm} (fresh seeds)"
        head = [arm, settings(trial.params), _percent(trial.value)]
        for run in trial.runs:
            table.add_row(
                *(head if run is trial.runs[0] else [""] * len(head)),
                str(run.id),
                str(run.seed),
                f"{run.last_epoch}/{run.config['epochs']}",
                run.state,
                _percent(run.max_acc),
                _percent(run.mean_acc),
                duration(run.seconds) if run.seconds is not None else "",
            )
    errors = [
        f"run {run.id} ({trial.arm}, seed {run.seed}): {last_line(run.error)}"
        for trial in trials
        for run in trial.runs
        if run.error
    ]
    compared = text(comparisons, against_paper=False)
    return "\n".join([rendered(table).rstrip(), *errors, compared])


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2f}"


def _states(states: Iterable[str]) -> str:
    counts = Counter(states)
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
