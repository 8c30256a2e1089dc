"""Measure how long a study trains, for `--dry-run --time`. Free of torch, except in its child."""

import os
from pathlib import Path
from typing import Any, get_args

from ressmooth.config import DatasetName, RunConfig, parse
from ressmooth.engines.catalogue import planned_runs
from ressmooth.engines.child import call_in_child
from ressmooth.engines.placement import gpus_per_run, visible_gpus
from ressmooth.errors import DataError
from ressmooth.paths import command
from ressmooth.plugins import restore
from ressmooth.spec import StudySpec

# Settings that change neither the time of a step nor that of an evaluation
FREE = {
    *("seed", "epochs", "eval_every", "lr", "schedule", "momentum", "weight_decay"),
    *("mu", "b", "horizon", "scale", "alpha", "epsilon", "nu"),
}

Cost = tuple[tuple[str, str], ...]  # the settings that an epoch's time depends on


def measured_seconds(spec: StudySpec, home: Path) -> float:
    """Return the seconds that all runs train, one after the other, by a few measured steps."""
    runs = [(_with_threads(spec, config), number) for config, number in planned_runs(spec)]
    kinds = {_cost(config): config.model_dump() for config, number in runs if number}
    uses_gpu = gpus_per_run(spec.resources, len(visible_gpus())) > 0
    recorded = [plugin.to_dict() for plugin in spec.plugins.files]
    configs = list(kinds.values())
    measured = call_in_child(measure, configs, recorded, home, uses_gpu, tick=lambda: None)
    seconds = dict(zip(kinds, measured, strict=True))
    return sum(_seconds(config, *seconds[_cost(config)]) * n for config, n in runs if n)


def _with_threads(spec: StudySpec, config: RunConfig) -> RunConfig:
    return config.model_copy(update={"threads": config.threads or spec.resources.threads})


def _cost(config: RunConfig) -> Cost:
    return tuple((key, str(v)) for key, v in config.model_dump().items() if key not in FREE)


def _seconds(config: RunConfig, training: float, evaluating: float) -> float:
    evaluations = sum(config.evaluates(epoch) for epoch in range(1, config.epochs + 1))
    return config.epochs * training + evaluations * evaluating


def measure(
    configs: list[dict[str, Any]], recorded: list[dict[str, str]], home: Path, uses_gpu: bool
) -> list[tuple[float, float]]:
    """Return the seconds of an epoch's training and of an evaluation. Runs in the child."""
    if not uses_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from ressmooth.training.datasets import load_for
    from ressmooth.training.rehearsal import epoch_seconds

    plugins, data = restore(recorded), home / "data"
    runs = [parse(config, plugins) for config in configs]
    for config in runs:
        try:
            load_for(config, data, plugins, keep=False)
        except DataError:
            if config.dataset not in get_args(DatasetName):
                raise
            fetch = command(home, "fetch", config.dataset)
            raise DataError(f"{config.dataset} is not here yet; to download it: {fetch}") from None
    return [epoch_seconds(config, data, plugins) for config in runs]
