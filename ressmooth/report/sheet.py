"""A table of texts, and its forms for terminals, Markdown and LaTeX."""

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from ressmooth.formatting import bold, encodable, plain_markdown, terminal_width, wrap
from ressmooth.report.measure import MISSING

GAP = 2  # spaces between columns
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


class Group(NamedTuple):
    """Consecutive rows with the same label and details, which are shown once."""

    label: str
    details: list[str]
    rows: list[list[str]]  # without labels and details
    is_best: bool


@dataclass(frozen=True)
class Sheet:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # the first cell is the row's label
    best: int | None = None  # row to highlight
    details: Collection[int] = ()  # columns of long texts: lines of their own where width is scarce

    @property
    def figures(self) -> list[int]:
        """The columns that stand beside each other."""
        return [number for number in range(1, len(self.head)) if number not in self.details]

    @property
    def groups(self) -> Iterator[Group]:
        def shared(numbered: tuple[int, Sequence[str]]) -> tuple[str, list[str]]:
            row = numbered[1]
            details = [row[number] for number in sorted(self.details)]
            return row[0], [text for text in details if text != MISSING]

        for (label, details), found in groupby(enumerate(self.rows), shared):
            numbers, rows = zip(*found, strict=True)
            figures = [[row[number] for number in self.figures] for row in rows]
            yield Group(label, details, figures, self.best in numbers)


def as_text(sheet: Sheet) -> str:
    """Lay out a sheet for a terminal, with details below their rows."""
    groups = [
        group._replace(rows=[[encodable(cell) for cell in row] for row in group.rows])
        for group in sheet.groups
    ]
    label, *names = (encodable(sheet.head[number]) for number in (0, *sheet.figures))
    layout = _Layout(label, names, groups)
    return "\n".join([*wrap(sheet.title, layout.width), *layout.lines()])


class _Layout:
    """The widths of a sheet's columns, and its lines."""

    def __init__(self, label: str, names: Sequence[str], groups: Sequence[Group]) -> None:
        self.label, self.names, self.groups = label, names, groups
        self.width = terminal_width()
        rows = [row for group in groups for row in group.rows]
        self.sizes = [  # a column is as wide as its cells and the longest word of its name
            max(len(text) for text in (*name.split(), *(row[number] for row in rows)))
            for number, name in enumerate(names)
        ]
        self.room = max(len(text) for text in (label, *(group.label for group in groups)))
        if self.room + sum(size + GAP for size in self.sizes) > self.width:
            self.room = 0  # labels get lines of their own

    def lines(self) -> Iterator[str]:
        yield from self._head()
        for group in self.groups:
            yield from map(bold if group.is_best else str, self._group(group))

    def _head(self) -> list[str]:
        """Return the names, broken at spaces where columns are narrow, and a rule below them."""
        names = [textwrap.wrap(*column) for column in zip(self.names, self.sizes, strict=True)]
        height = max(map(len, names))
        padded = [[""] * (height - len(parts)) + parts for parts in names]
        above, last = [*zip(*padded, strict=True)][:-1], [parts[-1] for parts in padded]
        lines = [*(self._line("", parts) for parts in above), self._line(self.label, last)]
        return [*lines, encodable("─") * len(lines[-1])]

    def _group(self, group: Group) -> Iterator[str]:
        if not self.room:
            yield group.label
        for number, row in enumerate(group.rows):
            yield self._line("" if number else group.label, row)
        for text in group.details:
            yield from wrap(text, self.width, indent="  ")

    def _line(self, label: str, cells: Sequence[str]) -> str:
        figures = (cell.rjust(size + GAP) for cell, size in zip(cells, self.sizes, strict=True))
        return label[: self.room].ljust(self.room) + "".join(figures)


def as_markdown(sheet: Sheet) -> str:
    rows = [sheet.head, ["---"] * len(sheet.head), *sheet.rows]
    lines = [f"| {' | '.join(map(_markdown_cell, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def _markdown_cell(text: str) -> str:
    return plain_markdown(" ".join(text.split("\n"))).replace("|", "&#124;")


def as_latex(sheet: Sheet) -> str:
    """Return a table for the booktabs package."""

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
