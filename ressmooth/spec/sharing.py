"""Give arms what the top of a study file holds for all of them: search spaces and points."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ressmooth.plugins import Plugins
from ressmooth.spec.checks import used_by, variants_of
from ressmooth.spec.errors import ErrorCollector
from ressmooth.spec.schema import Arm, Choices, Point, Range
from ressmooth.spec.toml import Key, shorten

Points = dict[Key, Point]  # by their place in the file


def share_space(
    top: Arm,
    grid: Mapping[str, Sequence[Any]],
    arms: Mapping[str, Arm],
    plugins: Plugins,
    errors: ErrorCollector,
) -> dict[str, Arm]:
    """Return the arms with the ranges and choices of the top that they use."""
    shared = {name: _with_space(arm, top, grid, plugins) for name, arm in arms.items()}
    taken = {key for name, arm in shared.items() for key in arm.space.keys() - arms[name].space}
    for key in top.space.keys() - taken:
        errors.add((key,), "has no effect: no arm uses it; remove it")
    return shared


def _with_space(arm: Arm, top: Arm, grid: Mapping[str, Sequence[Any]], plugins: Plugins) -> Arm:
    """Return an arm as if the ranges and choices that it uses stood at its beginning."""
    own = {**arm.fixed, **arm.grid, **arm.space}
    shared = {key: space for key, space in top.space.items() if key not in own}
    searched = replace(arm, space={**shared, **arm.space})
    used = used_by(variants_of(top.fixed, grid, searched, plugins), plugins)
    return replace(arm, space={k: s for k, s in searched.space.items() if k in used or k in own})


def share_points(
    top: Points, own: Mapping[str, Points], arms: Mapping[str, Arm], errors: ErrorCollector
) -> dict[str, Arm]:
    """Return the arms with the points that they try first: those of the top, then their own."""
    for key, point in top.items():
        if not any(point.keys() <= arm.space.keys() for arm in arms.values()):
            errors.add(key, f"no arm searches {' and '.join(point)}")
    return {
        name: _with_points(name, arm, _fitting(top, arm) | own[name], errors)
        for name, arm in arms.items()
    }


def _fitting(points: Points, arm: Arm) -> dict[Key, Point]:
    """Return the points whose settings the arm searches."""
    return {key: point for key, point in points.items() if point.keys() <= arm.space.keys()}


def _with_points(name: str, arm: Arm, points: Points, errors: ErrorCollector) -> Arm:
    for key, point in points.items():
        for setting, value in point.items():
            space = arm.space.get(setting)
            if space is None:
                rule = f"is not searched: arms.{name} has no range or choices for it"
                errors.add((*key, setting), rule)
            elif value is not None and not space.contains(value):
                errors.add((*key, setting), f"input should be {_allowed(space)}, as in arms.{name}")
    tried = list(points.values())
    for n, key in enumerate(points):
        if points[key] in tried[:n]:
            errors.add(key, f"given twice to arms.{name}")
    return replace(arm, enqueue=tried)


def _allowed(space: Range | Choices) -> str:
    if isinstance(space, Choices):
        return f"one of {shorten(space.choices)}"
    step = "" if space.step is None else f" in steps of {space.step}"
    return f"{space.low} to {space.high}{step}"
