"""Networks that do not fit a study are found before anything is created."""

import numpy as np
import pytest

from ressmooth.config import parse
from ressmooth.engines.preflight import try_runs
from ressmooth.errors import ConfigError


@pytest.fixture
def grey(tmp_path):
    """A data set of images of 28 x 28 x 1 in three classes."""
    images, labels = np.zeros((40, 28, 28), np.uint8), np.arange(40) % 3
    parts = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
    np.savez(tmp_path / "grey.npz", **parts)
    return f"npz:{tmp_path}/grey.npz"


@pytest.mark.parametrize(
    "model, message",
    [
        ("torchvision:resnet19", "torchvision has no such network .did you mean 'resnet18'"),
        ("timm:resnet10", "timm has no such network .did you mean 'resnet10t'"),
        ("torchvision:alexnet", "with .*alexnet.*: RuntimeError: .*Output size is too small"),
        ("torchvision:vit_b_16", "with .*vit_b_16.*: AssertionError: Wrong image height"),
        ("torchvision:googlenet", r"should return a tensor \[2, 3\], but .* GoogLeNetOutputs"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_network_that_does_not_fit_is_refused(grey, model, message, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # `try_runs` sets it in its own process
    config = parse({"dataset": grey, "model": model, "threads": 1})
    with pytest.raises(ConfigError, match=message):
        try_runs([config.model_dump()], [], tmp_path)
