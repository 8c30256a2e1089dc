"""Try what a study brings along before anything is created: plug-ins, own data, other networks.

It needs torch, so it happens in a process of its own, and only for studies that bring something.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ressmooth.config import NAMES, RunConfig, parse
from ressmooth.engines.child import ChildDied, call_in_child
from ressmooth.errors import ConfigError, DataChanged, RessmoothError
from ressmooth.plugins import Plugins, restore
from ressmooth.spec import StudySpec
from ressmooth.store import Store

# Settings of which every combination is tried once
TRIED = (*NAMES, "image_size", "weights")

Hashes = dict[str, str]  # of own data sets, by `data_key`


def check(spec: StudySpec, home: Path, tick: Callable[[], None] = lambda: None) -> Hashes:
    """Build a run of each kind, or raise a ConfigError. Return the hashes of own data sets.

    `tick` is called meanwhile.
    """
    examples = [branch.example() for branch in spec.branches]
    foreign = [config for config in examples if _is_foreign(config)]
    kinds = {tuple(getattr(config, key) for key in TRIED): config for config in foreign}
    if not kinds:
        return {}
    recorded = [plugin.to_dict() for plugin in spec.plugins.files]
    configs = [config.model_dump() for config in kinds.values()]
    try:
        return call_in_child(try_runs, configs, recorded, home, tick=tick)
    except ChildDied as error:
        raise ConfigError(
            "a run could not be built to check the study's data, network and plug-ins. "
            f"{error} -9 is mostly a lack of memory."
        ) from None


def _is_foreign(config: RunConfig) -> bool:
    return any(getattr(config, key) not in names for key, names in NAMES.items())


def try_runs(configs: list[dict[str, Any]], recorded: list[dict[str, str]], home: Path) -> Hashes:
    """Build each run without training it. Runs in the child, on the CPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    plugins = restore(recorded)
    hashes: Hashes = {}
    for values in configs:
        config = parse({**values, "device": "cpu"}, plugins)
        sha256 = _try_run(config, home / "data", plugins)
        if sha256 is not None:
            hashes[data_key(values, plugins)] = sha256
    return hashes


def _try_run(config: RunConfig, data: Path, plugins: Plugins) -> str | None:
    """Build a run. Return the hash of its data set, if that is the user's own."""
    from ressmooth.training.datasets import load_for
    from ressmooth.training.trainer import Trainer

    try:
        dataset = load_for(config, data, plugins, keep=False)
        trainer = Trainer(config, data, plugins, dataset)
        trainer.check_training(dataset.num_classes)
        return trainer.data_sha256
    except RessmoothError:
        raise
    except (Exception, SystemExit) as error:  # of a plug-in, or of a network that does not fit
        what = ", ".join(f"{key} {getattr(config, key)!r}" for key in NAMES)
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        place = f"{line}: " if (line := plugins.place(error)) else ""
        raise ConfigError(f"{place}cannot build a run with {what}: {reason}") from error


def data_key(config: Mapping[str, Any], plugins: Plugins) -> str:
    """Return what decides which images a run sees."""
    definition = plugins.get("dataset", config["dataset"])
    settings = config.get("plugin_settings", {})
    own = {key: settings.get(key) for key in definition.parameters} if definition else {}
    return json.dumps([config["dataset"], config.get("image_size", 0), own], sort_keys=True)


def check_unchanged(store: Store, study_id: int, spec: StudySpec, hashes: Hashes) -> None:
    """Raise DataChanged if recorded runs of the study saw other images."""
    if not hashes:
        return
    for trial in store.each_trial(study_id):
        for run in trial.runs:
            now = hashes.get(data_key(run.config, spec.plugins))
            if now and run.data_sha256 and run.data_sha256 != now:
                raise DataChanged(
                    f"{run.config['dataset']}: its content has changed since run {run.id} was "
                    f"trained (was {run.data_sha256[:12]}, is {now[:12]}); restore the files, or "
                    f"give the study another name: --set name={spec.name}-2"
                )
