"""Turn a study file into a StudySpec, and report every error in it at once. Free of torch."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from ressmooth.config import RunConfig, reason
from ressmooth.errors import ConfigError, did_you_mean
from ressmooth.plugins import NO_PLUGINS, TYPES, Plugins, find, restore
from ressmooth.spec import checks, files, schema, sharing, toml
from ressmooth.spec.errors import ErrorCollector
from ressmooth.spec.race import Race
from ressmooth.spec.schema import Arm, Choices, Point, Range, Search, Study, StudySpec
from ressmooth.spec.toml import Key, Tree, shorten

MAX_VALUES = 1_000  # of one grid or choice
SETTINGS = [name for name in RunConfig.model_fields if name not in ("seed", "plugin_settings")]
VALUE_RULE = (
    "input should be one value, { grid = [...] }, { choices = [...] } or { low = ..., high = ... }"
)
TOP_RULE = (
    "input should be one value, { choices = [...] } or { low = ..., high = ... }; "
    "a grid of all arms is a list in [grid]"
)
VALUE_KEYS = ("grid", "choices", "low", "high")
UNSEARCHED = (*schema.PROBLEM, "metric")
SYNONYMS = {  # keys of other tools for several values
    **dict.fromkeys(("min", "max"), "{ low = ..., high = ... }"),
    "values": "{ choices = [...] } or { grid = [...] }",
}


def load(
    path_or_name: str, overrides: Sequence[str] = (), plugins: Plugins = NO_PLUGINS
) -> StudySpec:
    """Read a study file or a bundled study, and apply "key.path=value" overrides to it."""
    path = files.find(path_or_name)
    return _read(files.read(path), path, overrides, plugins)


def load_recorded(
    name: str, text: str, overrides: Sequence[str] = (), plugins: Plugins = NO_PLUGINS
) -> StudySpec:
    """Read the text that a study was recorded with, as `load` reads its file."""
    return _read(text, Path(f"{name}.toml"), overrides, plugins)


def find_plugins(paths: Sequence[Path]) -> Plugins:
    """Return the plug-ins of these files, of the environment and of installed packages."""
    return find(paths, RunConfig.model_fields)


def _read(text: str, path: Path, overrides: Sequence[str], plugins: Plugins) -> StudySpec:
    own, places = toml.parse(text, path, files.KEYS)
    tree, sources = files.extend(own, places, path)
    for setting in overrides:
        changed = files.override(tree, setting)
        sources = {key: s for key, s in sources.items() if key[: len(changed)] != changed}
        sources[changed] = "--set"
    is_changed = files.resolve_paths(tree, path.parent) or "extends" in own or overrides
    spec = StudyReader(tree, ErrorCollector(tree, sources), plugins, is_new=True).study()
    if is_changed:
        text = f"# {path.name} with what it extends and every --set\n{tomli_w.dumps(tree)}"
    return replace(spec, text=text)


def read_stored(stored: Tree) -> StudySpec:
    """Return the study that `StudySpec.to_dict` stored, checked as strictly as a file."""
    try:
        tree = {**stored, **stored["settings"], "arms": {}}
        plugins = restore(tree.pop("plugins", ()))
        tree.pop("warm_start", None)
        if most := tree.pop("most_seeds", None):
            tree["seeds"] = {"race": True, "at_least": tree["seeds"], "at_most": most}
        del tree["settings"]
        for name, arm in stored["arms"].items():
            grids = {key: {"grid": values} for key, values in arm["grid"].items()}
            points = {"enqueue": arm["enqueue"]} if "enqueue" in arm else {}
            tree["arms"][name] = {**arm["fixed"], **grids, **arm["space"], **points}
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(f"stored study {shorten(stored)}: not one of ours") from None
    sources: toml.Sources = {(): toml.escape(f"stored study {tree.get('name')}")}
    return StudyReader(tree, ErrorCollector(tree, sources), plugins, is_new=False).study()


class StudyReader:
    """Turns the tables of a study file into a StudySpec.

    Rules that came later hold for new studies only: a recorded one stays readable.
    """

    def __init__(
        self, tree: Tree, errors: ErrorCollector, plugins: Plugins, *, is_new: bool
    ) -> None:
        self.tree, self.errors, self.plugins, self.is_new = tree, errors, plugins, is_new
        self.names = plugins.without_settings()  # to check one setting by itself
        self.known = [*SETTINGS, *plugins.parameters]
        self.is_sampled = False  # whether there are ranges or choices, also wrong ones

    def study(self) -> StudySpec:
        self.errors.check_shape()
        top = {key: value for key, value in self.tree.items() if key in Study.model_fields}
        race = self.race(top)
        study = self.errors.validate(Study, (), top)
        search = self.errors.validate(Search, ("search",), self.table("search"))
        table = self.table("resources")
        resources = self.errors.validate(schema.Resources, ("resources",), table)
        grid = self.grid()
        shared = self.shared(grid)
        settings = shared.fixed
        arms = self.arms(grid)
        arms = sharing.share_space(shared, grid, arms, self.plugins, self.errors)
        own = {name: self.points(("arms", name), self.table("arms")[name]) for name in arms}
        arms = sharing.share_points(self.points((), self.tree), own, arms, self.errors)
        if study is not None:
            checks.check_reference(study.reference, arms, self.errors)
        if self.is_new:  # first: a setting without an effect needs no sampler
            checks.check_effects(settings, grid, arms, self.plugins, self.errors)
        if search is not None:
            checks.check_sampler(search, arms, self.errors)
            if self.is_new:
                checks.check_pruner(search, self.is_sampled, self.errors)
        self.errors.check()
        assert study is not None and search is not None and resources is not None
        spec = StudySpec(
            **dict(study),
            most_seeds=race.at_most if race else None,
            settings=settings,
            search=search,
            grid=grid,
            arms=arms,
            resources=resources,
            plugins=self.plugins,
        )
        checks.check_runs(spec, self.errors)
        if self.is_new:
            checks.check_trials(spec, self.errors)
            checks.check_points(spec, self.errors)
        checks.check_branches(spec, self.errors)
        self.errors.check()
        if self.is_new:
            checks.check_files(spec, self.errors)
            spec = replace(spec, plugins=checks.used_plugins(spec, spec.arms))
        return spec

    def race(self, top: Tree) -> Race | None:
        """Take the table of a race out of `seeds`, which become those of every trial."""
        if not isinstance(top.get("seeds"), dict):
            return None
        race = self.errors.validate(Race, ("seeds",), top.pop("seeds"))
        if race is not None:
            top["seeds"] = race.at_least
        return race

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

    def shared(self, grid: Iterable[str]) -> Arm:
        """Return the settings, ranges and choices at the top of the file, for all arms."""
        others = [*Study.model_fields, *files.TABLES]
        table = {key: raw for key, raw in self.tree.items() if key not in others}
        return self.settings((), table, grid, [*others, "extends"])

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
        elif key == "metric" and len(path) > 1:
            self.errors.add(path, "the same for all arms: write it at the top")
        elif key not in self.known:
            self.errors.add_unknown(path, [*self.known, *other_keys])
        else:
            return True
        return False

    def value(self, path: Key, key: str, raw: Any) -> Any:
        """Return the value as RunConfig stores it, or None, which no setting allows."""
        try:
            if key in self.plugins.parameters:
                return self.plugins.parameters[key].check(raw)
            return getattr(RunConfig.model_validate({key: raw}, context=self.names), key)
        except ValidationError as error:
            self.errors.add(path, reason(error.errors()[0]))
        except ValueError as error:
            self.errors.add(path, str(error))
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
        if isinstance(table, dict):
            return self.settings(("arms", name), table, axes)
        self.errors.add(("arms", name), "input should be a table")
        return Arm({}, {}, {})

    def settings(
        self, path: Key, table: Tree, axes: Iterable[str], other_keys: Iterable[str] = ()
    ) -> Arm:
        """Return the settings of a table: an arm's, or those at the top of the file."""
        arm = Arm({}, {}, {})
        for key, raw in table.items():
            here = (*path, key)
            if key == "enqueue":
                continue
            elif key in axes:
                self.errors.add(here, "is an axis of [grid] already: give it once")
            elif not self.is_setting(here, [*other_keys, "enqueue"]):
                continue
            elif isinstance(raw, dict):
                self.add_values(arm, here, key, raw)
            elif isinstance(raw, list):
                self.errors.add(here, VALUE_RULE if path else TOP_RULE)
            else:
                arm.fixed[key] = self.value(here, key, raw)
        return arm

    def add_values(self, arm: Arm, path: Key, key: str, table: Tree) -> None:
        """Add a grid, choices or a range to the arm."""
        is_top = len(path) == 1
        self.is_sampled |= "grid" not in table
        if others := [SYNONYMS[name] for name in table if name in SYNONYMS]:
            self.errors.add(path, f"unknown keys (did you mean {others[0]}?)")
        elif "grid" in table and is_top:
            self.errors.add(path, TOP_RULE)
        elif "grid" in table:
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
            hints = [did_you_mean(name[:64], VALUE_KEYS) for name in list(table)[:4]]
            rule = TOP_RULE if is_top else VALUE_RULE
            self.errors.add(path, rule + next(filter(None, hints), ""))
        if key in UNSEARCHED and key in arm.space:
            other = "a list in [grid]" if is_top else "{ grid = [...] }"
            other = "" if key == "metric" else f" or {other}"
            self.errors.add(path, f"cannot be searched: give one value{other}")

    def points(self, path: Key, table: Any) -> dict[Key, Point]:
        """Return the points of `enqueue` in a table, by their place in the file."""
        if not isinstance(table, dict) or "enqueue" not in table:
            return {}
        path, raw = (*path, "enqueue"), table["enqueue"]
        if not isinstance(raw, list) or not 1 <= len(raw) <= MAX_VALUES:
            self.errors.add(path, f"input should be a list of 1 to {MAX_VALUES:,} points")
            return {}
        return {(*path, n): self.point((*path, n), item) for n, item in enumerate(raw)}

    def point(self, path: Key, raw: Any) -> Point:
        if not isinstance(raw, dict) or not raw:
            self.errors.add(path, "input should be a point, as in { b = 0.5, alpha = 1.0 }")
            return {}
        return {
            key: self.value((*path, key), key, item)
            for key, item in raw.items()
            if self.is_setting((*path, key))
        }

    def range(self, path: Key, key: str, table: Tree) -> Range | None:
        number = self.type_of(key)
        if number not in (int, float):
            self.errors.add(path, "is not a number: write { choices = [...] }")
            return None
        if number is int and isinstance(table.get("step"), float):
            self.errors.add((*path, "step"), "input should be a valid integer")
        ends = {k: self.value((*path, k), key, table[k]) for k in table if k in ("low", "high")}
        valid = {k: value for k, value in ends.items() if value is not None}
        return self.errors.validate(Range, path, {**table, **valid})

    def type_of(self, key: str) -> Any:
        if key in self.plugins.parameters:
            return TYPES[self.plugins.parameters[key].type]
        return RunConfig.model_fields[key].annotation
