"""Execute one run: train, keep a checkpoint and a row per epoch, end in exactly one state.

This is the only place where an exception becomes a state. The checkpoint is on the disk before its
epoch is in the Store, so every recorded epoch can be resumed from.
"""

import gc
import os
import platform
import subprocess
import traceback
from collections.abc import Callable, Collection, Generator, Sequence
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer loads it: here once for all workers that are forked
from safetensors.torch import save as encode_weights

from ressmooth import paths
from ressmooth.config import COSTS, METRICS, Epoch, RunConfig, parse
from ressmooth.engines import Decision
from ressmooth.engines.forking import fork, forks_in
from ressmooth.errors import (
    CheckpointError,
    DataChanged,
    DeviceError,
    RessmoothError,
    StaleAttempt,
    StorageError,
    StoreCorrupt,
    StoreUnreachable,
    StudyBusy,
    first_line,
)
from ressmooth.plugins import restore
from ressmooth.store import (
    OUT_OF_MEMORY,
    Attempt,
    EpochRow,
    RunRow,
    State,
    Store,
    pruned_outcome,
)
from ressmooth.store.devices import EARLIER, devices_of
from ressmooth.training import checkpoint, device
from ressmooth.training.trainer import Trainer

# What is loaded now stays: forked workers share its memory, and no process searches it for garbage
# when it ends, which takes the fork server a second.
gc.freeze()

NOT_ITS_FAULT = (
    DataChanged,
    DeviceError,
    StaleAttempt,
    StorageError,
    StoreCorrupt,
    StoreUnreachable,
    StudyBusy,
)
MAX_ERROR = 8_000  # characters of an error that are kept

Recorded = tuple[Epoch, float | None]  # an epoch, and the best value of the metric so far
Report = Callable[[Epoch, float | None], Decision]


def execute(store: Store, run_id: int, home: Path, report: Report, gpu_share: float = 1.0) -> State:
    """Train a run until it is finished or `report` decides otherwise. Return the run's state."""
    steps = epochs(store, run_id, home, gpu_share)
    try:
        recorded = next(steps)
        while True:
            recorded = steps.send(report(*recorded))
    except StopIteration as end:
        return State(end.value)


def epochs(
    store: Store, run_id: int, home: Path, gpu_share: float = 1.0
) -> Generator[Recorded, Decision, State]:
    """Train a run epoch by epoch. Yield each epoch once it is recorded. Return the run's state."""
    try:
        return (yield from _epochs(store, run_id, home, gpu_share))
    finally:
        device.free_memory()  # also while this worker is idle, others may need it


def _epochs(
    store: Store, run_id: int, home: Path, gpu_share: float
) -> Generator[Recorded, Decision, State]:
    row, spec = store.run(run_id), store.spec_of(run_id)
    plugins = restore(spec.get("plugins", ()))
    config = parse(row.config, plugins)
    if config.device != "cpu":
        device.check_gpu(config.precision)
        device.limit_memory(1.0 if row.needs_whole_gpu else gpu_share)
    directory = paths.run_directory(home, row.uid)
    paths.make_directory(directory)
    attempt = store.claim(run_id, environment(config, row))
    try:
        trainer = Trainer(config, home / "data", plugins)
        _check_data(store, attempt, trainer)
        forks = forks_in(spec, row)
        _resume(trainer, store, run_id, directory)
        if forks and not trainer.curve:
            fork(trainer, store, attempt, home, forks)
        kept = {epoch for epoch in forks if epoch > len(trainer.curve)}
        decision = yield from _train(trainer, store, attempt, directory, kept)
        if decision == Decision.STOP:
            store.release_run(attempt)
            return State.WAITING
        if decision == Decision.PRUNE:
            store.finish_run(attempt, State.PRUNED, **pruned_outcome(store.curve(run_id)))
            paths.remove_checkpoints(directory)
            return State.PRUNED
        return _finish(store, attempt, trainer, directory)
    except NOT_ITS_FAULT:
        raise  # not the run's fault: it can be resumed
    except torch.AcceleratorError:
        raise  # this process has lost the device: another one retries
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not plugins.place(error, innermost=True):
            raise  # Ray ends its workers so when their launcher is gone
        if device.is_out_of_memory(error):
            if not row.needs_whole_gpu:
                store.release_run(attempt, OUT_OF_MEMORY)
                return State.WAITING
            store.finish_run(attempt, State.FAILED, error=_out_of_memory(config, error))
            return State.FAILED
        if not device.context_works():
            raise  # as above
        store.finish_run(attempt, State.FAILED, error=_reason(error))
        return State.FAILED


def _check_data(store: Store, attempt: Attempt, trainer: Trainer) -> None:
    """Refuse to resume a run with other data than it began with."""
    if trainer.data_sha256 is None:
        return
    recorded = store.record_data(attempt, trainer.data_sha256)
    if recorded != trainer.data_sha256:
        raise DataChanged(
            f"{trainer.config.dataset}: its content has changed since this run began "
            f"(was {recorded[:12]}, is {trainer.data_sha256[:12]}); restore the files, or give the "
            "study another name"
        )


def _train(
    trainer: Trainer, store: Store, attempt: Attempt, directory: Path, kept: Collection[int]
) -> Generator[Recorded, Decision, Decision]:
    """Train epoch after epoch. Return the decision that ended it, CONTINUE at the run's end."""
    # the launcher may have died before it decided about the last epoch: report that one again
    first = min(attempt.last_epoch, len(trainer.curve)) or 1
    restored = trainer.curve[first - 1 :]  # also those of another run's prefix
    for epoch in chain(restored, iter(trainer.train_epoch, None)):
        if epoch.epoch > attempt.last_epoch:
            _record(store, attempt, trainer, epoch, directory, kept)
        decision = yield epoch, trainer.best_until(epoch.epoch)
        if decision != Decision.CONTINUE:
            return decision
    return Decision.CONTINUE


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
    store: Store,
    attempt: Attempt,
    trainer: Trainer,
    epoch: Epoch,
    directory: Path,
    kept: Collection[int],
) -> None:
    """Record an epoch, with a checkpoint unless it is in the middle of a prefix."""
    sha256 = None
    if epoch.epoch == len(trainer.curve):
        state = checkpoint.encode(trainer.state())
        if epoch.epoch in kept:
            checkpoint.write(paths.fork(directory, epoch.epoch), state)
        sha256 = checkpoint.write(paths.checkpoint(directory, epoch.epoch), state)
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
        metrics=result.metrics,
        weights_sha256=weights_sha256,
        seconds=_seconds(trainer),
    )
    paths.remove_checkpoints(directory)
    return State.COMPLETE


def best_weights(trainer: Trainer) -> bytes:
    """Return the weights of the best epoch as a safetensors file."""
    return encode_weights({name: w.contiguous() for name, w in trainer.best_weights.items()})


def _out_of_memory(config: RunConfig, error: BaseException) -> str:
    is_certain = isinstance(error, torch.OutOfMemoryError)
    what = OUT_OF_MEMORY if is_certain else f"{first_line(error)}: probably {OUT_OF_MEMORY}"
    return (
        f"{what} with batch_size = {config.batch_size}, also with the GPU to itself"
        f"{device.memory_text()}; use a smaller batch_size, a smaller network, or "
        'precision = "bf16"'
    )


def _seconds(trainer: Trainer) -> float:
    return sum(epoch.seconds for epoch in trainer.curve)


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, RessmoothError):
        return str(error)
    text = "".join(traceback.format_exception(error, limit=-4))
    if "does not have a deterministic implementation" in text:
        text += "or allow other bits each time: deterministic = false\n"
    if len(text) <= MAX_ERROR:
        return text
    return f"{text[: MAX_ERROR // 2]} ... {text[-MAX_ERROR // 2 :]}"


def environment(config: RunConfig, row: RunRow) -> dict[str, Any]:
    """Return the machine and the versions that a run is trained with."""
    cuda = config.device != "cpu" and torch.cuda.is_available()
    name = torch.cuda.get_device_name() if cuda else "cpu"
    earlier = devices_of(row) if row.last_epoch else []
    before = {EARLIER: ", ".join(earlier)} if {*earlier} - {name} else {}
    return {
        "host": platform.node(),
        "device": name,
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES") if cuda else None,
        "threads": config.threads or torch.get_num_threads(),
        "versions": {**_versions(), **device.describe(config), **before},
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


def rerun(store: Store, run: RunRow, stored: Sequence[EpochRow], home: Path) -> list[str]:
    """Train a complete run again. Return what differs from its stored curve, bit for bit."""
    plugins = restore(store.spec_of(run.id).get("plugins", ()))
    same = {"device": "cpu"} if run.device == "cpu" else {}  # a GPU would give other bits
    trainer = Trainer(parse({**run.config, **same}, plugins), home / "data", plugins)
    while trainer.train_epoch() is not None:
        pass
    # an earlier version may not have measured all
    measured = [name for name in METRICS if any(getattr(row, name) is not None for row in stored)]
    differing = [
        f"epoch {before.epoch}: {name} was {getattr(before, name)}, is {getattr(after, name)}"
        for before, after in zip(stored, trainer.curve, strict=False)
        for name in ("epoch", *measured)
        if name not in COSTS and getattr(before, name) != getattr(after, name)
    ]
    if len(stored) != len(trainer.curve):
        differing.append(f"{len(stored)} epochs before, {len(trainer.curve)} now")
    if checkpoint.sha256(best_weights(trainer)) != run.weights_sha256:
        differing.append("the best weights")
    return differing
