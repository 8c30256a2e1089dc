"""Tensors in a file that the processes of a machine map into memory, instead of one copy each."""

import hashlib
from pathlib import Path

import torch

from ressmooth.checkpoint import State, encode, sha256, write


def save(directory: Path, name: str, state: State) -> None:
    """The file's name says what its content must hash to."""
    content = encode(state)
    write(directory / f"{name}-{sha256(content)}.pt", content)


def load(directory: Path, name: str) -> State | None:
    """What an undamaged file holds, if there is one."""
    for path in directory.glob(f"{name}-*.pt"):
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if path.stem == f"{name}-{digest}":
            state: State = torch.load(path, mmap=True, weights_only=True)
            return state
    return None
