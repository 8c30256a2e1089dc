"""A study whose runs train nothing, so that only its overhead is timed."""

from collections.abc import Sequence

from ressmooth.config import METRICS, Epoch
from ressmooth.search.planner import Planner
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import Attempt, RunRow, State, open_store

ENVIRONMENT = {"host": "bench", "device": "cpu", "threads": 1, "versions": {}, "git_commit": None}
SPACE = {
    "b": {"low": 0.05, "high": 2.0, "log": True},
    "weight_decay": {"low": 1e-5, "high": 1e-2, "log": True},
    "mu": {"low": 0.5, "high": 1.0},
    "alpha": {"low": 0.1, "high": 4.0, "log": True},
}
FIXED: dict[str, dict[str, str]] = {"smooth": {}, "sgd": {"method": "mse"}}  # by arm


def new_planner(
    url: str, trials: int, arms: Sequence[str] = ("smooth",), seeds: int = 1
) -> Planner:
    """Return the planner of a new study in a new store."""
    store, spec = open_store(url), _spec(trials, arms, seeds)
    return Planner(store, store.open_study(spec), spec)


def _spec(trials: int, arms: Sequence[str], seeds: int) -> StudySpec:
    return read_stored(
        {
            "name": "bench",
            "description": "",
            "seeds": seeds,
            "settings": {"epochs": 1, "dataset": "fashion_mnist", "model": "resnet20"},
            "search": {"sampler": "random", "trials": trials},
            "grid": {},
            "arms": {arm: {"fixed": FIXED[arm], "grid": {}, "space": SPACE} for arm in arms},
            "resources": {},
        }
    )


def claim_next(planner: Planner) -> tuple[RunRow, Attempt]:
    run = planner.next()
    assert run is not None
    return run, planner.store.claim(run.id, ENVIRONMENT)


def idle_epoch(number: int) -> Epoch:
    return Epoch(number, **dict.fromkeys(METRICS, 0.5))


def finish(planner: Planner, run: RunRow, attempt: Attempt, accuracy: float) -> None:
    planner.store.finish_run(attempt, State.COMPLETE, max_acc=accuracy, mean_acc=accuracy)
    planner.run_ended(run)
