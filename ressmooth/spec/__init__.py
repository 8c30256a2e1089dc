"""The study: what is compared, on what, and how it is searched. Free of torch.

Everything that can be wrong in a study file is found while loading: one line per mistake, and
nothing is created.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from ressmooth import config
from ressmooth.errors import ConfigError
from ressmooth.mistakes import Mistakes, Tree, shorten
from ressmooth.spec.space import Arm, Choices, Range, SettingReader
from ressmooth.spec.studyfile import bundled, find, override, parse, read
from ressmooth.spec.whole import FRESH_SEED, NAME, NAME_RULE, Head, Resources, Search

__all__ = [
    "Arm",
    "Branch",
    "Choices",
    "FRESH_SEED",
    "Range",
    "Resources",
    "Search",
    "StudySpec",
    "bundled",
    "differences",
    "find",
    "load",
]

MAX_RUNS = 100_000  # of a study
TABLES = ("search", "grid", "arms", "resources")
PROBLEM = ("dataset", "model", "fraction")  # accuracies on different ones are never compared
FIXED_SEARCH = ("sampler", "pruner", "objective", "seed")  # what relaunching may not change


@dataclass(frozen=True)
class Branch:
    """One cell of an arm's grids: what its trials share, and the space they are sampled from."""

    arm: str
    values: dict[str, Any]  # settings of a run, the cell's included
    cell: dict[str, Any]
    space: dict[str, Range | Choices]

    @property
    def key(self) -> str:
        """The branch's name in the store: the same whatever the order of the file."""
        return " ".join([self.arm, *(f"{k}={json.dumps(self.cell[k])}" for k in sorted(self.cell))])

    def example(self) -> config.RunConfig:
        """A configuration of the branch: the low end of each range, the first of each choice."""
        sampled = {
            k: s.low if isinstance(s, Range) else s.choices[0] for k, s in self.space.items()
        }
        return config.parse({**self.values, **sampled})


@dataclass(frozen=True)
class StudySpec:
    name: str
    description: str
    seeds: int  # each trial is trained with seeds 0 to seeds - 1
    confirm: int  # fresh seeds for the configurations that were chosen
    settings: dict[str, Any]  # of a run, for all arms that do not say otherwise
    search: Search
    grid: dict[str, list[Any]]  # axes common to all arms
    arms: dict[str, Arm]
    resources: Resources

    @cached_property
    def branches(self) -> list[Branch]:
        """Arms x cells of [grid] x cells of the arm's own grids, in the order of the file."""
        branches = []
        for name, arm in self.arms.items():
            axes = {**self.grid, **arm.grid}
            for values in product(*axes.values()):
                cell = dict(zip(axes, values, strict=True))
                shared = {**self.settings, **arm.fixed, **cell}
                branches.append(Branch(name, shared, cell, arm.space))
        return branches

    def condition(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """What a run's arm must share with another to be compared: the problem, the [grid] cell."""
        return {key: run[key] for key in (*PROBLEM, *self.grid)}

    @cached_property
    def confirming(self) -> list[config.RunConfig]:
        """An example of each configuration that is to be confirmed: per arm and condition one."""
        if not self.confirm:
            return []
        examples: dict[tuple[str, str], config.RunConfig] = {}
        for branch in self.branches:
            example = branch.example()
            condition = self.condition(example.model_dump())
            examples.setdefault((branch.arm, json.dumps(condition, sort_keys=True)), example)
        return list(examples.values())

    def planned_trials(self, branch: Branch) -> int:
        """How many trials a branch is to have; 0 where only the time budget ends it."""
        return (self.search.trials or 0) if branch.space else 1

    def to_dict(self) -> Tree:
        """Goes through JSON unchanged."""
        return {
            "name": self.name,
            "description": self.description,
            "seeds": self.seeds,
            "confirm": self.confirm,
            "settings": self.settings,
            "search": self.search.model_dump(exclude_none=True),
            "grid": self.grid,
            "arms": {
                name: {
                    "fixed": arm.fixed,
                    "grid": arm.grid,
                    "space": {k: s.model_dump(exclude_none=True) for k, s in arm.space.items()},
                }
                for name, arm in self.arms.items()
            },
            "resources": self.resources.model_dump(exclude_none=True),
        }

    @staticmethod
    def from_dict(stored: Tree) -> "StudySpec":
        """What to_dict gave, checked as strictly as a file."""
        try:
            tree = {**stored, **stored["settings"], "arms": {}}
            del tree["settings"]
            for name, arm in stored["arms"].items():
                grids = {key: {"grid": values} for key, values in arm["grid"].items()}
                tree["arms"][name] = {**arm["fixed"], **grids, **arm["space"]}
        except (KeyError, TypeError, AttributeError):
            raise ConfigError(f"stored study {shorten(stored)}: not one of ours") from None
        return _Reader(tree, Mistakes(f"stored study {tree.get('name')}", tree)).study()


def load(path_or_name: str, overrides: Sequence[str] = ()) -> StudySpec:
    """The study of a file or of a bundled name, with "key.path=value" settings put over it."""
    path = find(path_or_name)
    tree = parse(read(path), path)
    overridden = [override(tree, setting) for setting in overrides]
    return _Reader(tree, Mistakes(str(path), tree, overridden)).study()


def differences(stored: Tree, spec: StudySpec) -> list[str]:
    """What makes `spec` another study than the stored one, one line each.

    Free to change: description, more seeds, more to confirm, search.trials, search.hours,
    resources, new arms.
    """
    old = StudySpec.from_dict(stored)
    was, now = _identity(old, old.arms), _identity(spec, old.arms)
    lines = [
        f"{key} was {_shown(was.get(key))}, is {_shown(now.get(key))}"
        for key in {**was, **now}
        if was.get(key) != now.get(key)
    ]
    for key in ("seeds", "confirm"):
        before, after = getattr(old, key), getattr(spec, key)
        if after < before:
            lines.append(f"{key} was {before}, is {after}: it can only be raised")
    return lines


def _identity(spec: StudySpec, arms: Iterable[str]) -> dict[str, Any]:
    flat = {"name": spec.name, **spec.settings}
    flat |= {f"search.{k}": getattr(spec.search, k) for k in FIXED_SEARCH}
    flat |= {f"grid.{k}": values for k, values in spec.grid.items()}
    for name in arms:
        if name in spec.arms:
            arm = spec.arms[name]
            flat[f"arms.{name}"] = "there"
            flat |= {f"arms.{name}.{k}": value for k, value in arm.fixed.items()}
            flat |= {f"arms.{name}.{k}": {"grid": values} for k, values in arm.grid.items()}
            flat |= {f"arms.{name}.{k}": s.model_dump() for k, s in arm.space.items()}
    return flat


def _shown(value: Any) -> str:
    return "not set" if value is None else shorten(value)


class _Reader:
    """Turns the tables of a study file into a StudySpec, noting every mistake."""

    def __init__(self, tree: Tree, mistakes: Mistakes) -> None:
        self.tree, self.mistakes = tree, mistakes
        self.reader = SettingReader(mistakes)

    def study(self) -> StudySpec:
        self.mistakes.check_shape()
        head = self.mistakes.validate(
            Head, (), {k: v for k, v in self.tree.items() if k in Head.model_fields}
        )
        search = self.mistakes.validate(Search, ("search",), self.table("search"))
        resources = self.mistakes.validate(Resources, ("resources",), self.table("resources"))
        grid = self.grid()
        settings = self.settings(grid)
        arms = self.arms(grid)
        if search is not None:
            self.check_sampler(search, arms)
        self.mistakes.check()
        assert head is not None and search is not None and resources is not None
        spec = StudySpec(
            **dict(head),
            settings=settings,
            search=search,
            grid=grid,
            arms=arms,
            resources=resources,
        )
        self.check_runs(spec)
        self.check_branches(spec)
        return spec

    def table(self, name: str) -> Tree:
        table = self.tree.get(name, {})
        if isinstance(table, dict):
            return table
        self.mistakes.add((name,), "input should be a table")
        return {}

    def grid(self) -> dict[str, list[Any]]:
        return {
            key: self.reader.values(("grid", key), key, given)
            for key, given in self.table("grid").items()
            if self.reader.is_setting(("grid", key))
        }

    def settings(self, grid: Iterable[str]) -> dict[str, Any]:
        settings = {}
        others = [*Head.model_fields, *TABLES]
        for key, given in self.tree.items():
            if key in others or not self.reader.is_setting((key,), others):
                continue
            if key in grid:
                self.mistakes.add((key,), "is an axis of [grid] already: give it once")
            elif isinstance(given, dict | list):
                rule = "input should be one value; several go into [grid] or an arm"
                self.mistakes.add((key,), rule)
            else:
                settings[key] = self.reader.value((key,), key, given)
        return settings

    def arms(self, grid: Iterable[str]) -> dict[str, Arm]:
        tables = self.table("arms")
        if not tables:
            self.mistakes.add(("arms",), "missing: write an [arms.NAME] table for each method")
        for name in tables:
            if not NAME.fullmatch(name):
                self.mistakes.add(("arms", name), NAME_RULE)
        arms = {name: self.reader.arm(name, table, grid) for name, table in tables.items()}
        for name, arm in arms.items():
            for key in (key for key in PROBLEM if key in arm.space):
                rule = "is the problem, not to be searched: give one value or { grid = [...] }"
                self.mistakes.add(("arms", name, key), rule)
        return arms

    def check_sampler(self, search: Search, arms: dict[str, Arm]) -> None:
        sampled = [(name, key) for name, arm in arms.items() for key in arm.space]
        if search.sampler == "grid":
            for name, key in sampled:
                rule = "needs search.sampler = random, tpe or cmaes; or write { grid = [...] }"
                self.mistakes.add(("arms", name, key), rule)
        elif sampled and search.trials is None and search.hours is None:
            rule = "needs search.trials (per branch) or search.hours"
            self.mistakes.add(("search", "sampler"), rule)

    def check_runs(self, spec: StudySpec) -> None:
        """Before the grids are expanded: are there too many cells?"""
        runs = 0
        for arm in spec.arms.values():
            cells = prod(len(axis) for axis in [*spec.grid.values(), *arm.grid.values()])
            trials = spec.search.trials or 1 if arm.space else 1
            runs += cells * (trials * spec.seeds + spec.confirm)  # at most
        if runs > MAX_RUNS:
            many = f"{runs:,}" if runs < 10**12 else f"{runs:.1e}"
            self.mistakes.add((), f"{many} runs: at most {MAX_RUNS:,} in a study")
        self.mistakes.check()

    def check_branches(self, spec: StudySpec) -> None:
        """Each setting is valid by itself; is each branch as a whole?"""
        for branch in spec.branches:
            try:
                branch.example()
            except ConfigError as error:
                lines = "; ".join(str(error).splitlines())
                self.mistakes.add(("arms", branch.arm), f"in {branch.key}: {lines}")
        self.mistakes.check()
