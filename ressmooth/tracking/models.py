"""Log the best network of each arm to MLflow, for `mlflow.pytorch.load_model`.

It is an explicit command, because it loads torch and takes seconds per arm. Networks are saved as
graphs of torch.export (pt2), never as pickles.
"""

import re
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ressmooth.errors import ConfigError
from ressmooth.report.best import BestRun, best_runs
from ressmooth.store import Store, StudyRow
from ressmooth.tracking.mirror import RUN_TAG, Mirror, RecordedRun
from ressmooth.tracking.server import tracking_uri

FORBIDDEN = re.compile(r"[/:.%\"']")  # in the names of MLflow's models


def log_models(store: Store, study: StudyRow, home: Path) -> Iterator[tuple[BestRun, str]]:
    """Log the best run of each arm and condition as a model. Yield it with the model's URI.

    A run that has a model already keeps it.
    """
    runs = best_runs(store, study, home)
    if not runs:
        raise ConfigError(f"{study.name}: no model yet, no trial is complete")
    mirror = ModelMirror(tracking_uri(home), home)
    for best in runs:
        run = best.run
        recorded = RecordedRun(study, store.trial(run.trial_id), run, store.curve(run.id))
        yield best, mirror.show_model(recorded, best)


class ModelMirror(Mirror):
    """Shows networks of runs in MLflow."""

    def show_model(self, recorded: RecordedRun, best: BestRun) -> str:
        """Log a run's network unless it is there. Return the model's URI."""
        with self._translate_errors():
            found = self._find(recorded)
        if found is not None:
            return f"models:/{found}"
        with TemporaryDirectory() as scratch:
            model = _save(best, Path(scratch) / "model")
            with self._translate_errors():
                return f"models:/{self._log_model(recorded, model, Path(scratch) / 'model')}"

    def _find(self, recorded: RecordedRun) -> str | None:
        """Return the id of a run's model, or None without one."""
        tag = f"tags.`{RUN_TAG}` = '{recorded.run.uid}'"
        found = self.client.search_logged_models([self._experiment(recorded.study)], tag)
        ready = (model.model_id for model in found if model.status == "READY")  # it is uploaded
        return next(ready, None)

    def _log_model(self, recorded: RecordedRun, model: Any, directory: Path) -> str:
        from mlflow.entities import LoggedModelOutput

        mlflow_run = self._run(recorded)
        created = self.client.create_logged_model(
            self._experiment(recorded.study),
            FORBIDDEN.sub("_", recorded.name),
            mlflow_run,
            tags={RUN_TAG: recorded.run.uid},
            params={key: str(value) for key, value in recorded.trial.params.items()},
        )
        model.model_id, model.run_id = created.model_id, mlflow_run
        model.save(str(directory / "MLmodel"))
        self.client.log_model_artifacts(created.model_id, str(directory))
        self.client.log_outputs(mlflow_run, [LoggedModelOutput(created.model_id, step=0)])
        self.client.finalize_logged_model(created.model_id, "READY")
        return str(created.model_id)


def _save(best: BestRun, directory: Path) -> Any:
    """Write a classifier in MLflow's format. Return MLflow's description of it."""
    import mlflow.pytorch
    import numpy
    import torch
    from mlflow.models import Model, infer_signature

    classifier = best.classifier()
    images = numpy.zeros((2, *classifier.image), numpy.uint8)
    with torch.inference_mode():
        logits = classifier(torch.from_numpy(images)).numpy()
    model = Model()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mlflow.pytorch.save_model(
                classifier,
                directory,
                mlflow_model=model,
                signature=infer_signature(images, logits),
                input_example=images,
                pip_requirements=[f"torch=={version('torch')}", f"mlflow=={version('mlflow')}"],
                serialization_format="pt2",
            )
    except Exception as error:  # torch.export raises errors of many kinds
        reason = str(error).strip().partition("\n")[0]
        name = best.config["model"]
        raise ConfigError(f"arm {best.arm!r}: torch cannot export {name}: {reason}") from error
    return model
