"""Short text for settings, counts, durations and errors."""

from collections.abc import Mapping
from typing import Any


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
