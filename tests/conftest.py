from pathlib import Path

import pytest
import torch

from ressmooth.config import RunConfig, parse


@pytest.fixture(autouse=True)
def one_thread():
    """Thread counts change sums, so every test starts from the same one."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny(tmp_path: Path):
    """A run of a second: a tenth of digits on the small network."""

    def config(**values) -> RunConfig:
        settings = {"dataset": "digits", "fraction": 0.3, "epochs": 3, "batch_size": 64}
        return parse({**settings, "device": "cpu", "threads": 1, **values})

    return config
