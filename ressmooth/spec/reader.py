"""Turn a study file into a StudySpec, and report every error in it at once. Free of torch."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import tomli_w
from pydantic import ValidationError

from ressmooth.config import RunConfig, reason
from ressmooth.errors import ConfigError
from ressmooth.spec import schema, toml
from ressmooth.spec.errors import ErrorCollector
from ressmooth.spec.schema import Arm, Choices, Range, Search, Study, StudySpec
from ressmooth.spec.toml import Key, Tree, shorten

MAX_VALUES = 1_000  # of one grid or choice
MAX_RUNS = 100_000  # of a study
SETTINGS = [name for name in RunConfig.model_fields if name != "seed"]
VALUE_RULE = (
    "input should be one value, { grid = [...] }, { choices = [...] } or { low = ..., high = ... }"
)
FIXED_SEARCH = ("sampler", "pruner", "objective", "seed")  # cannot change between launches


def load(path_or_name: str, overrides: Sequence[str] = ()) -> StudySpec:
    """Read a study file or a bundled study, and apply "key.path=value" overrides to it."""
    path = toml.find(path_or_name)
    text = toml.read(path)
    own = toml.parse(text, path)
    tree, sources = toml.extend(own, path)
    for setting in overrides:
        changed = toml.override(tree, setting)
        sources = {key: s for key, s in sources.items() if key[: len(changed)] != changed}
        sources[changed] = "--set"
    spec = StudyReader(tree, ErrorCollector(str(path), tree, sources)).study()
    if "extends" in own or overrides:
        text = f"# {path.name} with what it extends and every --set\n{tomli_w.dumps(tree)}"
    return replace(spec, text=text)


def read_stored(stored: Tree) -> StudySpec:
    """Return the study that `StudySpec.to_dict` stored, checked as strictly as a file."""
    try:
        tree = {**stored, **stored["settings"], "arms": {}}
        del tree["settings"]
        for name, arm in stored["arms"].items():
            grids = {key: {"grid": values} for key, values in arm["grid"].items()}
            tree["arms"][name] = {**arm["fixed"], **grids, **arm["space"]}
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"stored study {shorten(stored)}: not one of ours") from None
    return StudyReader(tree, ErrorCollector(f"stored study {tree.get('name')}", tree)).study()


def differences(stored: Tree, spec: StudySpec) -> list[str]:
    """Return what makes `spec` a different study from the stored one, one line each.

    These may change: description, search.trials, search.hours, resources, new arms, and larger
    seeds and confirm.
    """
    old = read_stored(stored)
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


class StudyReader:
    """Turns the tables of a study file into a StudySpec."""

    def __init__(self, tree: Tree, errors: ErrorCollector) -> None:
        self.tree, self.errors = tree, errors

    def study(self) -> StudySpec:
        self.errors.check_shape()
        top = {key: value for key, value in self.tree.items() if key in Study.model_fields}
        study = self.errors.validate(Study, (), top)
        search = self.errors.validate(Search, ("search",), self.table("search"))
        table = self.table("resources")
        resources = self.errors.validate(schema.Resources, ("resources",), table)
        grid = self.grid()
        settings = self.settings(grid)
        arms = self.arms(grid)
        if search is not None:
            self.check_sampler(search, arms)
        self.errors.check()
        assert study is not None and search is not None and resources is not None
        spec = StudySpec(
            **dict(study),
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
        self.errors.add((name,), "input should be a table")
        return {}

    def grid(self) -> dict[str, list[Any]]:
        return {
            key: self.values(("grid", key), key, raw)
            for key, raw in self.table("grid").items()
            if self.is_setting(("grid", key))
        }

    def settings(self, grid: Iterable[str]) -> dict[str, Any]:
        settings = {}
        others = [*Study.model_fields, *toml.TABLES]
        for key, raw in self.tree.items():
            if key in others or not self.is_setting((key,), [*others, "extends"]):
                continue
            if key in grid:
                self.errors.add((key,), "is an axis of [grid] already: give it once")
            elif isinstance(raw, dict | list):
                rule = "input should be one value; several go into [grid] or an arm"
                self.errors.add((key,), rule)
            else:
                settings[key] = self.value((key,), key, raw)
        return settings

    def arms(self, grid: Iterable[str]) -> dict[str, Arm]:
        tables = self.table("arms")
        if not tables:
            self.errors.add(("arms",), "missing: write an [arms.NAME] table for each method")
        for name in tables:
            if not schema.NAME.fullmatch(name):
                self.errors.add(("arms", name), schema.NAME_RULE)
        return {name: self.arm(name, table, grid) for name, table in tables.items()}

    def is_setting(self, path: Key, other_keys: Iterable[str] = ()) -> bool:
        """Tell whether a key is a setting of a run. `other_keys` are also allowed in its table."""
        key = path[-1]
        if key == "seed":
            rule = "not in a study: seeds = N trains each trial with seeds 0 to N - 1"
            self.errors.add(path, rule)
        elif key not in SETTINGS:
            self.errors.add_unknown(path, [*SETTINGS, *other_keys])
        return key in SETTINGS

    def value(self, path: Key, key: str, raw: Any) -> Any:
        """Return the value as RunConfig stores it, or None, which no setting allows."""
        try:
            return getattr(RunConfig.model_validate({key: raw}), key)
        except ValidationError as error:
            self.errors.add(path, reason(error.errors()[0]))
            return None

    def values(self, path: Key, key: str, raw: Any) -> list[Any]:
        if not isinstance(raw, list) or not 1 <= len(raw) <= MAX_VALUES:
            self.errors.add(path, f"input should be a list of 1 to {MAX_VALUES:,} values")
            return []
        values: dict[Any, None] = {}
        for n, item in enumerate(raw):
            value = self.value((*path, n), key, item)
            if value in values:
                self.errors.add((*path, n), "given twice")
            values[value] = None
        return list(values)

    def arm(self, name: str, table: Any, axes: Iterable[str]) -> Arm:
        """Return an arm. It may not set `axes`, the keys of [grid]."""
        arm = Arm({}, {}, {})
        if not isinstance(table, dict):
            self.errors.add(("arms", name), "input should be a table")
            return arm
        for key, raw in table.items():
            path = ("arms", name, key)
            if key in axes:
                self.errors.add(path, "is an axis of [grid] already: give it once")
            elif not self.is_setting(path):
                continue
            elif isinstance(raw, dict):
                self.add_values(arm, path, key, raw)
            elif isinstance(raw, list):
                self.errors.add(path, VALUE_RULE)
            else:
                arm.fixed[key] = self.value(path, key, raw)
        return arm

    def add_values(self, arm: Arm, path: Key, key: str, table: Tree) -> None:
        """Add a grid, choices or a range to the arm."""
        if "grid" in table:
            self.errors.validate(schema.Grid, path, table)
            arm.grid[key] = self.values((*path, "grid"), key, table["grid"])
        elif "choices" in table:
            self.errors.validate(Choices, path, table)
            choices = self.values((*path, "choices"), key, table["choices"])
            arm.space[key] = Choices(choices=choices)
        elif "low" in table or "high" in table:
            if span := self.range(path, key, table):
                arm.space[key] = span
        else:
            self.errors.add(path, VALUE_RULE)
        if key in schema.PROBLEM and key in arm.space:
            self.errors.add(path, "cannot be searched: give one value or { grid = [...] }")

    def range(self, path: Key, key: str, table: Tree) -> Range | None:
        number = RunConfig.model_fields[key].annotation
        if number not in (int, float):
            self.errors.add(path, "is not a number: write { choices = [...] }")
            return None
        if number is int and isinstance(table.get("step"), float):
            self.errors.add((*path, "step"), "input should be a valid integer")
        ends = {k: self.value((*path, k), key, table[k]) for k in table if k in ("low", "high")}
        valid = {k: value for k, value in ends.items() if value is not None}
        return self.errors.validate(Range, path, {**table, **valid})

    def check_sampler(self, search: Search, arms: dict[str, Arm]) -> None:
        sampled = [(name, key) for name, arm in arms.items() for key in arm.space]
        if search.sampler == "grid":
            for name, key in sampled:
                rule = "needs search.sampler = random, tpe or cmaes; or write { grid = [...] }"
                self.errors.add(("arms", name, key), rule)
        elif sampled and search.trials is None and search.hours is None:
            rule = "needs search.trials (per branch) or search.hours"
            self.errors.add(("search", "sampler"), rule)

    def check_runs(self, spec: StudySpec) -> None:
        """Refuse too many runs before the grids are expanded."""
        runs = 0
        for arm in spec.arms.values():
            cells = prod(len(axis) for axis in [*spec.grid.values(), *arm.grid.values()])
            trials = spec.search.trials or 1 if arm.space else 1
            runs += cells * (trials * spec.seeds + spec.confirm)  # at most
        if runs > MAX_RUNS:
            many = f"{runs:,}" if runs < 10**12 else f"{runs:.1e}"
            self.errors.add((), f"{many} runs: at most {MAX_RUNS:,} in a study")
        self.errors.check()

    def check_branches(self, spec: StudySpec) -> None:
        """Check each branch as a whole, now that each setting is valid by itself."""
        for branch in spec.branches:
            try:
                branch.example()
            except ConfigError as error:
                lines = "; ".join(str(error).splitlines())
                self.errors.add(("arms", branch.arm), f"in {branch.key}: {lines}")
        self.errors.check()
