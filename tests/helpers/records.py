"""Studies recorded as a launcher and its workers would record them, without training."""

import socket
import time
import urllib.request
from dataclasses import replace

from helpers.specs import study as make_spec

from ressmooth.config import METRIC, Epoch, parse
from ressmooth.search.planner import Planner

EPOCHS = 3
ENVIRONMENT = {
    "host": "here",
    "device": "cpu",
    "threads": 1,
    "versions": {"torch": "2.14.1"},
    "git_commit": "0123abc+",
}
ARMS = {
    "sgd": {"method": "mse"},
    "laplace": {"method": "smoothing", "distribution": "laplace", "b": {"grid": [0.3, 0.5]}},
}


def epoch(number, accuracy=90.0):
    return Epoch(
        epoch=number,
        train_loss=1 / number,
        train_acc=accuracy,
        val_loss=None if number == 1 else 1 / number,
        val_acc=None if number == 1 else accuracy + number,
        lr=0.1,
        scale=0.5,
        diffusivity=0.25,
        seconds=1.5,
    )


def open_study(store, name, arms=ARMS, seeds=2):
    """Open a study whose trials all wait. Return its id."""
    spec = make_spec(arms, seeds=seeds, name=name, epochs=EPOCHS)
    study_id = store.open_study(spec)
    for branch in spec.branches:
        configs = [parse({**branch.values, "seed": s}).model_dump() for s in range(seeds)]
        store.add_trial(
            study_id,
            arm=branch.arm,
            condition=spec.condition(configs[0]),
            branch=branch.key,
            number_in_branch=0,
            params=branch.cell,
            configs=configs,
            sampler_state={},
        )
    return study_id


def train(store, run, home, state="complete", epochs=EPOCHS, **outcome):
    """Record a run as a worker does."""
    attempt = store.claim(run.id, ENVIRONMENT)
    for number in range(1, epochs + 1):
        store.record_epoch(attempt, epoch(number, 80.0 + run.id), None)
    if state == "complete":
        weights = home / "runs" / run.uid / "best.safetensors"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(b"weights of " + run.uid.encode())
        outcome = {"mean_acc": 80.0, "test_acc": 81.0, "weights_sha256": "ab" * 32, **outcome}
    store.finish_run(attempt, state, max_acc=83.0 + run.id, seconds=4.5, **outcome)


def train_all(store, study_id, home):
    for trial in store.trials(study_id):
        for run in trial.runs:
            train(store, run, home)
        store.finish_trial(trial.id, "complete", 84.0 + trial.id)
    store.announce_study(study_id)


def simulate(store, spec, accuracy, epochs=2):
    """Record a whole study, search and confirmation. Return its row.

    `accuracy` returns a run's max accuracy from its config, or None to make the run fail. The mean
    accuracy is one point lower and the test accuracy two.
    """
    planner = Planner(store, store.open_study(spec), spec)
    while (run := planner.next()) is not None:
        attempt = store.claim(run.id, ENVIRONMENT)
        max_acc = accuracy(run.config)
        for number in range(1, epochs + 1):
            store.record_epoch(attempt, epoch(number, max_acc or 50.0), None)
        if max_acc is None:
            store.finish_run(attempt, "failed", error="diverged at epoch 2")
        else:
            outcome = {"max_acc": max_acc, "mean_acc": max_acc - 1, "test_acc": max_acc - 2}
            store.finish_run(attempt, "complete", seconds=3.0, **outcome)
        planner.run_ended(run)
    return store.study(spec.name)


def simulate_metric(store, spec, value):
    """Record a whole study by another metric than accuracy. Return its row.

    `value` returns the metric at a run's best epoch. The mean over the last epochs is 0.01 higher
    and the test figure 0.02. Every accuracy is 50 %.
    """
    planner = Planner(store, store.open_study(spec), spec)
    column = METRIC[spec.metric].column
    while (run := planner.next()) is not None:
        attempt, best = store.claim(run.id, ENVIRONMENT), value(run.config)
        for number in (1, 2):
            store.record_epoch(attempt, replace(epoch(number, 50.0), **{column: best}), None)
        metrics = {spec.metric: {"max": best, "mean": best + 0.01, "test": best + 0.02}}
        accuracies = dict.fromkeys(("max_acc", "mean_acc", "test_acc"), 50.0)
        store.finish_run(attempt, "complete", seconds=3.0, metrics=metrics, **accuracies)
        planner.run_ended(run)
    return store.study(spec.name)


def runs_of(store, study_id):
    return [run for trial in store.trials(study_id) for run in trial.runs]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(address, process, seconds=180):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(address, timeout=2)
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"nothing at {address} after {seconds} s")
