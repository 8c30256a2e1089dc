"""The best network of each arm as a model of MLflow."""

import os
import subprocess
import sys
from contextlib import closing

import pytest
from helpers.launch import TINY, launch

from ressmooth.errors import ConfigError
from ressmooth.store import default_url, open_store
from ressmooth.tracking.models import log_models

LOAD = """
import sys
import mlflow, torch
from pathlib import Path
from ressmooth.training.datasets import load
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pytorch.load_model(sys.argv[2])
test = load("digits", Path(sys.argv[3])).test
correct = (model(test.pixels).argmax(1) == test.labels).double().mean()
print(100 * correct.item(), mlflow.models.get_model_info(sys.argv[2]).signature.inputs)
"""


@pytest.mark.slow
def test_a_logged_model_has_the_recorded_accuracy_without_pickles(tmp_path, monkeypatch):
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "tiny.toml").write_text(TINY.format(epochs=3))
    done = launch(tmp_path / "tiny.toml", tmp_path, "--quiet")
    assert done.returncode == 0, done.stderr
    with closing(open_store(default_url(tmp_path))) as store:
        study = store.study("tiny")
        logged = list(log_models(store, study, tmp_path))
        assert [best.arm for best, _ in logged] == ["sgd", "laplace"]
        assert list(log_models(store, study, tmp_path)) == logged  # not logged twice
    best, uri = logged[1]
    database = f"sqlite:///{tmp_path}/mlflow.db"
    found = subprocess.run(
        [sys.executable, "-c", LOAD, database, uri, str(tmp_path)],
        env={**os.environ, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    accuracy, signature = found.stdout.split(" ", 1)
    assert float(accuracy) == pytest.approx(best.run.max_acc)
    assert signature.strip() == "[Tensor('uint8', (-1, 8, 8, 1))]"


def test_a_study_without_results_has_no_model(tmp_path):
    from helpers import specs

    with closing(open_store(f"sqlite:///{tmp_path}/results.db")) as store:
        store.open_study(specs.study({"sgd": {"method": "mse"}}, name="new"))
        with pytest.raises(ConfigError, match="new: no model yet, no trial is complete"):
            list(log_models(store, store.study("new"), tmp_path))
