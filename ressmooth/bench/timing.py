"""Time two things together and report their ratio.

A and B alternate (A B B A) after a warm-up. The result is the median of the paired ratios with its
range: load on the machine slows both sides, so a paired ratio varies less than a time.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import torch

from ressmooth.config import parse
from ressmooth.training.device import describe, find_device

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    goal: str
    what: str
    ratio: float
    low: float
    high: float
    must: float
    at_most: bool  # `must` is an upper limit, not a lower one

    @property
    def holds(self) -> bool:
        return self.ratio <= self.must if self.at_most else self.ratio >= self.must


class Bench:
    """Times pairs of functions, and collects a row for each."""

    def __init__(self, quick: bool, device: str) -> None:
        self.rounds = 3 if quick else 9
        self.quick = quick
        self.device = find_device(device)
        self.rows: list[Row] = []

    def seconds(self, work: Work, calls: int = 1) -> float:
        """Return the mean seconds of a call."""
        self._wait()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        self._wait()
        return (time.perf_counter() - started) / calls

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def compare(
        self,
        goal: str,
        what: str,
        a: Work,
        b: Work,
        *,
        must: float,
        at_most: bool = True,
        parts: int = 1,
    ) -> None:
        """Add the ratio of the time of `a` to `parts` times that of `b`."""
        calls_a, calls_b = self._calls(a), self._calls(b)
        ratios = []
        for _ in range(self.rounds):
            first, second = self.seconds(a, calls_a), self.seconds(b, calls_b)
            second += self.seconds(b, calls_b)
            first += self.seconds(a, calls_a)
            ratios.append(first / (second * parts))
        self.add(goal, what, ratios, must=must, at_most=at_most)

    def add(self, goal: str, what: str, ratios: list[float], *, must: float, at_most: bool) -> None:
        low, high = min(ratios), max(ratios)
        self.rows.append(Row(goal, what, median(ratios), low, high, must, at_most))

    def _calls(self, work: Work) -> int:
        """Warm up. Return how many calls make a measurement long enough."""
        work()
        return max(1, round((0.02 if self.quick else 0.1) / max(self.seconds(work), 1e-6)))


def machine(device: str) -> dict[str, str]:
    """Return what the rows depend on, by name."""
    found = {"torch": str(torch.__version__), "threads": str(torch.get_num_threads())}
    if find_device(device).type == "cuda":
        found |= {"GPU": torch.cuda.get_device_name(), **describe(parse({}))}
    return found


def as_table(rows: list[Row], device: str = "cpu") -> str:
    from ressmooth.report.sheet import Sheet, as_text

    title = ", ".join(f"{name} {value}" for name, value in machine(device).items())
    cells = [
        [
            row.goal,
            row.what,
            f"{row.ratio:.3g}",
            f"{row.low:.3g} … {row.high:.3g}",
            f"{'≤' if row.at_most else '≥'} {row.must:g}",
            "yes" if row.holds else "no",
        ]
        for row in rows
    ]
    head = ("goal", "what", "ratio", "range", "must", "holds")
    return as_text(Sheet(title, head, cells, details=(1,)))


def as_json(rows: list[Row], device: str = "cpu") -> str:
    table = [{**asdict(row), "holds": row.holds} for row in rows]
    return json.dumps({**machine(device), "rows": table}, indent=2)
