"""Studies as launcher and workers would have recorded them, without training."""

import socket
import time
import urllib.request

from helpers.specs import study as make_spec

from ressmooth.config import Epoch, parse
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
    """A study with its trials waiting; its id."""
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
    """What a worker writes of a run."""
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


def play(store, spec, accuracy, epochs=2):
    """A whole study, search and confirmation; a run's max accuracy is what `accuracy` says.

    None makes the run fail. Its mean accuracy is a point lower, that on the test set two.
    """
    planner = Planner(store, store.open_study(spec), spec)
    while (run := planner.next()) is not None:
        attempt = store.claim(run.id, ENVIRONMENT)
        figure = accuracy(run.config)
        for number in range(1, epochs + 1):
            store.record_epoch(attempt, epoch(number, figure or 50.0), None)
        if figure is None:
            store.finish_run(attempt, "failed", error="diverged at epoch 2")
        else:
            outcome = {"max_acc": figure, "mean_acc": figure - 1, "test_acc": figure - 2}
            store.finish_run(attempt, "complete", seconds=3.0, **outcome)
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
