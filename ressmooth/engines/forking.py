"""Begin a run where another run of its seed has been already, and leave checkpoints for others.

Such a run records the epochs of the other one as its own, one by one, as if it had trained them. So
pruners see them, and a kill in between loses nothing. If no intact checkpoint is found, the run
trains its prefix itself.
"""

import json
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ressmooth import paths
from ressmooth.config import COSTS
from ressmooth.errors import CheckpointError
from ressmooth.search.forks import Forks, forks
from ressmooth.spec import read_stored
from ressmooth.store import Attempt, RunRow, Store
from ressmooth.training import checkpoint
from ressmooth.training.trainer import Trainer

# What an epoch costs a run if another one has trained it
FREE: dict[str, Any] = {**dict.fromkeys(COSTS), "seconds": 0.0}


def forks_in(spec: dict[str, Any], run: RunRow) -> set[int]:
    """Return the epochs in a run's prefix after which other runs of its study fork."""
    if run.prefix is None or run.plain_epochs is None:
        return set()
    found = _forks(json.dumps(spec)).get(run.prefix, set())
    return {epoch for epoch in found if epoch <= run.plain_epochs}


@lru_cache(maxsize=8)
def _forks(spec: str) -> Forks:
    # a study without a cutoff need not be read, which takes long if it is large
    return forks(read_stored(json.loads(spec))) if '"cutoff"' in spec else {}


def fork(
    trainer: Trainer, store: Store, attempt: Attempt, home: Path, epochs: Collection[int]
) -> None:
    """Restore the longest intact prefix that another run has left. Record whose it is."""
    run = store.run(attempt.run_id)
    for donor in store.donors(run, epochs):
        path = paths.fork(paths.run_directory(home, donor.uid), donor.epoch)
        try:
            state = checkpoint.load(path, donor.checkpoint_sha256)
            trainer.restore({**state, "config": run.config})
        except CheckpointError:
            continue
        trainer.curve = [replace(epoch, **FREE) for epoch in trainer.curve]
        store.record_fork(attempt, donor)
        return
    store.record_fork(attempt, None)
