"""The best run of each arm, with its weights and its network."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ressmooth import paths
from ressmooth.config import parse
from ressmooth.plugins import Plugins, restore
from ressmooth.report.compare import ArmResult, arm_results
from ressmooth.store import RunRow, Store, StudyRow

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ressmooth.training.trained import Classifier


@dataclass(frozen=True, repr=False)
class BestRun:
    """The run with the best seed of an arm's selected configuration.

    The best seed is the one whose best epoch has the best value of the study's metric on the
    validation data. Its weights are those of that epoch.
    """

    arm: str
    condition: dict[str, Any]
    params: dict[str, Any]  # of the selected configuration
    run: RunRow
    home: Path
    plugins: Plugins  # as recorded

    def __repr__(self) -> str:
        metric = self.config.get("metric", "accuracy")
        return (
            f"BestRun {self.run.id} of {self.arm!r}: seed {self.run.seed}, {metric} {self.value:g}"
        )

    @property
    def config(self) -> dict[str, Any]:
        """Return all settings of the run."""
        return self.run.config

    @property
    def value(self) -> float:
        """Return the value of the metric at the best epoch."""
        value = _value(self.run)
        assert value is not None  # it was chosen by its value
        return value

    def weights(self) -> "dict[str, Tensor]":
        """Return the weights of the best epoch. Raise CheckpointError if the file is not intact."""
        from ressmooth.training.trained import load_weights

        path = paths.run_directory(self.home, self.run.uid) / paths.WEIGHTS
        return load_weights(path, self.run.weights_sha256)

    def model(self) -> "nn.Module":
        """Return the network with these weights, for normalised images [N, C, H, W]."""
        network: nn.Module = self.classifier().network
        return network

    def classifier(self) -> "Classifier":
        """Return the network after the normalisation of its run, for images uint8 [N, H, W, C]."""
        from ressmooth.training.trained import load_classifier

        config = parse(self.run.config, self.plugins)
        return load_classifier(config, self.weights(), self.home / "data", self.plugins)


def best_runs(store: Store, study: StudyRow, home: Path) -> list[BestRun]:
    """Return the best run of each arm under each condition, where one is complete."""
    plugins = restore(study.spec.get("plugins", ()))
    runs = {run.id: run for trial in store.trials(study.id) for run in trial.runs}
    return [
        BestRun(arm.name, arm.condition, arm.params, run, home, plugins)
        for arm in arm_results(study, store.winners(study.id))
        if (run := _best(arm, runs)) is not None
    ]


def _best(arm: ArmResult, runs: dict[int, RunRow]) -> RunRow | None:
    """Return the run of the arm's best seed, the lowest of equals."""
    values = [(runs[id], value) for id in arm.runs if (value := _value(runs[id])) is not None]
    return max(values, key=lambda pair: arm.measure.score(pair[1]), default=(None, 0.0))[0]


def _value(run: RunRow) -> float | None:
    return run.result(run.config.get("metric", "accuracy"), "max")
