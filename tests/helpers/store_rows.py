"""Rows for tests of the Store, also written from other processes."""

import logging
from dataclasses import replace

from sqlalchemy import text

from ressmooth.config import Epoch
from ressmooth.errors import StudyBusy
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import Holder, open_store

METRICS = {
    "train_loss": 0.5,
    "train_acc": 80.0,
    "val_loss": 0.625,
    "val_acc": 77.5,
    "lr": 0.1,
    "scale": 0.25,
    "diffusivity": 0.75,
    "seconds": 1.5,
}
ENVIRONMENT = {
    "host": "box",
    "device": "cpu",
    "threads": 1,
    "versions": {"torch": "2.14.1"},
    "git_commit": "abba39b",
}


def spec(text="", **changes) -> StudySpec:
    tree = {
        "name": "demo",
        "description": "",
        "seeds": 2,
        "settings": {"dataset": "digits"},
        "search": {},
        "grid": {},
        "arms": {"sgd": {"fixed": {"method": "mse"}, "grid": {}, "space": {}}},
        "resources": {},
    }
    return replace(read_stored({**tree, **changes}), text=text)


def config(seed, **values):
    settings = {"dataset": "digits", "model": "small", "fraction": 0.5, "batch_size": 64}
    return {**settings, "device": "auto", "threads": 0, "seed": seed, **values}


def add_trial(
    store, study_id, *, branch="sgd", number=0, seeds=1, params=None, condition=None, **values
):
    return store.add_trial(
        study_id,
        arm=branch.partition(" ")[0],
        condition=condition or {},
        branch=branch,
        number_in_branch=number,
        params=params or {},
        configs=[config(seed, **values) for seed in range(seeds)],
        sampler_state={},
    )


def add_run(store) -> int:
    """Add a waiting run and return its id."""
    study_id = store.open_study(spec())
    number = len(store.trials(study_id))
    return add_trial(store, study_id, number=number).runs[0].id


def epoch(number, **metrics):
    return Epoch(epoch=number, **{**METRICS, **metrics})


def record(store, epochs=3):
    """Record the first epochs of a new run and return the attempt."""
    attempt = store.claim(add_run(store), ENVIRONMENT)
    for number in range(1, epochs + 1):
        store.record_epoch(attempt, epoch(number), None)
    return attempt


def set_state(store, study_id, state, problem=None):
    """Change a study's state, whoever runs it."""
    values = {"study": study_id, "state": state, "problem": problem}
    statement = "UPDATE study SET state = :state, problem = :problem WHERE id = :study"
    with store.database.engine.begin() as connection:
        connection.execute(text(statement), values)


# For other processes, which wait for each other and then act at the same moment.


class Warnings(logging.Handler):
    """Collects warnings. A lock that was not obtained in time is one, not an error."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def set_barrier(shared):
    global barrier
    barrier = shared


def open_at_once(url):
    barrier.wait(60)
    store = open_store(url)
    try:
        return store.open_study(spec())
    finally:
        store.close()


def acquire_at_once(url, study_ids):
    """Return the studies that this process acquired, and the warnings."""
    warnings = Warnings()
    logging.getLogger("ressmooth").addHandler(warnings)
    store, held = open_store(url, create=False), []
    for study_id in study_ids:
        barrier.wait(60)
        try:
            store.acquire(study_id, Holder.here())
            held.append(study_id)
        except StudyBusy:
            pass
    store.close()
    return held, warnings.messages


def train_at_once(url, run_ids, epochs):
    """Record short runs one after the other. Return the warnings."""
    warnings = Warnings()
    logging.getLogger("ressmooth").addHandler(warnings)
    barrier.wait(60)
    store = open_store(url, create=False)
    for run_id in run_ids:
        attempt = store.claim(run_id, ENVIRONMENT)
        for number in range(1, epochs + 1):
            store.record_epoch(attempt, epoch(number, val_acc=run_id + number), None)
        store.finish_run(attempt, "complete", max_acc=run_id + epochs)
    store.close()
    return warnings.messages


def command_at_once(url, name, study_ids, holder=None):
    """Change one study after another. Return the states, or for a holder's writes the warnings."""
    warnings = Warnings()
    logging.getLogger("ressmooth").addHandler(warnings)
    store = open_store(url, create=False)
    store.holder = holder
    change = {
        "stop": store.stop_study,
        "resume": store.resume_study,
        "heartbeat": lambda study_id: store.heartbeat(study_id, holder, 1.0),
        "begin": lambda study_id: store.begin(study_id, "mia@box"),
        "confirm_stop": store.confirm_stop,
    }[name]
    states = []
    for study_id in study_ids:
        barrier.wait(60)
        states += [change(study_id) for _ in range(5 if holder else 1)]
    store.close()
    return warnings.messages if holder else states
