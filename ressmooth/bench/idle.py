"""Studies that train nothing, to see what is left of the time."""

from collections.abc import Sequence
from typing import Any

from ressmooth.dispatch import Dispatcher
from ressmooth.spec import StudySpec
from ressmooth.store import open_store

FACTS = {"host": "bench", "device": "cpu", "threads": 1, "versions": {}, "git_commit": None}
METRICS = ("train_loss", "train_acc", "val_loss", "val_acc", "lr", "scale", "diffusivity")
SPACE = {
    "b": {"low": 0.05, "high": 2.0, "log": True},
    "weight_decay": {"low": 1e-5, "high": 1e-2, "log": True},
    "mu": {"low": 0.5, "high": 1.0},
    "alpha": {"low": 0.1, "high": 4.0, "log": True},
}


def _spec(trials: int, arms: Sequence[str], seeds: int) -> StudySpec:
    fixed = {"smooth": {}, "sgd": {"method": "mse"}}
    return StudySpec.from_dict(
        {
            "name": "bench",
            "description": "",
            "seeds": seeds,
            "settings": {"epochs": 1, "dataset": "fashion_mnist", "model": "resnet20"},
            "search": {"sampler": "random", "trials": trials},
            "grid": {},
            "arms": {a: {"fixed": fixed[a], "grid": {}, "space": SPACE} for a in arms},
            "resources": {},
        }
    )


def new_dispatcher(
    url: str, trials: int, arms: Sequence[str] = ("smooth",), seeds: int = 1
) -> Dispatcher:
    """Of a new study in a new store."""
    store, spec = open_store(url), _spec(trials, arms, seeds)
    return Dispatcher(store, store.open_study(spec, ""), spec)


def epoch_fields(number: int) -> dict[str, Any]:
    return {"epoch": number, "seconds": 1.0, **dict.fromkeys(METRICS, 0.5)}
