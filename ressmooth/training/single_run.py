"""One run without a database: a directory with its config, curve, figure and checkpoint.

A checkpoint's SHA-256 is part of its file name, since no database records it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ressmooth.config import Epoch, RunConfig, config_differences, parse
from ressmooth.errors import CheckpointError, ConfigError
from ressmooth.paths import make_directory
from ressmooth.training import checkpoint, metrics
from ressmooth.training.checkpoint import TrainerState
from ressmooth.training.result import Result
from ressmooth.training.trainer import train

CONFIG, CHECKPOINT = "config.json", "checkpoint-{}.pt"


def configure(values: Mapping[str, Any], out: Path | None, resume: bool) -> RunConfig:
    """Return the settings of a new run, or of the run in `out` if it is resumed."""
    if resume:
        return _stored_config(values, out)
    if out is not None and _checkpoints(out):
        raise ConfigError(
            f"{out} already holds a run: continue it with --resume, or choose another --out"
        )
    return parse(values)


def _stored_config(values: Mapping[str, Any], out: Path | None) -> RunConfig:
    """Return the settings in `out`, which `values` must not contradict."""
    if out is None:
        raise ConfigError("--resume needs --out DIR, the directory of the run to resume")
    try:
        stored = json.loads((out / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{out} holds no run to resume: {error}") from error
    config = parse({**stored, **values})
    if differing := config_differences(stored, config):
        raise ConfigError(f"{out} holds another run: {'; '.join(differing)}")
    return config


def is_run(out: Path) -> bool:
    """Tell whether a directory holds a run, perhaps one that was killed in its first epoch."""
    try:
        parse(json.loads((out / CONFIG).read_text()))
    except (OSError, ValueError, ConfigError):
        return False
    return True


def run(
    config: RunConfig,
    report: Callable[[Epoch], None],
    *,
    data: Path,
    out: Path | None,
    state: TrainerState | None,
) -> Result:
    """Train a run, from `state` if given. Call `report` after each epoch."""
    if out is not None:
        make_directory(out)
        (out / CONFIG).write_text(config.model_dump_json(indent=2) + "\n")
    curve = [Epoch(**row) for row in state["curve"]] if state else []

    def record(epoch: Epoch, get_state: Callable[[], TrainerState]) -> None:
        curve.append(epoch)
        if out is not None:
            _save(out, get_state())
            metrics.write_csv(out / "curves.csv", curve)
        report(epoch)

    result = train(config, record, data=data, state=state)
    if out is not None and curve:
        title = f"{config.method} · {config.model} · {config.dataset} · seed {config.seed}"
        metrics.draw(curve, title).savefig(out / "curves.png", dpi=150)
    return result


def _checkpoints(out: Path) -> list[Path]:
    return list(out.glob(CHECKPOINT.format("*")))


def _save(out: Path, state: TrainerState) -> None:
    """Write a checkpoint, then remove the previous one."""
    content = checkpoint.encode(state)
    written = out / CHECKPOINT.format(checkpoint.sha256(content))
    checkpoint.write(written, content)
    for path in set(_checkpoints(out)) - {written}:
        path.unlink()


def load_state(out: Path) -> TrainerState:
    """Return the newest state. There are two if `_save` was killed before it removed one."""
    states, damaged = [], None
    for path in _checkpoints(out):
        try:
            states.append(checkpoint.load(path, path.stem.removeprefix("checkpoint-")))
        except CheckpointError as error:
            damaged = error
    if states:
        return max(states, key=lambda state: len(state["curve"]))
    raise damaged or ConfigError(
        f"{out} holds no checkpoint to resume from; train without --resume"
    )
