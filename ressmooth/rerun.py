"""Train a recorded run again from its stored configuration, and compare bit for bit."""

from dataclasses import asdict
from pathlib import Path

from ressmooth.checkpoint import sha256
from ressmooth.config import parse
from ressmooth.errors import ConfigError
from ressmooth.run import best_weights
from ressmooth.store import Store
from ressmooth.train import Trainer

UNTIMED = ("seconds", "recorded_at", "checkpoint_sha256")  # differ between any two trainings


def rerun(store: Store, run_id: int, home: Path) -> list[str]:
    """What came out otherwise; nothing if the result is identical."""
    run = store.run(run_id)
    if run.state != "complete":
        raise ConfigError(f"run {run_id} is {run.state}; only a complete run can be compared")
    trainer = Trainer(parse(run.config), home / "data")
    while trainer.train_epoch() is not None:
        pass
    differing = []
    stored = [asdict(epoch) for epoch in store.curve(run_id)]
    for before, after in zip(stored, map(asdict, trainer.curve), strict=False):
        differing += [
            f"epoch {before['epoch']}: {key} was {before[key]}, is {after.get(key)}"
            for key in before
            if key not in UNTIMED and before[key] != after.get(key)
        ]
    if len(stored) != len(trainer.curve):
        differing.append(f"{len(stored)} epochs before, {len(trainer.curve)} now")
    if sha256(best_weights(trainer)) != run.weights_sha256:
        differing.append("the best weights")
    return differing
