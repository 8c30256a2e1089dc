"""A study whose runs train nothing, so that only its overhead is timed."""

from itertools import islice

from ressmooth.config import METRICS, Epoch
from ressmooth.search.planner import Planner
from ressmooth.spec import read_stored
from ressmooth.store import Attempt, RunRow, State, open_store

ENVIRONMENT = {"host": "bench", "device": "cpu", "threads": 1, "versions": {}, "git_commit": None}
SPACE = {
    "b": {"low": 0.05, "high": 2.0, "log": True},
    "weight_decay": {"low": 1e-5, "high": 1e-2, "log": True},
    "mu": {"low": 0.5, "high": 1.0},
    "alpha": {"low": 0.1, "high": 4.0, "log": True},
}
ARMS = {
    arm: {"fixed": {"method": method}, "grid": {}, "space": SPACE}
    for arm, method in (("smooth", "smoothing"), ("sgd", "mse"))
}
MANY = 100_000  # trials, more than are timed
IDLE_EPOCH = Epoch(1, **dict.fromkeys(METRICS, 0.5))


def new_planner(url: str, trials: int = MANY, *, arms: int = 1, seeds: int = 1) -> Planner:
    """Return the planner of a new study in a new store."""
    settings = {"epochs": 1, "dataset": "fashion_mnist", "model": "resnet20"}
    study = {"name": "bench", "seeds": seeds, "settings": settings}
    search = {"sampler": "random", "trials": trials}
    spec = read_stored({**study, "search": search, "arms": dict(islice(ARMS.items(), arms))})
    store = open_store(url)
    return Planner(store, store.open_study(spec), spec)


def claim_next(planner: Planner) -> tuple[RunRow, Attempt]:
    run = next(iter(planner.next, None))
    return run, planner.store.claim(run.id, ENVIRONMENT)


def finish(planner: Planner, run: RunRow, attempt: Attempt, accuracy: float) -> None:
    planner.store.finish_run(attempt, State.COMPLETE, max_acc=accuracy, mean_acc=accuracy)
    planner.run_ended(run)
