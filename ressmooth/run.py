"""Execute one run: train, keep a checkpoint and a row per epoch, end in exactly one state.

This is the only place where an exception becomes a state. The checkpoint is on the disk before its
epoch is in the Store, so what the Store knows of can always be gone on with.
"""

import os
import platform
import subprocess
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save as safetensors

from ressmooth import checkpoint, places
from ressmooth.config import RunConfig, parse
from ressmooth.curves import Epoch
from ressmooth.errors import (
    CheckpointError,
    ConfigError,
    RessmoothError,
    StaleAttempt,
    StorageError,
    StoreCorrupt,
    StoreUnreachable,
)
from ressmooth.store import Attempt, Store
from ressmooth.train import Result, Trainer

DRIVER = Path("/proc/driver/nvidia")
LONGEST = 8_000  # characters of an error that are kept

Verdict = Literal["go on", "prune", "stop"]
Recorded = tuple[Epoch, float]  # epoch, best accuracy so far
Hear = Callable[[Epoch, float], Verdict]


def execute(store: Store, run_id: int, home: Path, hear: Hear) -> str:
    """Train `run_id` to its end or until `hear` says otherwise; its state afterwards."""
    steps = epochs(store, run_id, home)
    try:
        recorded = next(steps)
        while True:
            recorded = steps.send(hear(*recorded))
    except StopIteration as end:
        return str(end.value)


def epochs(store: Store, run_id: int, home: Path) -> Generator[Recorded, Verdict, str]:
    """Train `run_id` epoch by epoch, each recorded before it is yielded; the state at the end."""
    row = store.run(run_id)
    config = parse(row.config)
    if config.device != "cpu":
        check_gpu()
    directory = places.of_run(home, row.uid)
    places.make_directory(directory)
    attempt = store.claim(run_id, facts(config))
    try:
        trainer = Trainer(config, home / "data")
        _resume(trainer, store, run_id, directory)
        verdict = yield from _train(trainer, store, attempt, directory)
        if verdict == "stop":
            store.release_run(run_id)
            return "waiting"
        if verdict == "prune":
            best = _best(trainer.curve)
            store.finish_run(attempt, "pruned", max_acc=best, seconds=_seconds(trainer))
            places.clear(directory)
            return "pruned"
        return _finish(store, attempt, trainer.result(), trainer, directory)
    except (StaleAttempt, StoreUnreachable, StoreCorrupt, StorageError):
        raise  # not the run's fault: it stays to be gone on with
    except torch.AcceleratorError:
        raise  # the device is lost to this process: another one tries again
    except Exception as error:
        store.finish_run(attempt, "failed", error=_reason(error))
        return "failed"


def _train(
    trainer: Trainer, store: Store, attempt: Attempt, directory: Path
) -> Generator[Recorded, Verdict, Verdict]:
    """Epoch after epoch; the word that ended it, or "go on" at the end of the run."""
    # the launcher may have died before it judged the last epoch, so a resumed run asks again
    epoch = trainer.curve[-1] if trainer.curve else trainer.train_epoch()
    while epoch is not None:
        if epoch.epoch > attempt.last_epoch:
            _record(store, attempt, trainer, epoch, directory)
        verdict = yield epoch, _best(trainer.curve)
        if verdict != "go on":
            return verdict
        epoch = trainer.train_epoch()
    return "go on"


def _best(curve: Sequence[Epoch]) -> float:
    return max((epoch.val_acc for epoch in curve if epoch.val_acc is not None), default=0.0)


def _resume(trainer: Trainer, store: Store, run_id: int, directory: Path) -> None:
    """Go back to the newest checkpoint that is whole; without one, start anew."""
    for epoch, sha256 in store.checkpoints(run_id):
        path = places.checkpoint(directory, epoch)
        try:
            trainer.restore(checkpoint.load(path, sha256))
            return
        except CheckpointError:
            if path.exists():
                os.replace(path, path.with_suffix(".corrupt"))


def _record(
    store: Store, attempt: Attempt, trainer: Trainer, epoch: Epoch, directory: Path
) -> None:
    sha256 = checkpoint.save(places.checkpoint(directory, epoch.epoch), trainer.state())
    store.record_epoch(attempt, asdict(epoch), sha256)
    # two are kept: if the newest turns out damaged, one epoch is lost
    places.checkpoint(directory, epoch.epoch - 2).unlink(missing_ok=True)


def _finish(
    store: Store, attempt: Attempt, result: Result, trainer: Trainer, directory: Path
) -> str:
    if result.diverged_at is not None:
        store.finish_run(attempt, "failed", error=result.outcome, seconds=_seconds(trainer))
        return "failed"
    weights_sha256 = checkpoint.write(directory / places.WEIGHTS, best_weights(trainer))
    store.finish_run(
        attempt,
        "complete",
        max_acc=result.max_acc,
        mean_acc=result.mean_acc,
        test_acc=result.test_acc,
        weights_sha256=weights_sha256,
        seconds=_seconds(trainer),
    )
    places.clear(directory)
    return "complete"


def best_weights(trainer: Trainer) -> bytes:
    """The weights of the best epoch, as a safetensors file."""
    return safetensors({name: w.contiguous() for name, w in trainer.best_weights.items()})


def _seconds(trainer: Trainer) -> float:
    return sum(epoch.seconds for epoch in trainer.curve)


def _reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out of memory"
    if isinstance(error, RessmoothError):
        return str(error)
    text = "".join(traceback.format_exception(error, limit=-4))
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def check_gpu() -> None:
    """Refuse a CPU in the place of a GPU: for torch, a driver that is too old is none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given and DRIVER.exists() and not torch.cuda.is_available():
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES = {given}: there is a driver, but torch {torch.__version__} "
            f"sees no GPU; is the driver new enough for CUDA {torch.version.cuda}? See nvidia-smi"
        )


def facts(config: RunConfig) -> dict[str, Any]:
    """Where and with what a run is trained."""
    cuda = config.device != "cpu" and torch.cuda.is_available()
    return {
        "host": platform.node(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "threads": config.threads or torch.get_num_threads(),
        "versions": _versions(),
        "git_commit": _git_commit(),
    }


@cache
def _versions() -> dict[str, str]:
    packages = ("ressmooth", "torch", "torchvision", "numpy", "optuna")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


@cache
def _git_commit() -> str | None:
    """Of the checkout that this package runs from, with a + if it has local changes."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--dirty=+"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
