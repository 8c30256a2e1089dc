"""The settings of an arm: each one value, or a grid, choices or a range of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from ressmooth.config import RunConfig
from ressmooth.mistakes import Key, Mistakes, Tree, reason

MAX_VALUES = 1_000  # of one grid or choice
SETTINGS = [name for name in RunConfig.model_fields if name != "seed"]
SEVERAL = (
    "input should be one value, { grid = [...] }, { choices = [...] } or { low = ..., high = ... }"
)


class Table(BaseModel):
    """A table of a study file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("input should be a finite number")
    return value


Number = Annotated[int | float, BeforeValidator(_finite)]


class Range(Table):
    """Numbers from low to high, both included, for a sampler to choose from."""

    low: Number
    high: Number
    log: bool = False
    step: Number | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        wrong = []
        if self.low >= self.high:
            wrong.append("low should be less than high")
        if self.log and self.low <= 0:
            wrong.append("log needs low greater than 0")
        if self.log and self.step is not None:
            wrong.append("log and step exclude each other")
        if self.step is not None and self.step <= 0:
            wrong.append("step should be greater than 0")
        elif self.step is not None and self.low < self.high:
            # Optuna would lower high without being asked; decimals, since 0.9 / 0.3 is not 3.
            low, high, step = (Fraction(str(x)) for x in (self.low, self.high, self.step))
            if (high - low) % step:
                wrong.append("high should be a whole number of steps above low")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class Choices(Table):
    """Values for a sampler to choose from."""

    choices: list[Any]


class Grid(Table):
    """Values that are all tried."""

    grid: list[Any]


@dataclass(frozen=True)
class Arm:
    """One method under comparison. Keys are settings of a run, in the order of the file."""

    fixed: dict[str, Any]
    grid: dict[str, list[Any]]
    space: dict[str, Range | Choices]


class SettingReader:
    """Reads settings of a run from the tables of a study file, noting every mistake."""

    def __init__(self, mistakes: Mistakes) -> None:
        self.mistakes = mistakes

    def is_setting(self, path: Key, beside: Iterable[str] = ()) -> bool:
        """Whether the key is a setting of a run; `beside` are the other keys its table may have."""
        key = path[-1]
        if key == "seed":
            rule = "not in a study: seeds = N trains each trial with seeds 0 to N - 1"
            self.mistakes.add(path, rule)
        elif key not in SETTINGS:
            self.mistakes.add_unknown(path, [*SETTINGS, *beside])
        return key in SETTINGS

    def value(self, path: Key, key: str, given: Any) -> Any:
        """The value as a run's config has it; None, which no setting takes, if it is refused."""
        try:
            return getattr(RunConfig.model_validate({key: given}), key)
        except ValidationError as error:
            self.mistakes.add(path, reason(error.errors()[0]))
            return None

    def values(self, path: Key, key: str, given: Any) -> list[Any]:
        if not isinstance(given, list) or not 1 <= len(given) <= MAX_VALUES:
            self.mistakes.add(path, f"input should be a list of 1 to {MAX_VALUES:,} values")
            return []
        values: dict[Any, None] = {}
        for n, item in enumerate(given):
            value = self.value((*path, n), key, item)
            if value in values:
                self.mistakes.add((*path, n), "given twice")
            values[value] = None
        return list(values)

    def arm(self, name: str, table: Any, axes: Iterable[str]) -> Arm:
        """An arm; `axes` are the keys of [grid], which it may not set again."""
        arm = Arm({}, {}, {})
        if not isinstance(table, dict):
            self.mistakes.add(("arms", name), "input should be a table")
            return arm
        for key, given in table.items():
            path = ("arms", name, key)
            if key in axes:
                self.mistakes.add(path, "is an axis of [grid] already: give it once")
            elif not self.is_setting(path):
                continue
            elif isinstance(given, dict):
                self.several(arm, path, key, given)
            elif isinstance(given, list):
                self.mistakes.add(path, SEVERAL)
            else:
                arm.fixed[key] = self.value(path, key, given)
        return arm

    def several(self, arm: Arm, path: Key, key: str, table: Tree) -> None:
        if "grid" in table:
            self.mistakes.validate(Grid, path, table)
            arm.grid[key] = self.values((*path, "grid"), key, table["grid"])
        elif "choices" in table:
            self.mistakes.validate(Choices, path, table)
            choices = self.values((*path, "choices"), key, table["choices"])
            arm.space[key] = Choices(choices=choices)
        elif "low" in table or "high" in table:
            span = self.range(path, key, table)
            if span is not None:
                arm.space[key] = span
        else:
            self.mistakes.add(path, SEVERAL)

    def range(self, path: Key, key: str, table: Tree) -> Range | None:
        number = RunConfig.model_fields[key].annotation
        if number not in (int, float):
            self.mistakes.add(path, "is not a number: write { choices = [...] }")
            return None
        if number is int and isinstance(table.get("step"), float):
            self.mistakes.add((*path, "step"), "input should be a valid integer")
        ends = {k: table[k] for k in table if k in ("low", "high")}
        values = {k: self.value((*path, k), key, given) for k, given in ends.items()}
        valid = {k: value for k, value in values.items() if value is not None}
        return self.mistakes.validate(Range, path, {**table, **valid})
