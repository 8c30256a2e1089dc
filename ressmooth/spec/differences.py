"""Tell what makes a study a different one from the study recorded under its name."""

from collections.abc import Sequence
from typing import Any

from ressmooth.spec import checks
from ressmooth.spec.reader import read_stored
from ressmooth.spec.schema import StudySpec
from ressmooth.spec.toml import Tree, shorten

# cannot change between launches
FIXED_SEARCH = (
    *("sampler", "pruner", "min_epochs", "reduction", "warmup"),
    *("objective", "seed", "warm_start"),
)


def differences(stored: Tree, spec: StudySpec) -> list[str]:
    """Return what makes `spec` a different study from the stored one, one line each.

    These may change: description, reference, search.trials, search.hours, resources, new arms,
    and larger seeds and confirm. Seeds may begin to race, and stop racing at `at_most` or more.
    """
    old = read_stored(stored)
    lines = [
        f"{key} was {_shown(was)}, is {_shown(now)}"
        for key, (was, now) in _changes(old, spec).items()
    ]
    for name in old.arms:
        if name not in spec.arms:
            lines.append(f"arms.{name} is missing: arms can only be added")
    for key in ("seeds", "at_most", "confirm"):
        before, after = getattr(old, key), getattr(spec, key)
        if after < before and (key != "at_most" or old.is_race):
            name = _seeds_key(key, old, spec)
            lines.append(f"{name} was {before}, is {after}: it can only be raised")
    return lines


def can_warm_start(stored: Tree, spec: StudySpec) -> bool:
    """Tell whether trials of the stored study suit `spec`: if only the search differs."""
    searched = {f"arms.{name}.{key}" for name, arm in spec.arms.items() for key in arm.space}
    enqueued = {f"arms.{name}.enqueue" for name in spec.arms}
    searches = {f"search.{key}" for key in FIXED_SEARCH if key != "objective"}
    changes = _changes(read_stored(stored), spec)
    is_learning = spec.search.sampler in checks.LEARNING
    return is_learning and bool(searched) and changes.keys() <= searched | enqueued | searches


def _changes(old: StudySpec, spec: StudySpec) -> dict[str, tuple[Any, Any]]:
    """Return what cannot change and did, before and now. Arms that are only in one may differ."""
    kept = [name for name in old.arms if name in spec.arms]
    was, now = _identity(old, kept), _identity(spec, kept)
    return {
        key: (was.get(key), now.get(key)) for key in {**was, **now} if was.get(key) != now.get(key)
    }


def _identity(spec: StudySpec, arms: Sequence[str]) -> dict[str, Any]:
    """Return what cannot change. What has no effect can: earlier versions accepted it."""
    flat = {"name": spec.name, **spec.settings}
    plugins = checks.used_plugins(spec, arms)
    flat |= {f"plugin {plugin.file}": plugin.sha256[:12] for plugin in plugins.files}
    flat |= {f"search.{k}": getattr(spec.search, k) for k in FIXED_SEARCH}
    flat |= {f"grid.{k}": values for k, values in spec.grid.items()}
    if not any(arm.space for arm in spec.arms.values()):
        flat["search.pruner"] = "none"
    for name in arms:
        arm = spec.arms[name]
        variants = checks.variants_of(spec.settings, spec.grid, arm, spec.plugins)
        used = checks.used_by(variants, spec.plugins)
        flat |= {f"arms.{name}.{k}": value for k, value in arm.fixed.items() if k in used}
        flat |= {f"arms.{name}.{k}": {"grid": values} for k, values in arm.grid.items()}
        flat |= {f"arms.{name}.{k}": s.model_dump() for k, s in arm.space.items()}
        flat[f"arms.{name}.enqueue"] = arm.enqueue or None
    return flat


def _seeds_key(key: str, old: StudySpec, spec: StudySpec) -> str:
    """Return the key of a study file. In a race, `seeds` is at_least."""
    is_race = old.is_race or spec.is_race
    return {"seeds": "seeds.at_least", "at_most": "seeds.at_most"}.get(key, key) if is_race else key


def _shown(value: Any) -> str:
    return "not set" if value is None else shorten(value)
