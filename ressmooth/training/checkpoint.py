"""Checkpoint files: complete or absent, and loaded without running code."""

import hashlib
import io
import os
import secrets
from pathlib import Path
from typing import Any

import torch

from ressmooth.errors import CheckpointError, StorageError

TrainerState = dict[str, Any]  # nested dicts and lists of tensors, numbers and strings


def save(path: Path, state: TrainerState) -> str:
    """Write a state. Return the file's SHA-256."""
    return write(path, encode(state))


def encode(state: TrainerState) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def write(path: Path, content: bytes) -> str:
    """Replace a file at once, and only when all is on the disk. Return its SHA-256."""
    # unique, because on a cluster a worker that was declared lost may still be writing
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(
            f"Cannot write {path} ({error.strerror}): it needs {len(content) / 1e6:.1f} MB. "
            "The previous file is unchanged."
        ) from error
    return sha256(content)


def read(path: Path, expected: str | None) -> bytes:
    """Return a file's content. Refuse a file whose SHA-256 is not `expected`, if that is given."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"Cannot read checkpoint {path}: {error.strerror}.") from error
    if expected is not None and sha256(content) != expected:
        raise CheckpointError(f"Checkpoint {path} is damaged: its SHA-256 is not {expected}.")
    return content


def load(path: Path, expected: str | None = None) -> TrainerState:
    """Return a state. Refuse a file whose SHA-256 is not `expected`, if that is given."""
    content = read(path, expected)
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises EOFError, RuntimeError, KeyError, UnpicklingError ...
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path} is not a readable checkpoint: {reason[:200]}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a ressmooth checkpoint.")
    return state


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
