"""Choose the trials of a recorded study that a sampler of another study begins with."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ressmooth.config import RunConfig, used_settings
from ressmooth.errors import ConfigError
from ressmooth.plugins import Plugins
from ressmooth.spec.reader import read_stored
from ressmooth.spec.schema import Branch, Point, StudySpec
from ressmooth.spec.toml import Tree

# Settings that do not make values incomparable. `plugin_settings` are compared one by one.
IGNORED = ("seed", "device", "threads", "channels_last", "compile", "plugin_settings")

Settings = Mapping[str, Any]
Completed = tuple[str, Settings, float]  # of a trial: arm, configuration of a run, value


@dataclass
class WarmStart:
    """What a study's samplers begin with. It is recorded when the study is first opened."""

    trials: dict[str, list[tuple[Point, float]]] = field(default_factory=dict)  # by branch
    used: int = 0
    completed: int = 0
    differing: list[str] = field(default_factory=list)  # settings of the trials that are not used

    def to_dict(self) -> Tree:
        return asdict(self)


def select_trials(spec: StudySpec, stored: Tree, trials: Iterable[Completed]) -> WarmStart:
    """Return the trials that could be trials of `spec`, which `stored` recorded."""
    old = read_stored(stored)
    _check_comparable(spec, old)
    examples = {branch.key: _flat(branch.example().model_dump()) for branch in spec.branches}
    found = WarmStart()
    differing: set[str] = set()
    for arm, config, value in trials:
        settings = _flat(config)
        branches = [branch for branch in spec.branches if branch.arm == arm and branch.space]
        wrong = {b.key: _differences(b, examples[b.key], settings, old.plugins) for b in branches}
        fitting = [branch for branch in branches if not wrong[branch.key]]
        for branch in fitting:
            point = {key: settings[key] for key in branch.space}
            found.trials.setdefault(branch.key, []).append((point, value))
        found.completed += 1
        found.used += bool(fitting)
        differing |= set() if fitting else min(wrong.values(), key=len, default={"arm"})
    found.differing = sorted(differing)
    return found


def _check_comparable(spec: StudySpec, old: StudySpec) -> None:
    for name, was, now in (
        ("metric", old.metric, spec.metric),
        ("search.objective", old.search.objective, spec.search.objective),
    ):
        if was != now:
            raise ConfigError(
                f"search.warm_start = {old.name!r}: its {name} is {was!r}, not {now!r}: "
                "its values are no guide; choose another study or remove it"
            )


def _differences(branch: Branch, example: Settings, settings: Settings, old: Plugins) -> set[str]:
    """Return the settings of a run that no trial of the branch can have."""
    used = [key for key in used_settings(settings, old) if key not in IGNORED]
    fixed = {key for key in used if key not in branch.space and settings[key] != example.get(key)}
    searched = {
        k for k, s in branch.space.items() if k not in settings or not s.contains(settings[k])
    }
    same_code = _code(old, settings) == _code(branch.plugins, settings)
    return fixed | searched | (set() if same_code else {"plug-in"})


def _flat(config: Settings) -> Settings:
    """Return a run's settings. Earlier versions did not record all of them."""
    defaults = {name: info.default for name, info in RunConfig.model_fields.items()}
    return {**defaults, **config, **config.get("plugin_settings", {})}


def _code(plugins: Plugins, settings: Settings) -> set[str]:
    """Return the hashes of the plug-ins that a run uses."""
    used = list(plugins.used(settings))
    return {p.sha256 for p in plugins.files if any(item in used for item in p.definitions)}
