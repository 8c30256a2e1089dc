"""The mirror with a real MLflow: its embedded database, and a server process."""

import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner
from helpers import specs
from helpers.records import (
    ARMS,
    ENVIRONMENT,
    EPOCHS,
    epoch,
    open_study,
    runs_of,
    simulate,
    train,
    train_all,
)
from helpers.servers import Receiver, Server, answering, endless, nothing

from ressmooth.cli import main
from ressmooth.errors import ConfigError, StorageError, TrackingError
from ressmooth.paths import report_directory
from ressmooth.report.compare import by_selecting_statistic, compare_studies
from ressmooth.store import Donor, default_url, open_store
from ressmooth.tracking import answers, mirror, view
from ressmooth.tracking.mirror import Mirror
from ressmooth.tracking.relay import Relay, deliver_pending, sync
from ressmooth.tracking.server import check, redact, serve, tracking_uri


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """Create MLflow's tables once, because it takes seconds. Each test copies them."""
    home = tmp_path_factory.mktemp("empty")
    Mirror(f"sqlite:///{home}/mlflow.db", home).studies()
    return home / "mlflow.db"


@pytest.fixture(autouse=True)
def no_tracking_uri(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def home(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture(params=["embedded", pytest.param("server", marks=pytest.mark.slow)])
def uri(request, home):
    if request.param == "embedded":
        return tracking_uri(home)
    return request.getfixturevalue("server").uri


@pytest.fixture
def store(home):
    store = open_store(default_url(home))
    yield store
    store.close()


class Seen:
    """A study as MLflow shows it."""

    def __init__(self, uri, name):
        from mlflow import MlflowClient

        self.client = MlflowClient(uri)
        self.experiment = self.client.get_experiment_by_name(name)
        found = self.client.search_runs([self.experiment.experiment_id], max_results=1000)
        parents = [r for r in found if "ressmooth.study_uid" in r.data.tags]
        assert len(parents) == 1
        self.parent = parents[0]
        self.runs = [r for r in found if r is not self.parent]

    def run(self, row):
        (found,) = (r for r in self.runs if r.data.tags["ressmooth.run_uid"] == row.uid)
        return found

    def history(self, run, metric):
        return self.client.get_metric_history(run.info.run_id, metric)

    def files(self, run, path=None):
        found = self.client.list_artifacts(run.info.run_id, path)
        return {file.path for file in found}

    def read(self, run, path, directory):
        return Path(self.client.download_artifacts(run.info.run_id, path, str(directory)))

    def check_curves(self, rows):
        """Assert that each epoch of each run is shown exactly once."""
        assert len(self.runs) == len(rows)
        for row in rows:
            run = self.run(row)
            assert [m.step for m in self.history(run, "train_loss")] == [1, 2, 3]
            assert [m.step for m in self.history(run, "val_acc_percent")] == [2, 3]
            assert len(self.history(run, "max_acc_percent")) == 1


@pytest.mark.parametrize("uri", ["embedded"], indirect=True)
def test_the_use_of_a_gpu_has_the_names_of_mlflows_system_metrics(store, home, uri):
    study_id = open_study(store, "gpu", ARMS, seeds=1)
    row = runs_of(store, study_id)[0]
    attempt = store.claim(row.id, ENVIRONMENT)
    used = {"gpu_memory_mib": 1000.0, "gpu_utilization_percent": 87.5, "gpu_power_watts": 250.0}
    store.record_epoch(attempt, dataclasses.replace(epoch(1), **used), None)
    store.record_epoch(attempt, epoch(2), None)
    sync(store, home, uri)
    seen = Seen(uri, "gpu")
    run = seen.run(row)
    found = {name: v for name, v in run.data.metrics.items() if "gpu" in name}
    assert found == {
        "system/gpu_0_memory_usage_megabytes": 1048.576,
        "system/gpu_0_utilization_percentage": 87.5,
        "system/gpu_0_power_usage_watts": 250.0,
    }
    assert [point.step for point in seen.history(run, "system/gpu_0_power_usage_watts")] == [1]


def test_the_user_of_a_studys_runs_is_its_owner(store, home, uri):
    store.submit(specs.study(ARMS, name="owned", seeds=1), "anna@lab", None)
    train_all(store, open_study(store, "owned", seeds=1), home)
    sync(store, home, uri)
    seen = Seen(uri, "owned")
    assert {run.data.tags["mlflow.user"] for run in (seen.parent, *seen.runs)} == {"anna@lab"}
    assert {run.info.user_id for run in (seen.parent, *seen.runs)} == {"anna@lab"}


def test_a_study_arrives_complete(store, home, uri, tmp_path):
    name = "complete"
    study_id = open_study(store, name)
    train_all(store, study_id, home)
    assert sync(store, home, uri) > 0
    assert store.count_pending(None) == 0

    seen = Seen(uri, name)
    rows = runs_of(store, study_id)
    seen.check_curves(rows)
    trial = store.trials(study_id)[-1]
    row = trial.runs[1]
    run = seen.run(row)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "laplace b=0.5 seed 1"
    unused = {"epsilon", "nu", "scale", "label_smoothing"}  # by laplace smoothing
    unused |= {"image_size", "loader_workers", "weights"}  # by digits and the small network
    assert run.data.params.keys() == row.config.keys() - unused
    assert all(value == str(row.config[key]) for key, value in run.data.params.items())
    tags = run.data.tags
    assert tags["mlflow.parentRunId"] == seen.parent.info.run_id
    assert (tags["arm"], tags["trial"], tags["seed"]) == ("laplace", str(trial.id), "1")
    assert (tags["selection"], tags["host"], tags["device"]) == ("paper", "here", "cpu")
    assert tags["state"] == "complete" and tags["validation_set"] == "the test set, as in the paper"
    assert tags["version.torch"] == "2.14.1"
    assert tags["mlflow.source.git.commit"] == "0123abc" and tags["git_dirty"] == "true"
    assert tags["weights_sha256"] == "ab" * 32
    curve_names = {"train_loss", "train_acc_percent", "val_loss", "val_acc_percent", "lr", "scale"}
    curve_names |= {"diffusivity", "epoch_seconds"}
    results = {"max_acc_percent": 83.0 + row.id, "mean_acc_percent": 80.0, "test_acc_percent": 81.0}
    assert run.data.metrics.keys() == curve_names | results.keys()
    assert {name: run.data.metrics[name] for name in results} == results
    curve = store.curve(row.id)
    points = seen.history(run, "lr")
    assert [p.timestamp for p in points] == [round(e.recorded_at.timestamp() * 1e3) for e in curve]

    assert seen.files(run) == {"config.json", "curves.csv", "curves.png", "best.safetensors"}
    config = json.loads(seen.read(run, "config.json", tmp_path).read_text())
    assert config == row.config
    table = seen.read(run, "curves.csv", tmp_path).read_text().splitlines()
    assert len(table) == 1 + EPOCHS and table[0].startswith("epoch,train_loss")
    assert seen.read(run, "curves.png", tmp_path).read_bytes().startswith(b"\x89PNG")
    weights = seen.read(run, "best.safetensors", tmp_path).read_bytes()
    assert weights == b"weights of " + row.uid.encode()

    parent = seen.parent
    assert parent.info.status == "FINISHED" and parent.info.run_name == name
    assert parent.data.metrics == {
        "max_acc_percent/sgd": 84.5,  # the mean over seeds, as in the comparison
        "max_acc_percent/laplace": 88.5,
        "mean_acc_percent/sgd": 80.0,
        "mean_acc_percent/laplace": 80.0,
    }
    assert parent.data.tags["best.laplace"] == "88.50 ± 0.71 % (n = 2) b=0.5"
    note = parent.data.tags["mlflow.note.content"]
    assert "| laplace | b=0.5 | 2 trials (2 complete) | 2 |" in note
    assert {"study.toml", "comparison.md", "comparison.csv", "search"} <= seen.files(parent)
    assert seen.files(parent, "search") == {"search/laplace.html"}  # sgd varies nothing
    text = seen.read(parent, "study.toml", tmp_path).read_text()
    assert text == f'name = "{name}"\n'
    table = seen.read(parent, "comparison.csv", tmp_path).read_text().splitlines()
    assert table[0].startswith("study,dataset,") and len(table) == 1 + 2 * 2  # max and mean
    if uri.startswith("sqlite"):
        assert (home / "artifacts").is_dir()


def test_a_report_is_added_to_the_artifacts_of_the_study(store, home, uri, tmp_path):
    study_id = open_study(store, "reported")
    train_all(store, study_id, home)
    directory = report_directory(home, store.study("reported").uid)
    (directory / "figures").mkdir(parents=True)
    (directory / "figures" / "a.svg").write_text("<svg/>")
    for text in ("an older report", "the report"):
        (directory / "index.html").write_text(f"<p>{text}</p>")
        store.announce_study(study_id)
        sync(store, home, uri)
    seen = Seen(uri, "reported")
    assert seen.files(seen.parent, "report") == {"report/index.html", "report/figures"}
    page = seen.read(seen.parent, "report/index.html", tmp_path)
    assert page.read_text() == "<p>the report</p>"


def test_each_condition_has_its_own_best_value(store, home, uri):
    """MLflow does not allow "=" in the name of a metric."""
    spec = specs.study(ARMS, name="conditions", grid={"fraction": [0.5, 0.25]}, seeds=2)
    study = simulate(store, spec, lambda config: 80 + config["fraction"])
    store.announce_study(study.id)
    sync(store, home, uri)
    metrics = Seen(uri, "conditions").parent.data.metrics
    assert {name: value for name, value in metrics.items() if name.startswith("max")} == {
        "max_acc_percent/sgd fraction 0.5": 80.5,
        "max_acc_percent/sgd fraction 0.25": 80.25,
        "max_acc_percent/laplace fraction 0.5": 80.5,
        "max_acc_percent/laplace fraction 0.25": 80.25,
    }


def test_mlflow_has_the_figures_of_the_comparison_with_fresh_seeds(store, home):
    """The value that selected a configuration is not its figure once it is confirmed."""
    spec = specs.study(ARMS, name="confirmed", seeds=2, confirm=2)
    study = simulate(store, spec, lambda config: 90.0 if config["seed"] < 2 else 80.0)
    store.announce_study(study.id)
    sync(store, home, tracking_uri(home))
    seen = Seen(tracking_uri(home), "confirmed")
    (line, _) = (
        line for t in by_selecting_statistic(compare_studies(store, [study])) for line in t.lines
    )
    assert seen.parent.data.metrics["max_acc_percent/sgd"] == line.sample.mean == 80.0
    assert seen.parent.data.tags["best.sgd"] == "80.00 ± 0.00 % (n = 2)"
    compared = [run for run in seen.runs if run.data.tags.get("in_comparison") == "yes"]
    assert {run.data.tags["arm"] for run in compared} == {"sgd", "laplace"}
    assert {run.data.metrics["max_acc_percent"] for run in compared} == {80.0}


def test_a_run_that_leaves_the_comparison_is_no_longer_marked(store, home):
    study_id = open_study(store, "changes", {"laplace": ARMS["laplace"]}, seeds=1)
    mirror = Mirror(tracking_uri(home), home)

    def compared():
        runs = Seen(tracking_uri(home), "changes").runs
        marked = [run for run in runs if run.data.tags.get("in_comparison") == "yes"]
        return [run.info.run_name for run in marked]

    for trial, best in zip(store.trials(study_id), ("b=0.3", "b=0.5"), strict=True):
        train(store, trial.runs[0], home)
        store.finish_trial(trial.id, "complete", 84.0 + trial.id)
        store.announce_study(study_id)
        deliver_pending(store, mirror, study_id)
        assert compared() == [f"laplace {best} seed 0"]


def test_a_run_shows_only_settings_that_its_method_uses(store, home):
    study_id = open_study(store, "params", {"sgd": ARMS["sgd"]}, seeds=1)
    train_all(store, study_id, home)
    sync(store, home, tracking_uri(home))
    (run,) = Seen(tracking_uri(home), "params").runs
    assert not {"b", "mu", "alpha", "layers", "epsilon", "nu"} & run.data.params.keys()
    assert {"method", "momentum", "output", "weight_decay"} <= run.data.params.keys()


@pytest.mark.parametrize(
    "selection, says",
    [("paper", "the test set, as in the paper"), ("holdout", "a tenth of the training set")],
)
def test_a_run_says_what_it_was_validated_on(store, home, selection, says):
    spec = specs.study({"sgd": ARMS["sgd"]}, name="validated", selection=selection)
    simulate(store, spec, lambda config: 90.0)
    sync(store, home, tracking_uri(home))
    (run,) = Seen(tracking_uri(home), "validated").runs
    assert run.data.tags["validation_set"] == says
    assert run.data.metrics["test_acc_percent"] == 88.0  # apart from the validation accuracy
    assert run.data.metrics["max_acc_percent"] == 90.0


def test_the_address_of_the_charts(store, home):
    mirror = Mirror(tracking_uri(home), home)
    study_id = open_study(store, "charted", seeds=1)
    study = store.study("charted")
    assert mirror.charts(study) is None  # nothing is delivered yet
    train(store, runs_of(store, study_id)[0], home)
    sync(store, home, tracking_uri(home))
    experiment = Seen(tracking_uri(home), "charted").experiment
    plain = "/runs?workflowType=machine_learning&compareRunsMode=CHART"
    prepared = f"#/experiments/{experiment.experiment_id}{plain}&viewStateShareKey=ressmooth"
    assert mirror.charts(study) == prepared
    mirror.client.delete_experiment_tag(experiment.experiment_id, view.TAG)
    assert mirror.charts(study) == prepared.partition("&view")[0]


def test_delivering_twice_adds_nothing(store, home, uri):
    """A relay that is killed between sending and marking delivers its rows a second time."""
    study_id = open_study(store, "twice", {"laplace": ARMS["laplace"]}, seeds=1)
    train_all(store, study_id, home)
    rows = store.pending(None, 1000)
    mirror = Mirror(uri, home)
    for _ in range(2):
        mirror.deliver(store, rows)
    Mirror(uri, home).deliver(store, rows)
    seen = Seen(uri, "twice")
    seen.check_curves(runs_of(store, study_id))
    assert len(seen.history(seen.parent, "max_acc_percent/laplace")) == 1


def test_epochs_arrive_as_they_are_recorded(store, home, uri):
    study_id = open_study(store, "live", {"sgd": ARMS["sgd"]}, seeds=1)
    (row,) = runs_of(store, study_id)
    mirror = Mirror(uri, home)
    attempt = store.claim(row.id, ENVIRONMENT)
    for number in (1, 2, 3):
        store.record_epoch(attempt, epoch(number), None)
        assert deliver_pending(store, mirror, study_id)[0] > 0
        seen = Seen(uri, "live")
        run = seen.run(row)
        assert run.info.status == "RUNNING"
        assert [m.step for m in seen.history(run, "lr")] == list(range(1, number + 1))


def test_a_run_says_whose_prefix_it_continues_and_shows_its_whole_curve(store, home):
    study_id = open_study(store, "forked", {"sgd": ARMS["sgd"]}, seeds=2)
    donor, row = runs_of(store, study_id)
    attempt = store.claim(row.id, ENVIRONMENT)
    store.record_fork(attempt, Donor(donor.id, donor.uid, 2, "ab"))
    for number in (1, 2, 3):
        store.record_epoch(attempt, epoch(number), None)
    uri = tracking_uri(home)
    deliver_pending(store, Mirror(uri, home), study_id)
    seen = Seen(uri, "forked")
    run = seen.run(row)
    assert run.data.tags["forked_from"] == str(donor.id)
    assert run.data.tags["forked_at_epoch"] == "2"
    assert [m.step for m in seen.history(run, "lr")] == [1, 2, 3]


def test_many_epochs_are_sent_in_batches(store, home):
    study_id = open_study(store, "long", {"sgd": ARMS["sgd"]}, seeds=1)
    (row,) = runs_of(store, study_id)
    attempt = store.claim(row.id, ENVIRONMENT)
    for number in range(1, 131):  # 8 points each: more than MLflow accepts per request
        store.record_epoch(attempt, epoch(number), None)
    sync(store, home, tracking_uri(home))
    seen = Seen(tracking_uri(home), "long")
    assert [m.step for m in seen.history(seen.run(row), "lr")] == list(range(1, 131))


@pytest.mark.parametrize("state, status", [("pruned", "KILLED"), ("failed", "FAILED")])
def test_the_state_of_a_run_becomes_its_mlflow_status(store, home, state, status):
    study_id = open_study(store, "ends", {"sgd": ARMS["sgd"]}, seeds=1)
    (row,) = runs_of(store, study_id)
    error = "x" * 9000 if state == "failed" else None
    train(store, row, home, state, error=error)
    store.announce_study(study_id)
    sync(store, home, tracking_uri(home))
    seen = Seen(tracking_uri(home), "ends")
    run = seen.run(row)
    assert run.info.status == status
    assert seen.files(run) == {"config.json", "curves.csv", "curves.png"}
    assert run.data.tags.get("error") == ("x" * 5000 if error else None)


@pytest.mark.parametrize("epochs", [0, EPOCHS])
def test_a_retried_run_shows_only_its_new_curve(store, home, epochs):
    """The Store has dropped the earlier points, so MLflow must not show them either."""
    study_id = open_study(store, "retry", {"sgd": ARMS["sgd"]}, seeds=1)
    (row,) = runs_of(store, study_id)
    mirror = Mirror(tracking_uri(home), home)
    train(store, row, home, "failed", epochs=epochs, error="no luck")
    deliver_pending(store, mirror, study_id)
    before = Seen(tracking_uri(home), "retry").run(row)
    assert before.info.status == "FAILED"

    store.reset_failed(study_id)
    time.sleep(0.01)  # another millisecond
    attempt = store.claim(row.id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), None)
    deliver_pending(store, mirror, study_id)
    seen = Seen(tracking_uri(home), "retry")
    run = seen.run(row)
    assert run.info.status == "RUNNING" and not run.data.tags["error"]
    assert [m.step for m in seen.history(run, "train_loss")] == [1]
    assert (run.info.run_id == before.info.run_id) == (
        epochs == 0
    )  # replaced only if it had a curve


def test_a_second_study_of_the_same_name_gets_its_own_experiment(store, home, tmp_path_factory):
    other_home = tmp_path_factory.mktemp("other")
    other = open_store(default_url(other_home))
    for each in (store, other):
        study_id = open_study(each, "taken", {"sgd": ARMS["sgd"]}, seeds=1)
        train_all(each, study_id, home)
        sync(each, home, tracking_uri(home))
    uid = other.study("taken").uid
    other.close()
    assert len(Seen(tracking_uri(home), "taken").runs) == 1
    assert len(Seen(tracking_uri(home), f"taken-{uid[:8]}").runs) == 1


def test_a_run_deleted_in_mlflow_is_recreated_with_its_whole_curve(store, home):
    study_id = open_study(store, "deleted", {"sgd": ARMS["sgd"]}, seeds=1)
    (row,) = runs_of(store, study_id)
    mirror = Mirror(tracking_uri(home), home)
    attempt = store.claim(row.id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), None)
    deliver_pending(store, mirror, study_id)
    seen = Seen(tracking_uri(home), "deleted")
    seen.client.delete_run(seen.run(row).info.run_id)
    store.record_epoch(attempt, epoch(2), None)
    assert deliver_pending(store, mirror, study_id)[1] == []
    seen = Seen(tracking_uri(home), "deleted")
    assert [m.step for m in seen.history(seen.run(row), "lr")] == [1, 2]


def test_rejected_rows_do_not_block_the_others(store, home, uri):
    study_id = open_study(store, "rejected", {"sgd": ARMS["sgd"]}, seeds=1)
    store.add_trial(
        study_id,
        arm="sgd",
        condition={},
        branch="other",
        number_in_branch=0,
        params={},
        configs=[runs_of(store, study_id)[0].config],
        sampler_state={},
    )
    good, bad = runs_of(store, study_id)
    versions = {"not[a]name": "1"}  # MLflow does not allow brackets in names
    store.claim(bad.id, {**ENVIRONMENT, "versions": versions})
    train(store, good, home)
    relay = Relay(store.url, home, uri, study_id)
    relay.start()
    assert relay.finish(60) == 1  # the bad run's claim
    assert "not[a]name" in relay.problem
    assert store.count_pending(study_id) == 0
    seen = Seen(uri, "rejected")
    assert [m.step for m in seen.history(seen.run(good), "lr")] == [1, 2, 3]


def test_a_full_temporary_directory_delays_events_and_loses_none(store, home, monkeypatch):
    study_id = open_study(store, "full", {"sgd": ARMS["sgd"]}, seeds=1)
    train_all(store, study_id, home)
    mirror = Mirror(tracking_uri(home), home)
    monkeypatch.setattr(tempfile, "tempdir", str(home / "missing"))  # no file can be created
    with pytest.raises(StorageError, match="Cannot write files for MLflow .*missing"):
        deliver_pending(store, mirror, study_id)
    assert store.count_pending(study_id) == 3  # the epochs have arrived: they need no file
    with pytest.raises(StorageError) as error:
        sync(store, home, tracking_uri(home))
    assert error.value.exit_code == 6
    monkeypatch.undo()
    assert sync(store, home, tracking_uri(home)) == 3
    seen = Seen(tracking_uri(home), "full")
    assert seen.run(runs_of(store, study_id)[0]).info.status == "FINISHED"


def test_rejected_rows_are_sent_again_when_told_to(store, home):
    study_id = open_study(store, "again", {"sgd": ARMS["sgd"]}, seeds=1)
    train_all(store, study_id, home)
    for row in store.pending(study_id, 100):
        store.reject(row.id, "ENOSPC, by an earlier version")
    done = CliRunner().invoke(main, ["sync", "--retry-rejected", "--home", str(home)])
    assert (
        done.output
        == f"{EPOCHS + 3} rejected events will be sent again\n{EPOCHS + 3} events delivered\n"
    )
    Seen(tracking_uri(home), "again").check_curves(runs_of(store, study_id))


def test_relay_delivers_while_the_study_runs(store, home, uri):
    study_id = open_study(store, "relay")
    relay = Relay(store.url, home, uri, study_id)
    relay.start()
    train_all(store, study_id, home)
    assert relay.finish(60) == 0
    assert relay.problem is None and not relay.is_alive()
    Seen(uri, "relay").check_curves(runs_of(store, study_id))


def test_relay_leaves_other_studies_alone(store, home):
    mine, other = (open_study(store, name, {"sgd": ARMS["sgd"]}, 1) for name in ("mine", "other"))
    for study_id in (mine, other):
        train_all(store, study_id, home)
    relay = Relay(store.url, home, tracking_uri(home), mine)
    relay.start()
    assert relay.finish(60) == 0
    assert store.count_pending(other) == EPOCHS + 3


@pytest.mark.parametrize(
    "fault, says",
    [
        (lambda: nothing(), "refused"),
        (lambda: answering(500), "500"),
        pytest.param(lambda: answering(200, hangs=True), "timed out", marks=pytest.mark.slow),
        (lambda: answering(401, b"who are you?"), "who are you?"),
        (lambda: answering(403, b"Invalid Host header"), "Invalid Host header"),
        (lambda: answering(404, b"no such page"), "no such page"),
        (lambda: answering(400, b"plain HTTP to an HTTPS port"), "HTTPS port"),
        (lambda: answering(200, b"<html>welcome</html>"), "welcome"),
    ],
    ids=["down", "500", "hangs", "401", "403", "404", "400", "other page"],
)
def test_an_unusable_mlflow_loses_nothing(store, home, monkeypatch, fault, says):
    """Rows stay pending, the study is not delayed, and the reason contains no password."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    study_id = open_study(store, "fault")
    with fault() as address:
        uri = f"http://me:s3cret@{address}"
        relay = Relay(store.url, home, uri, study_id)
        relay.start()
        began = time.monotonic()
        train_all(store, study_id, home)
        assert time.monotonic() - began < 5  # delivery does not delay the study
        pending = store.count_pending(study_id)
        assert relay.finish(30) == pending > 0
        assert says in relay.problem and address in relay.problem
        with pytest.raises(TrackingError) as error:
            sync(store, home, uri)
    assert error.value.exit_code == 4
    assert "s3cret" not in relay.problem + str(error.value)
    assert store.count_pending(study_id) == pending


def test_a_server_cannot_send_us_elsewhere(store, home):
    """Neither results nor the log-in reach another server, however the first one redirects."""
    study_id = open_study(store, "redirected", {"sgd": ARMS["sgd"]}, seeds=1)
    train_all(store, study_id, home)
    pending = store.count_pending(study_id)
    with Receiver() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            with Receiver(*[status] * 9, moved_to=elsewhere.address) as first:
                uri = f"http://me:s3cret@127.0.0.1:{first.port}"
                with pytest.raises(TrackingError):
                    sync(store, home, uri)
                assert first.requests
        assert elsewhere.requests == []
    assert store.count_pending(study_id) == pending


def test_an_answer_without_an_end_is_given_up(store, home, monkeypatch):
    monkeypatch.setattr(answers, "MAX_BYTES", 2**20)
    study_id = open_study(store, "endless", {"sgd": ARMS["sgd"]}, seeds=1)
    train_all(store, study_id, home)
    pending = store.count_pending(study_id)
    with endless() as address, pytest.raises(TrackingError, match="more than 1 MiB"):
        sync(store, home, f"http://{address}")
    assert store.count_pending(study_id) == pending


def test_what_others_ask_for_is_not_limited(home, monkeypatch):
    monkeypatch.setattr(answers, "MAX_BYTES", 2**10)
    with answers.limited_answers():
        pass
    with endless() as address, requests.get(f"http://{address}", stream=True) as answer:
        assert len(next(answer.iter_content(2**16))) == 2**16


def test_the_runs_of_a_large_study_are_read_page_by_page(store, home, monkeypatch):
    monkeypatch.setattr(mirror, "MAX_RUNS", 2)
    study_id = open_study(store, "pages")
    train_all(store, study_id, home)
    sync(store, home, tracking_uri(home))
    seen = Seen(tracking_uri(home), "pages")
    tagged = [seen.run(run).data.tags.get(view.COMPARED_TAG) for run in runs_of(store, study_id)]
    assert tagged.count("yes") == 4 and tagged.count(None) == 2


def test_finish_does_not_wait_for_a_server_that_hangs(store, home, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    study_id = open_study(store, "hangs", {"sgd": ARMS["sgd"]}, seeds=1)
    train_all(store, study_id, home)
    with answering(200, hangs=True) as address:
        relay = Relay(store.url, home, f"http://{address}", study_id)
        relay.start()
        began = time.monotonic()
        assert relay.finish(2) == store.count_pending(study_id)
        assert time.monotonic() - began < 5
        assert "longer than 2 s" in relay.problem


@pytest.mark.slow
def test_delivery_resumes_after_an_outage(store, home, server):
    study_id = open_study(store, "outage")
    relay = Relay(store.url, home, server.uri, study_id)
    relay.start()
    rows = runs_of(store, study_id)
    train(store, rows[0], home)
    wait_until(lambda: store.count_pending(study_id) == 0)
    server.stop()
    for row in rows[1:3]:
        train(store, row, home)
    wait_until(lambda: relay.problem is not None)
    assert store.count_pending(study_id) == 2 * (EPOCHS + 2)
    server.start()
    for row in rows[3:]:
        train(store, row, home)
    wait_until(lambda: store.count_pending(study_id) == 0)
    store.announce_study(study_id)
    assert relay.finish(60) == 0 and relay.problem is None
    Seen(server.uri, "outage").check_curves(rows)


def wait_until(condition, seconds=90):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_two_launchers_can_create_the_database_at_once(tmp_path):
    """Neither of them prints any of MLflow's messages."""
    for name in ("first", "second"):
        store = open_store(default_url(tmp_path))
        train_all(store, open_study(store, name, {"sgd": ARMS["sgd"]}, seeds=1), tmp_path)
        store.close()
    code = (
        "import sys; from pathlib import Path; from ressmooth.store import *;"
        "from ressmooth.tracking.relay import Relay;"
        "from ressmooth.tracking.server import tracking_uri;"
        "home = Path(sys.argv[1]); url = default_url(home);"
        "store = Store(url); relay = Relay(url, home, tracking_uri(home),"
        " store.study(sys.argv[2]).id); relay.start(); print(relay.finish(120), relay.problem)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        for name in ("first", "second")
    ]
    assert [process.communicate()[0] for process in started] == ["0 None\n", "0 None\n"]
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"results.db", "mlflow.db", "mlflow.lock", "artifacts", "runs"}


def test_importing_the_package_loads_neither_mlflow_nor_torch_nor_plotly():
    code = (
        "import sys, ressmooth.tracking.relay, ressmooth.tracking.server;"
        "print({'mlflow', 'torch', 'plotly'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_tracking_uri(tmp_path, monkeypatch):
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://somewhere:5000")
    assert tracking_uri(tmp_path) == "http://somewhere:5000"


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:p%40ss/w@host:5000",
        "postgresql+psycopg://me:p@ss:w@host/mlflow",
        "https://me:p ss@host",
    ],
)
def test_passwords_are_redacted(uri):
    password = uri.partition("me:")[2].rpartition("@")[0]
    shown = redact(f"API request to {uri}/api failed: {password}", uri)
    assert password not in shown and "host" in shown


def test_check_returns_the_address_of_mlflow(home, tmp_path_factory):
    assert check(home) == f"sqlite:///{home}/mlflow.db, 0 studies"
    fresh = tmp_path_factory.mktemp("fresh")
    assert "does not exist yet" in check(fresh)
    assert list(fresh.iterdir()) == []


def test_ui_refers_to_a_server_that_is_configured(home, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@host:5000")
    with pytest.raises(ConfigError, match=r"http://\*\*\*@host:5000"):
        serve(home, 5000, print)
