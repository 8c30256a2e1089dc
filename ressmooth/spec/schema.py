"""The tables of a study file as types, and the study that they describe. Free of torch."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, field_validator, model_validator

from ressmooth.config import RunConfig, Table, parse
from ressmooth.plugins import NO_PLUGINS, Plugins
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
    reference: str | None = Field(
        None, description="arm that the others are compared with; by default plain SGD"
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
    min_epochs: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="asha: epochs up to its first rung; by default a ninth",
    )
    reduction: int | None = Field(
        None, ge=2, le=100, description="asha: one in this many trials passes a rung; by default 3"
    )
    warmup: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="median: first epoch at which it stops; by default a quarter",
    )
    trials: int | None = Field(
        None, ge=1, le=100_000, description="trials of an arm, over all its cells and all launches"
    )
    hours: float | None = Field(
        None, gt=0, le=10_000, description="time budget in hours, over all launches"
    )
    objective: Literal["max", "mean"] = Field(
        "max", description="metric of the best epoch, or mean of the last tenth of the epochs"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the sampler")
    warm_start: str | None = Field(
        None, description="recorded study whose completed trials tpe or cmaes begins with"
    )

    def asha(self, epochs: int) -> tuple[int, int]:
        """Return the first rung of asha, in epochs, and the factor between rungs."""
        return self.min_epochs or max(1, epochs // 9), self.reduction or 3

    def median_warmup(self, epochs: int) -> int:
        """Return the epochs that the median pruner waits."""
        return epochs // 4 if self.warmup is None else self.warmup


class Resources(Table):
    """[resources]"""

    workers: int | None = Field(
        None, ge=1, le=1024, description="concurrent runs; by default as many as fit"
    )
    gpus_per_run: Annotated[float, Field(ge=0, le=1024)] | Literal["auto"] = Field(
        "auto", description="GPUs of a run; fractions share one; auto: 1 if there are any, else 0"
    )
    cpus_per_run: float = Field(1.0, gt=0, le=1024, description="CPUs of a run, also its threads")
    retries: int = Field(3, ge=0, le=100, description="worker deaths after which a run fails")

    @property
    def threads(self) -> int:
        """Return the CPU threads of a run that does not set its own."""
        return max(1, int(self.cpus_per_run))

    @field_validator("gpus_per_run", mode="before")
    @classmethod
    def _check_kind(cls, value: Any) -> Any:
        if value != "auto" and type(value) not in (int, float):
            raise ValueError("input should be 'auto' or a number")
        return value

    @field_validator("gpus_per_run", "cpus_per_run")
    @classmethod
    def _check_share(cls, value: Any) -> Any:
        if value != "auto" and value > 1 and not value.is_integer():
            raise ValueError("input should be a part of one device, or a whole number of them")
        return value


class Range(Table):
    """Numbers from low to high, both included, for a sampler to choose from."""

    low: int | float = Field(description="the lowest value")
    high: int | float = Field(description="the highest value")
    log: bool = Field(False, description="sample the logarithm")
    step: int | float | None = Field(None, description="distance between values")

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

    def contains(self, value: int | float) -> bool:
        if not self.low <= value <= self.high:
            return False
        steps = (value - self.low) / (self.step or 1)
        return self.step is None or abs(steps - round(steps)) < 1e-8  # as Optuna decides


class Choices(Table):
    """Values for a sampler to choose from."""

    choices: list[Any] = Field(description="values for a sampler to choose from")

    def contains(self, value: Any) -> bool:
        return value in self.choices


class Grid(Table):
    """Values that are all tried."""

    grid: list[Any] = Field(description="values that are all tried")


Point = dict[str, Any]  # values of searched settings


@dataclass(frozen=True)
class Arm:
    """One method under comparison. Keys are settings of a run, in the order of the file."""

    fixed: dict[str, Any]
    grid: dict[str, list[Any]]
    space: dict[str, Range | Choices]
    # tried first in each branch, in this order; settings that are missing are sampled
    enqueue: Annotated[list[Point], Field(exclude_if=lambda points: not points)] = field(
        default_factory=list
    )


@dataclass(frozen=True)
class Branch:
    """One cell of an arm's grids: the settings its trials share and the space to sample."""

    arm: str
    values: dict[str, Any]  # settings of a run, including the cell's
    cell: dict[str, Any]
    space: dict[str, Range | Choices]
    plugins: Plugins = NO_PLUGINS

    @property
    def key(self) -> str:
        """Return the branch's name in the Store, independent of the order of the file."""
        return " ".join([self.arm, *(f"{k}={json.dumps(self.cell[k])}" for k in sorted(self.cell))])

    def example(self) -> RunConfig:
        """Return one configuration: the low end of each range, the first of each choice."""
        sampled = {
            k: s.low if isinstance(s, Range) else s.choices[0] for k, s in self.space.items()
        }
        return parse({**self.values, **sampled}, self.plugins)


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
    reference: str | None = None  # the arm that the others are compared with; None: plain SGD
    most_seeds: int | None = None  # of a trial, if seeds race; `seeds` are then its first ones
    plugins: Plugins = NO_PLUGINS
    text: str = field(default="", compare=False)  # the study file as it runs, overrides included

    @property
    def metric(self) -> str:
        """Return what selects, the same for all arms."""
        return str(self.settings.get("metric", "accuracy"))

    @property
    def is_race(self) -> bool:
        """Tell whether configurations race: how many seeds they get depends on their results."""
        return self.most_seeds is not None

    @property
    def at_most(self) -> int:
        """Return the seeds that a trial has at most, without a confirmation's."""
        return self.seeds if self.most_seeds is None else self.most_seeds

    @property
    def devices(self) -> set[str]:
        """Return the devices that its arms ask for."""
        return {branch.values.get("device", "auto") for branch in self.branches}

    @property
    def precisions(self) -> set[str]:
        """Return the precisions that its arms ask for."""
        return {branch.values.get("precision", "fp32") for branch in self.branches}

    @cached_property
    def branches(self) -> list[Branch]:
        """Return arms x cells of [grid] x cells of the arm's own grids, in file order."""
        branches = []
        for name, arm in self.arms.items():
            axes = {**self.grid, **arm.grid}
            for values in product(*axes.values()):
                cell = dict(zip(axes, values, strict=True))
                shared = {**self.settings, **arm.fixed, **cell}
                branches.append(Branch(name, shared, cell, arm.space, self.plugins))
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

    def cells(self, arm: str) -> int:
        """Return the number of branches of an arm, without expanding them."""
        return prod(len(axis) for axis in [*self.grid.values(), *self.arms[arm].grid.values()])

    @cached_property
    def planned(self) -> dict[str, int]:
        """Return the number of trials by branch: an arm's are divided over its cells."""
        planned: dict[str, int] = {}
        numbers: Counter[str] = Counter()  # of branches so far, by arm
        for branch in self.branches:
            every, rest = divmod(self.search.trials or 0, self.cells(branch.arm))
            is_first = numbers[branch.arm] < rest
            planned[branch.key] = every + is_first if branch.space else 1
            numbers[branch.arm] += 1
        return planned

    @property
    def runs_planned(self) -> int:
        """Return how many runs the study has, without what a time budget limits or a race adds."""
        return sum(self.planned.values()) * self.seeds + len(self.confirming) * self.confirm

    def planned_trials(self, branch: Branch) -> int:
        """Return the number of trials of a branch, 0 if only the time budget limits it."""
        return self.planned[branch.key]

    def trial_seeds(self, is_confirmation: bool) -> range:
        """Return the seeds of a trial. Confirmations use seeds that selected nothing.

        A race adds more.
        """
        if is_confirmation:
            return range(FRESH_SEED, FRESH_SEED + self.confirm)
        return range(self.seeds)

    def to_dict(self) -> Tree:
        """Return the study as JSON types, for `read_stored`."""
        tree: Tree = SPEC.dump_python(self, exclude={"text", "plugins"}, exclude_none=True)
        if self.plugins.files:
            tree["plugins"] = [plugin.to_dict() for plugin in self.plugins.files]
        return tree


SPEC = TypeAdapter(StudySpec)
