import os

import pytest
import torch

from ressmooth.errors import CheckpointError, StorageError
from ressmooth.training import checkpoint

STATE = {"epoch": 3, "model": {"w": torch.arange(6.0)}, "curve": [{"loss": 0.5, "acc": None}]}


def test_a_state_survives_saving_and_loading(tmp_path):
    sha256 = checkpoint.save(tmp_path / "c.pt", STATE)
    state = checkpoint.load(tmp_path / "c.pt", sha256)
    assert torch.equal(state["model"]["w"], STATE["model"]["w"])
    assert state["curve"] == STATE["curve"]
    assert os.listdir(tmp_path) == ["c.pt"]


def test_a_flipped_bit_is_detected_by_the_hash(tmp_path):
    """torch itself loads such a file without an error."""
    path = tmp_path / "c.pt"
    sha256 = checkpoint.save(path, STATE)
    content = bytearray(path.read_bytes())
    content[content.index(torch.tensor(5.0).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    checkpoint.load(path)
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path, sha256)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", "half"])
def test_an_unreadable_file_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "c.pt"
    checkpoint.save(path, STATE)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with pytest.raises(CheckpointError, match="c.pt is not a readable checkpoint"):
        checkpoint.load(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(CheckpointError, match="none.pt: No such file"):
        checkpoint.load(tmp_path / "none.pt")


class Payload:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def test_code_in_a_checkpoint_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Payload()}, "c.pt")
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / "c.pt")
    assert not (tmp_path / "pwned").exists()


def test_a_failed_write_keeps_the_previous_file(tmp_path, monkeypatch):
    path = tmp_path / "c.pt"
    sha256 = checkpoint.save(path, STATE)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        checkpoint.save(path, {**STATE, "epoch": 4})
    assert checkpoint.load(path, sha256)["epoch"] == 3
    assert os.listdir(tmp_path) == ["c.pt"]
