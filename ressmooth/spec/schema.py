"""The tables of a study file as types, and the study that they describe. Free of torch."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any, Literal, Self

from pydantic import Field, TypeAdapter, field_validator, model_validator

from ressmooth.config import RunConfig, Table, parse
from ressmooth.spec.toml import Tree

NAME = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9._-]{0,63}")
NAME_RULE = "a name has 1 to 64 of a-z 0-9 . _ - and no '..', and begins with a letter or digit"
FRESH_SEED = 10_000  # seeds from here on are never used for selection
PROBLEM = ("dataset", "model", "fraction")  # accuracies on different problems are not compared


class Study(Table):
    """The keys at the top of a study file, beside the settings of a run."""

    name: str = Field(description="name of the study in the Store and in MLflow")
    description: str = Field(
        "", max_length=10_000, pattern=r"^[^\x00]*$", description="the question, for the report"
    )  # SQL stores no NUL
    seeds: int = Field(
        1, ge=1, le=FRESH_SEED, description="each trial is trained with seeds 0 to seeds - 1"
    )
    confirm: int = Field(
        0, ge=0, le=1_000, description="fresh seeds that retrain each arm's selected configuration"
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(NAME_RULE)
        return name


class Search(Table):
    """[search]"""

    sampler: Literal["grid", "random", "tpe", "cmaes"] = Field(
        "grid", description="chooses the values of ranges and choices"
    )
    pruner: Literal["none", "median", "asha"] = Field(
        "none", description="stops trials that fall behind, judged by their first seed"
    )
    trials: int | None = Field(
        None, ge=1, le=100_000, description="trials per branch, over all launches"
    )
    hours: float | None = Field(
        None, gt=0, le=10_000, description="time budget in hours, over all launches"
    )
    objective: Literal["max", "mean"] = Field(
        "max", description="accuracy of the best epoch, or mean of the last tenth of the epochs"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the sampler")


class Resources(Table):
    """[resources]"""

    workers: int | None = Field(
        None, ge=1, le=1024, description="concurrent runs; by default as many as fit"
    )
    gpus_per_run: float = Field(
        0.0, ge=0, le=1024, description="GPUs of a run; fractions share one"
    )
    cpus_per_run: float = Field(1.0, gt=0, le=1024, description="CPUs of a run, also its threads")
    retries: int = Field(3, ge=0, le=100, description="worker deaths after which a run fails")

    @property
    def threads(self) -> int:
        """Return the CPU threads of a run that does not set its own."""
        return max(1, int(self.cpus_per_run))

    @field_validator("gpus_per_run", "cpus_per_run")
    @classmethod
    def _check_share(cls, value: float) -> float:
        if value > 1 and not value.is_integer():
            raise ValueError("input should be a part of one device, or a whole number of them")
        return value


class Range(Table):
    """Numbers from low to high, both included, for a sampler to choose from."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @field_validator("low", "high", "step", mode="before")
    @classmethod
    def _check_finite(cls, value: Any) -> Any:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError("input should be a finite number")
        return value

    @model_validator(mode="after")
    def _check_range(self) -> Self:
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
            # Optuna would lower high silently. Exact fractions, since 0.9 / 0.3 is not 3.
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


@dataclass(frozen=True)
class Branch:
    """One cell of an arm's grids: the settings its trials share and the space to sample."""

    arm: str
    values: dict[str, Any]  # settings of a run, including the cell's
    cell: dict[str, Any]
    space: dict[str, Range | Choices]

    @property
    def key(self) -> str:
        """Return the branch's name in the Store, independent of the order of the file."""
        return " ".join([self.arm, *(f"{k}={json.dumps(self.cell[k])}" for k in sorted(self.cell))])

    def example(self) -> RunConfig:
        """Return one configuration: the low end of each range, the first of each choice."""
        sampled = {
            k: s.low if isinstance(s, Range) else s.choices[0] for k, s in self.space.items()
        }
        return parse({**self.values, **sampled})


@dataclass(frozen=True)
class StudySpec:
    """A study: what is compared, on which problem, and how it is searched."""

    name: str
    description: str
    seeds: int
    confirm: int
    settings: dict[str, Any]  # of a run, for all arms that do not set their own
    search: Search
    grid: dict[str, list[Any]]  # axes common to all arms
    arms: dict[str, Arm]
    resources: Resources
    text: str = field(default="", compare=False)  # the study file as it runs, overrides included

    @cached_property
    def branches(self) -> list[Branch]:
        """Return arms x cells of [grid] x cells of the arm's own grids, in file order."""
        branches = []
        for name, arm in self.arms.items():
            axes = {**self.grid, **arm.grid}
            for values in product(*axes.values()):
                cell = dict(zip(axes, values, strict=True))
                shared = {**self.settings, **arm.fixed, **cell}
                branches.append(Branch(name, shared, cell, arm.space))
        return branches

    def condition(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return what arms must share with this run to be compared: problem and [grid] cell."""
        return {key: run[key] for key in (*PROBLEM, *self.grid)}

    @cached_property
    def confirming(self) -> list[RunConfig]:
        """Return one example per configuration to confirm: one per arm and condition."""
        if not self.confirm:
            return []
        examples: dict[tuple[str, str], RunConfig] = {}
        for branch in self.branches:
            example = branch.example()
            condition = self.condition(example.model_dump())
            examples.setdefault((branch.arm, json.dumps(condition, sort_keys=True)), example)
        return list(examples.values())

    def planned_trials(self, branch: Branch) -> int:
        """Return the number of trials of a branch, 0 if only the time budget limits it."""
        return (self.search.trials or 0) if branch.space else 1

    def to_dict(self) -> Tree:
        """Return the study as JSON types, for `read_stored`."""
        tree: Tree = SPEC.dump_python(self, exclude={"text"}, exclude_none=True)
        return tree


SPEC = TypeAdapter(StudySpec)
