"""Check what keys of a study file mean together, once each is valid by itself."""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from ressmooth.config import RunConfig, is_own, specific_settings, used_settings
from ressmooth.errors import ConfigError, did_you_mean
from ressmooth.plugins import GIVEN, Plugins
from ressmooth.spec.errors import ErrorCollector
from ressmooth.spec.schema import Arm, Choices, Search, StudySpec
from ressmooth.spec.toml import Key, Tree

MAX_RUNS = 100_000  # of a study
PRUNER_OPTIONS = {"min_epochs": "asha", "reduction": "asha", "warmup": "median"}
LEARNING = ("tpe", "cmaes")  # samplers that learn from completed trials

Variant = dict[str, Any]  # the settings of a run that decide which others it uses


def check_sampler(search: Search, arms: Mapping[str, Arm], errors: ErrorCollector) -> None:
    """Refuse a sampler that cannot sample, and options of another pruner."""
    sampled = [(name, key) for name, arm in arms.items() for key in arm.space]
    if search.sampler == "grid":
        for name, key in sampled:
            place = place_of(key, name, errors.tree)
            other = "write { grid = [...] }" if len(place) > 1 else "put a list into [grid]"
            errors.add(place, f"needs search.sampler = random, tpe or cmaes; or {other}")
    elif sampled and search.trials is None and search.hours is None:
        rule = "needs search.trials (per arm) or search.hours"
        errors.add(("search", "sampler"), rule)
    for option, pruner in PRUNER_OPTIONS.items():
        if getattr(search, option) is not None and search.pruner != pruner:
            errors.add(("search", option), f"needs search.pruner = {pruner!r}")
    if search.warm_start is not None and search.sampler not in LEARNING:
        rule = f"needs search.sampler = {' or '.join(LEARNING)}: {search.sampler} learns nothing"
        errors.add(("search", "warm_start"), rule)
    elif search.warm_start is not None and not sampled:
        rule = "has no effect: no arm has a range or choices; remove it"
        errors.add(("search", "warm_start"), rule)


def check_pruner(search: Search, is_sampled: bool, errors: ErrorCollector) -> None:
    """Refuse a pruner if nothing is sampled: every cell of a grid is trained to its end."""
    if search.pruner != "none" and not is_sampled:
        rule = "has no effect: it stops sampled trials, and no arm has a range or choices"
        errors.add(("search", "pruner"), f"{rule}; remove it")


def check_effects(
    settings: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]],
    arms: Mapping[str, Arm],
    plugins: Plugins,
    errors: ErrorCollector,
) -> None:
    """Refuse settings without an effect. Those at the top of the file are for all arms."""
    unused = set(grid)
    for name, arm in arms.items():
        variants = variants_of(settings, grid, arm, plugins)
        used = used_by(variants, plugins)
        unused -= used
        for key in {**arm.fixed, **arm.grid, **arm.space}:
            if key not in used:
                errors.add(("arms", name, key), _no_effect(key, variants, used, plugins))
    for key in unused:
        errors.add(("grid", key), "has no effect: no arm uses it; remove it")


def used_by(variants: Iterable[Variant], plugins: Plugins) -> set[str]:
    """Return the settings that at least one of the variants uses."""
    return {key for variant in variants for key in used_settings(variant, plugins)}


def variants_of(
    settings: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], arm: Arm, plugins: Plugins
) -> list[Variant]:
    """Return the methods, distributions, optimizers ... of an arm, in all combinations."""
    fixed = {key: [value] for key, value in {**settings, **arm.fixed}.items()}
    choices = {k: space.choices for k, space in arm.space.items() if isinstance(space, Choices)}
    given = {**fixed, **grid, **arm.grid, **choices}
    values: dict[str, Sequence[Any]] = {}
    for key, by in specific_settings(plugins).items():
        found = given.get(key, [RunConfig.model_fields[key].default])
        # an invalid value has an error of its own, and may stand for any
        values[key] = list(by) if not found or None in found else found
    return [dict(zip(values, each, strict=True)) for each in product(*values.values())]


def used_plugins(spec: StudySpec, arms: Iterable[str]) -> Plugins:
    """Return the plug-ins that these arms use, or whose settings the study has for all arms."""
    if not spec.plugins.files:
        return spec.plugins
    names = {
        (kind, variant[kind])
        for name in arms
        for variant in variants_of(spec.settings, spec.grid, spec.arms[name], spec.plugins)
        for kind in GIVEN
    }
    return spec.plugins.providing(names, spec.settings)


def _no_effect(key: str, variants: Sequence[Variant], used: set[str], plugins: Plugins) -> str:
    """Return why a setting has no effect, and what it is for."""
    owner, by = next(
        (owner, by)
        for owner, by in specific_settings(plugins).items()
        if any(key in names for names in by.values())
    )
    if owner not in used:
        return _no_effect(owner, variants, used, plugins)
    given = ", ".join(sorted({variant[owner] for variant in variants}))
    users = ", ".join(value for value, names in by.items() if key in names)
    return f"has no effect with {owner} {given}, only with {users}; remove it"


def check_reference(reference: str | None, arms: Mapping[str, Arm], errors: ErrorCollector) -> None:
    """Refuse a reference that is not an arm."""
    if reference is not None and reference not in arms:
        hint = did_you_mean(reference[:64], arms)
        errors.add(("reference",), f"input should be an arm: {', '.join(arms)}{hint}")


def check_runs(spec: StudySpec, errors: ErrorCollector) -> None:
    """Refuse too many runs before the grids are expanded."""
    runs = 0
    for name, arm in spec.arms.items():
        cells = spec.cells(name)
        trials = max(cells, spec.search.trials or 0) if arm.space else cells
        runs += trials * spec.at_most + cells * spec.confirm  # at most
    if runs > MAX_RUNS:
        many = f"{runs:,}" if runs < 10**12 else f"{runs:.1e}"
        errors.add((), f"{many} runs: at most {MAX_RUNS:,} in a study")
    errors.check()


def check_trials(spec: StudySpec, errors: ErrorCollector) -> None:
    """Refuse fewer trials than an arm has cells: each cell is searched by itself."""
    cells = {name: spec.cells(name) for name, arm in spec.arms.items() if arm.space}
    most = max(cells, key=cells.__getitem__, default="")
    if spec.search.trials is not None and cells and spec.search.trials < cells[most]:
        rule = f"input should be at least {cells[most]}, one for each cell of arms.{most}"
        errors.add(("search", "trials"), rule)


def check_points(spec: StudySpec, errors: ErrorCollector) -> None:
    """Refuse more points to try first than a branch has trials."""
    if spec.search.trials is None:
        return
    for branch in spec.branches:
        points, trials = len(spec.arms[branch.arm].enqueue), spec.planned_trials(branch)
        if points > trials:
            place = place_of("enqueue", branch.arm, errors.tree)
            needed = points * spec.cells(branch.arm)
            rule = f"{points} points, but {branch.key} has {trials} trials"
            errors.add(place, f"{rule}; set search.trials to at least {needed}")


def check_branches(spec: StudySpec, errors: ErrorCollector) -> None:
    """Check each branch as a whole, now that each setting is valid by itself."""
    for branch in spec.branches:
        try:
            branch.example()
        except ConfigError as error:
            lines = "; ".join(str(error).splitlines())
            errors.add(("arms", branch.arm), f"in {branch.key}: {lines}")


def check_files(spec: StudySpec, errors: ErrorCollector) -> None:
    """Refuse data sets of the user's own that are not there."""
    for branch in spec.branches:
        dataset = str(branch.values.get("dataset", ""))
        kind, _, path = dataset.partition(":")
        is_there = os.path.isdir(path) if kind == "images" else os.path.isfile(path)
        if is_own(dataset) and not is_there:
            what = "directory" if kind == "images" else "file"
            place = place_of("dataset", branch.arm, errors.tree)
            errors.add(place, f"there is no {what} {path}")
    errors.check()


def place_of(setting: str, arm: str, tree: Tree) -> Key:
    """Return where a study file gives a setting of an arm."""
    table = tree["arms"][arm]
    if isinstance(table, dict) and setting in table:
        return ("arms", arm, setting)
    return (setting,) if setting in tree else ("grid", setting)
