"""Short text for settings, counts, durations and errors; terminals and CSV."""

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

GLUE = "\N{NO-BREAK SPACE}"
WIDTH = 100  # characters of a line where there is no terminal
# The signs of our texts, for a standard output that is not Unicode
ASCII: dict[str, str | int | None] = {
    "±": "+/-",
    "−": "-",
    "–": "-",
    "…": "...",
    "─": "-",
    "≤": "<=",
    "≥": ">=",
}


def settings(params: Mapping[str, Any]) -> str:
    """Return settings in one line: b=0.3 weight_decay=0.001"""
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in params.items()
    )


def run_name(arm: str, params: Mapping[str, Any], seed: int) -> str:
    """Return a run's name: laplace b=0.3 seed 1"""
    return " ".join(filter(None, (arm, settings(params), f"seed {seed}")))


def printable(text: str) -> str:
    """Escape characters that would move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain_markdown(text: str) -> str:
    """Return a text in which Markdown finds no HTML and no links, and terminals no escapes."""
    lines = [printable(line) for line in text.split("\n")]
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", "\n".join(lines))
    return text.replace("](", "]&#40;").replace("]:", "]&#58;")


def last_line(error: str | None) -> str:
    """Return the last line of a traceback, which names the error."""
    return printable((error or "").strip().rpartition("\n")[2])[:300]


def count(number: float, what: str) -> str:
    return f"{number:g} {what}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def terminal_width() -> int:
    """Return the characters of a line of the terminal, or of COLUMNS."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def glue(text: str) -> str:
    """Replace spaces inside "p = 0.2", "1 ± 2 %", "9 : 1" and "− SGD" by ones that never break."""
    return re.sub(r" (?=[±=<%]|: )|(?<=[±=<−]) |(?<= :) ", GLUE, text)


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text at spaces into encodable lines, of which all but the first are indented more."""
    lines = textwrap.wrap(
        encodable(glue(text)),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(GLUE, " ") for line in lines]


def encodable(text: str) -> str:
    """Return a text with our signs in ASCII, if standard output cannot encode them."""
    try:
        "".join(ASCII).encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return text.translate(str.maketrans(ASCII))
    return text


def bold(text: str) -> str:
    """Return a text in bold, if standard output is a terminal that has styles."""
    is_plain = os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR")
    return text if is_plain or not sys.stdout.isatty() else f"\x1b[1m{text}\x1b[0m"


def columns(rows: Iterable[Mapping[str, Any]], fixed: Iterable[str] = ()) -> list[str]:
    """Return the columns of rows in the order in which they appear, then missing fixed ones."""
    return list(dict.fromkeys([*(key for row in rows for key in row), *fixed]))


def csv_text(rows: Sequence[Mapping[str, Any]], fixed: Iterable[str] = ()) -> str:
    return "".join(csv_lines(rows, columns(rows, fixed)))


def csv_lines(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a CSV file with these columns."""
    import csv  # loaded when needed, for a fast --help

    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        yield out.getvalue()
        out.seek(0)
        out.truncate()
        writer.writerow({key: _csv_cell(value) for key, value in row.items()})
    yield out.getvalue()


def _csv_cell(value: Any) -> Any:
    """Return a cell. Text that a spreadsheet would run as a formula gets an apostrophe."""
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return value.isoformat() if isinstance(value, datetime) else value
