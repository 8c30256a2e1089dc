"""Execute one run: train, keep a checkpoint and a row per epoch, end in exactly one state.

This is the only place where an exception becomes a state. The checkpoint is on the disk before its
epoch is in the Store, so every recorded epoch can be resumed from.
"""

import os
import platform
import subprocess
import traceback
from collections.abc import Callable, Generator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as encode_weights

from ressmooth import paths
from ressmooth.config import METRICS, Epoch, RunConfig, parse
from ressmooth.engines import Decision
from ressmooth.errors import (
    CheckpointError,
    ConfigError,
    RessmoothError,
    StaleAttempt,
    StorageError,
    StoreCorrupt,
    StoreUnreachable,
)
from ressmooth.store import Attempt, State, Store
from ressmooth.training import checkpoint
from ressmooth.training.trainer import Trainer

DRIVER = Path("/proc/driver/nvidia")
MAX_ERROR = 8_000  # characters of an error that are kept

Recorded = tuple[Epoch, float]  # an epoch, and the best accuracy so far
Report = Callable[[Epoch, float], Decision]


def execute(store: Store, run_id: int, home: Path, report: Report) -> State:
    """Train a run until it is finished or `report` decides otherwise. Return the run's state."""
    steps = epochs(store, run_id, home)
    try:
        recorded = next(steps)
        while True:
            recorded = steps.send(report(*recorded))
    except StopIteration as end:
        return State(end.value)


def epochs(store: Store, run_id: int, home: Path) -> Generator[Recorded, Decision, State]:
    """Train a run epoch by epoch. Yield each epoch once it is recorded. Return the run's state."""
    row = store.run(run_id)
    config = parse(row.config)
    if config.device != "cpu":
        check_gpu()
    directory = paths.run_directory(home, row.uid)
    paths.make_directory(directory)
    attempt = store.claim(run_id, environment(config))
    try:
        trainer = Trainer(config, home / "data")
        _resume(trainer, store, run_id, directory)
        decision = yield from _train(trainer, store, attempt, directory)
        if decision == Decision.STOP:
            store.release_run(run_id)
            return State.WAITING
        if decision == Decision.PRUNE:
            best = _best(trainer.curve)
            store.finish_run(attempt, State.PRUNED, max_acc=best, seconds=_seconds(trainer))
            paths.remove_checkpoints(directory)
            return State.PRUNED
        return _finish(store, attempt, trainer, directory)
    except (StaleAttempt, StoreUnreachable, StoreCorrupt, StorageError):
        raise  # not the run's fault: it can be resumed
    except torch.AcceleratorError:
        raise  # this process has lost the device: another one retries
    except Exception as error:
        store.finish_run(attempt, State.FAILED, error=_reason(error))
        return State.FAILED


def _train(
    trainer: Trainer, store: Store, attempt: Attempt, directory: Path
) -> Generator[Recorded, Decision, Decision]:
    """Train epoch after epoch. Return the decision that ended it, CONTINUE at the run's end."""
    # the launcher may have died before it decided about the last epoch: report that one again
    epoch = trainer.curve[-1] if trainer.curve else trainer.train_epoch()
    while epoch is not None:
        if epoch.epoch > attempt.last_epoch:
            _record(store, attempt, trainer, epoch, directory)
        decision = yield epoch, _best(trainer.curve)
        if decision != Decision.CONTINUE:
            return decision
        epoch = trainer.train_epoch()
    return Decision.CONTINUE


def _best(curve: Sequence[Epoch]) -> float:
    return max((epoch.val_acc for epoch in curve if epoch.val_acc is not None), default=0.0)


def _resume(trainer: Trainer, store: Store, run_id: int, directory: Path) -> None:
    """Restore the newest intact checkpoint. Start from the beginning if there is none."""
    for epoch, sha256 in store.checkpoints(run_id):
        path = paths.checkpoint(directory, epoch)
        try:
            trainer.restore(checkpoint.load(path, sha256))
            return
        except CheckpointError:
            if path.exists():
                os.replace(path, path.with_suffix(".corrupt"))


def _record(
    store: Store, attempt: Attempt, trainer: Trainer, epoch: Epoch, directory: Path
) -> None:
    sha256 = checkpoint.save(paths.checkpoint(directory, epoch.epoch), trainer.state())
    store.record_epoch(attempt, epoch, sha256)
    # two are kept: if the newest turns out damaged, one epoch is lost
    paths.checkpoint(directory, epoch.epoch - 2).unlink(missing_ok=True)


def _finish(store: Store, attempt: Attempt, trainer: Trainer, directory: Path) -> State:
    result = trainer.result()
    if result.diverged_at is not None:
        store.finish_run(attempt, State.FAILED, error=result.outcome, seconds=_seconds(trainer))
        return State.FAILED
    weights_sha256 = checkpoint.write(directory / paths.WEIGHTS, best_weights(trainer))
    store.finish_run(
        attempt,
        State.COMPLETE,
        max_acc=result.max_acc,
        mean_acc=result.mean_acc,
        test_acc=result.test_acc,
        weights_sha256=weights_sha256,
        seconds=_seconds(trainer),
    )
    paths.remove_checkpoints(directory)
    return State.COMPLETE


def best_weights(trainer: Trainer) -> bytes:
    """Return the weights of the best epoch as a safetensors file."""
    return encode_weights({name: w.contiguous() for name, w in trainer.best_weights.items()})


def _seconds(trainer: Trainer) -> float:
    return sum(epoch.seconds for epoch in trainer.curve)


def _reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out of memory"
    if isinstance(error, RessmoothError):
        return str(error)
    text = "".join(traceback.format_exception(error, limit=-4))
    if len(text) <= MAX_ERROR:
        return text
    return f"{text[: MAX_ERROR // 2]} ... {text[-MAX_ERROR // 2 :]}"


def check_gpu() -> None:
    """Refuse to train on a CPU in place of a GPU. torch sees no GPU if the driver is too old."""
    assigned = os.environ.get("CUDA_VISIBLE_DEVICES")
    if assigned and DRIVER.exists() and not torch.cuda.is_available():
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES = {assigned}: there is a driver, but torch {torch.__version__} "
            f"sees no GPU; is the driver new enough for CUDA {torch.version.cuda}? See nvidia-smi"
        )


def environment(config: RunConfig) -> dict[str, Any]:
    """Return the machine and the versions that a run is trained with."""
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
    """Return the commit of the checkout this package runs from, with a + for local changes."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--dirty=+"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def rerun(store: Store, run_id: int, home: Path) -> list[str]:
    """Train a recorded run again. Return what differs, bit for bit."""
    run = store.run(run_id)
    if run.state != State.COMPLETE:
        raise ConfigError(f"run {run_id} is {run.state}; only a complete run can be compared")
    trainer = Trainer(parse(run.config), home / "data")
    while trainer.train_epoch() is not None:
        pass
    stored = store.curve(run_id)
    differing = [
        f"epoch {before.epoch}: {name} was {getattr(before, name)}, is {getattr(after, name)}"
        for before, after in zip(stored, trainer.curve, strict=False)
        for name in ("epoch", *METRICS)
        if name != "seconds" and getattr(before, name) != getattr(after, name)
    ]
    if len(stored) != len(trainer.curve):
        differing.append(f"{len(stored)} epochs before, {len(trainer.curve)} now")
    if checkpoint.sha256(best_weights(trainer)) != run.weights_sha256:
        differing.append("the best weights")
    return differing
