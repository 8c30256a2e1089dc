"""Studies from Python, on a real store with a study that `ressmooth.run` trained."""

import re
import signal
import subprocess
import sys
import textwrap
from contextlib import chdir, closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import tomli_w
import torch
from helpers.launch import CURVES, RESULTS, epochs_recorded, query, wait_for
from sklearn.datasets import load_digits

import ressmooth
from ressmooth.config import METRIC
from ressmooth.errors import CheckpointError, ConfigError, RessmoothError, StudyBusy
from ressmooth.store import Holder, default_url, open_store

README = Path(__file__).parents[1] / "studies" / "README.md"
BASE = """
name = "base"
dataset = "npz:digits.npz"
epochs = 4
seeds = 2
batch_size = 64
[arms.sgd]
method = "mse"
"""
STUDY = {  # its paths are relative to the working directory
    "name": "my-study",
    "description": "which b?",
    "extends": "base.toml",
    "metric": "nll",
    "arms": {"laplace": {"method": "smoothing", "b": {"grid": [0.3, 0.5]}}},
}
RUNS = 6
SCRIPT = """
import ressmooth
study = {{
    "name": "long", "dataset": "digits", "fraction": 0.2, "epochs": {epochs}, "seeds": 2,
    "arms": {{"sgd": {{"method": "mse"}}}},
}}
ressmooth.run(study, home={home!r}, workers=2)
"""


@pytest.fixture(autouse=True)
def mlflow_is_unreachable(monkeypatch):
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    digits = load_digits()
    images, labels = (digits.images * 15).astype(np.uint8), digits.target
    parts = {"x_train": images[:600], "y_train": labels[:600]}
    np.savez(folder / "digits.npz", **parts, x_test=images[600:800], y_test=labels[600:800])
    (folder / "base.toml").write_text(BASE)
    return folder


@pytest.fixture(scope="module")
def study(folder):
    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        return ressmooth.run(STUDY, home=folder / "home", workers=2)


def test_a_study_knows_its_name_and_how_far_it_is(study):
    assert (study.name, study.description) == ("my-study", "which b?")
    assert repr(study) == "Study 'my-study': 6 of 6 runs, 2 arms"


def test_runs_are_those_of_the_database(study):
    frame = study.runs()
    rows = query(study.home, "SELECT run.id, arm, seed, max_acc, test_acc FROM run JOIN trial "
                 "ON trial.id = trial_id ORDER BY run.id")  # fmt: skip
    columns = frame[["run", "arm", "seed", "max_acc", "test_acc"]]
    assert list(columns.itertuples(index=False, name=None)) == rows
    assert set(frame.state) == {"complete"} and set(frame["param.b"].dropna()) == {0.3, 0.5}
    assert (frame.best_nll > 0).all() and frame.best_macro_f1.between(1, 100).all()
    assert str(frame.finished_at.dt.tz) == "UTC" and (frame.finished_at > frame.started_at).all()


@pytest.mark.parametrize("table", ["runs", "epochs", "trials"])
def test_the_columns_are_documented(study, table):
    described = set(re.findall(r"\w+", getattr(study, table).__doc__))
    described |= {f"{each}_{metric}" for each in ("best", "mean", "test") for metric in METRIC}
    columns = set(getattr(study, table)().columns) - {"param.b"}
    if table == "trials":
        assert "results of `runs`" in study.trials.__doc__
        columns -= {f"{each}_acc" for each in ("max", "mean", "test")}
    assert columns <= described


def test_importing_the_api_loads_nothing_slow():
    slow = {"torch", "mlflow", "optuna", "ray", "sqlalchemy", "pandas"}
    code = f"import sys, ressmooth; ressmooth.run; assert not {slow} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_epochs_are_the_curves_of_all_runs(study):
    frame = study.epochs()
    assert len(frame) == RUNS * 4 and list(frame.epoch[:4]) == [1, 2, 3, 4]
    best = frame.groupby("run").val_acc.max()
    assert list(best) == list(study.runs().max_acc)


def test_trials_have_means_over_seeds_and_name_the_selected_one(study):
    frame = study.trials().set_index("trial")
    means = study.runs().groupby("trial").best_nll.mean()
    assert frame.best_nll.to_dict() == pytest.approx(means.to_dict())
    laplace = frame[frame.arm == "laplace"]
    assert laplace.selected.sum() == 1 and laplace.value.idxmin() == laplace.selected.idxmax()


def test_the_comparison_has_a_row_per_arm_and_statistic(study):
    frame = study.comparison()
    assert list(frame[["statistic", "arm"]].itertuples(index=False, name=None)) == [
        (statistic, arm) for statistic in ("max", "mean") for arm in ("sgd", "laplace")
    ]
    assert frame.p.dtype == float and set(frame["param.b"].dropna()) <= {0.3, 0.5}


def test_the_best_run_is_that_of_the_best_seed(study):
    best = study.best("laplace")
    runs = study.runs().set_index("run")
    (trial,) = study.trials().query("arm == 'laplace' and selected").trial
    assert best.run.id == runs[runs.trial == trial].best_nll.idxmin()
    assert best.value == runs.best_nll[best.run.id] and best.params == {"b": best.config["b"]}


def test_the_classifier_of_the_best_run_has_its_recorded_accuracy(study, folder):
    best = study.best("laplace")
    before = torch.get_rng_state()
    classifier = best.classifier()
    assert torch.equal(torch.get_rng_state(), before)
    with np.load(folder / "digits.npz") as file, torch.inference_mode():
        logits = classifier(torch.from_numpy(file["x_test"][..., None]))
        correct = logits.argmax(1) == torch.from_numpy(file["y_test"])
    epochs = study.epochs().query(f"run == {best.run.id}")
    assert 100 * correct.double().mean() == epochs.loc[epochs.val_nll.idxmin()].val_acc
    model, weights = best.model(), best.weights()
    assert not model.training
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("content", [None, b"damaged"])
def test_weights_that_are_not_intact_are_an_error(study, content):
    best = study.best("sgd")
    path = study.home / "runs" / best.run.uid / "best.safetensors"
    before = path.read_bytes()
    path.unlink()
    if content:
        path.write_bytes(content)
    try:
        with pytest.raises(CheckpointError, match="damaged" if content else "No such file"):
            best.weights()
    finally:
        path.write_bytes(before)


def test_best_names_the_arms_and_conditions_that_there_are(study):
    with pytest.raises(ConfigError, match="arm 'laplas' .* known: sgd, laplace"):
        study.best("laplas")
    with pytest.raises(ConfigError, match="0 conditions .* known: .*'fraction': 1.0"):
        study.best("sgd", {"fraction": 0.5})
    assert study.best("sgd", {"fraction": 1.0}).arm == "sgd"


def test_an_unknown_study_names_the_known_ones(study):
    assert ressmooth.list_studies(study.home) == ["my-study"]
    with pytest.raises(ConfigError, match="no study 'yours' here; known: my-study"):
        ressmooth.open("yours", home=study.home)


def test_the_readmes_code_runs(study, folder, monkeypatch, capsys):
    """The study is complete, so this trains nothing."""
    (folder / "my.toml").write_text(tomli_w.dumps(STUDY))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RESSMOOTH_HOME", str(study.home))
    before = query(study.home, RESULTS)
    section = README.read_text().partition("\n## From Python\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.MULTILINE)
    names = {}
    exec(textwrap.dedent("".join(blocks)), names)
    assert names["study"].name == "my-study" and len(names["weights"]) > 5
    assert query(study.home, RESULTS) == before
    assert capsys.readouterr().out == ""


def test_a_wrong_study_is_a_config_error_and_creates_nothing(tmp_path, capfd):
    wrong = {"name": "wrong", "epochs": 0, "arms": {"sgd": {"method": "mse"}}}
    with pytest.raises(ConfigError, match=r"^study.toml:\d: epochs = 0: input should be"):
        ressmooth.run(wrong, home=tmp_path / "home")
    assert not (tmp_path / "home").exists() and capfd.readouterr() == ("", "")


def test_a_dict_that_is_no_toml_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="a study as a dict: .*NoneType"):
        ressmooth.run({"name": "wrong", "epochs": None}, home=tmp_path / "home")


def test_a_study_that_is_run_elsewhere_is_busy(study, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with closing(open_store(default_url(study.home))) as store:
        study_id, launcher = store.study("my-study").id, Holder.here()
        store.acquire(study_id, launcher)
        with pytest.raises(StudyBusy, match="is being run by"):
            ressmooth.run(STUDY, home=study.home)
        store.release(study_id, launcher)


def test_an_override_that_is_no_toml_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="overrides: .*int64 is not"):
        ressmooth.run("quickstart", home=tmp_path / "home", overrides={"epochs": np.int64(3)})


@pytest.mark.slow
def test_overrides_may_be_tables_and_a_study_without_results_is_an_error(tmp_path):
    overrides = {"name": "hot", "arms.sgd.lr": {"grid": [1e5, 2e5]}, "epochs": 1, "seeds": 1}
    study = {
        "name": "cold", "dataset": "digits", "fraction": 0.2,
        "arms": {"sgd": {"method": "mse", "output": "identity"}},
    }  # fmt: skip
    with pytest.raises(RessmoothError, match="no trial completed") as raised:
        ressmooth.run(study, home=tmp_path, overrides=overrides)
    assert raised.value.exit_code == 7
    hot = ressmooth.open("hot", home=tmp_path)
    assert list(hot.runs()["param.lr"]) == [1e5, 2e5] and set(hot.runs().state) == {"failed"}
    assert hot.comparison().empty and "run" in hot.epochs().columns


@pytest.fixture
def script(tmp_path):
    """A script without a __main__ guard that runs a long study in `home`."""
    home = tmp_path / "home"
    (tmp_path / "script.py").write_text(SCRIPT.format(epochs=300, home=str(home)))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")], stderr=subprocess.PIPE, text=True
    )
    yield process, home
    process.kill()
    process.communicate()


def descendants(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
def test_an_interrupt_stops_the_study_and_the_same_script_resumes(script, tmp_path):
    process, home = script
    epochs_recorded(home, 4)
    below = descendants(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt") and len(below) >= 3
    psutil.wait_procs(below, timeout=10)
    assert not any(each.is_running() for each in below)
    assert query(home, "SELECT DISTINCT state FROM run") == [("waiting",)]  # released, not lost
    recorded = query(home, CURVES)
    again = subprocess.Popen([sys.executable, str(tmp_path / "script.py")])
    epochs_recorded(home, len(recorded) + 4)
    again.send_signal(signal.SIGINT)
    again.wait(timeout=60)
    assert set(recorded) <= set(query(home, CURVES))


@pytest.mark.slow
def test_no_process_survives_a_killed_caller(script):
    process, home = script
    epochs_recorded(home, 4)
    below = descendants(process)
    process.kill()
    wait_for(lambda: not any(each.is_running() for each in below), seconds=30)
    assert len(below) >= 3


@pytest.mark.slow
def test_progress_is_shown_only_if_asked_for(study, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    ressmooth.run(STUDY, home=study.home)
    assert capfd.readouterr() == ("", "")
    ressmooth.run(STUDY, home=study.home, show=True)
    shown = capfd.readouterr().out
    assert "my-study: best NLL, " in shown
    assert re.search(r"^sgd +2 .*^laplace +2 ", shown, re.MULTILINE | re.DOTALL)
