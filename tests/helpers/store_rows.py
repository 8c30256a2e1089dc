"""What the tests of the Store put into it, also from other processes."""

import logging
from dataclasses import replace

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
    """A waiting run of a study of its own."""
    study_id = store.open_study(spec())
    number = len(store.trials(study_id))
    return add_trial(store, study_id, number=number).runs[0].id


def epoch(number, **metrics):
    return Epoch(epoch=number, **{**METRICS, **metrics})


def record(store, epochs=3):
    """The attempt that has recorded the first epochs of a new run."""
    attempt = store.claim(add_run(store), ENVIRONMENT)
    for number in range(1, epochs + 1):
        store.record_epoch(attempt, epoch(number), None)
    return attempt


# In other processes: each waits for the others, then they go at the same moment.


class Problems(logging.Handler):
    """Keeps every warning: a lock that was waited for in vain shows here, not as an error."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def meet(barrier):
    global everybody
    everybody = barrier


def open_at_once(url):
    everybody.wait(60)
    store = open_store(url)
    try:
        return store.open_study(spec())
    finally:
        store.close()


def hold_at_once(url, study_ids):
    """Those that this process got to hold, and the warnings."""
    problems = Problems()
    logging.getLogger("ressmooth").addHandler(problems)
    store, held = open_store(url, create=False), []
    for study_id in study_ids:
        everybody.wait(60)
        try:
            store.acquire(study_id, Holder.here())
            held.append(study_id)
        except StudyBusy:
            pass
    store.close()
    return held, problems.messages


def train_at_once(url, run_ids, epochs):
    """Short runs, one after the other; the warnings they caused."""
    problems = Problems()
    logging.getLogger("ressmooth").addHandler(problems)
    everybody.wait(60)
    store = open_store(url, create=False)
    for run_id in run_ids:
        attempt = store.claim(run_id, ENVIRONMENT)
        for number in range(1, epochs + 1):
            store.record_epoch(attempt, epoch(number, val_acc=run_id + number), None)
        store.finish_run(attempt, "complete", max_acc=run_id + epochs)
    store.close()
    return problems.messages
