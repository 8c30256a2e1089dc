"""A GPU that breaks gets no more runs, on either engine. Without a driver, torch trains on the CPU:
a plug-in breaks instead.
"""

import os
import re

import pytest
from helpers.launch import launch, query
from helpers.plugins import SOURCE, write

pytestmark = pytest.mark.slow
BREAKS = """

import os
import time
import uuid
from pathlib import Path

FOLDER = Path("{folder}")


def number(kind):
    return len(list(FOLDER.glob(kind + "-*")))


@ressmooth.method
class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = uuid.uuid4()  # of a run

    def forward(self, logits, target, progress):
        place = os.environ["CUDA_VISIBLE_DEVICES"]
        is_broken = place in {broken}
        if place in ("0", "1"):  # not in the launcher, which has both
            (FOLDER / f"{{'lost' if is_broken else 'trained'}}-{{self.key}}").touch()
        if is_broken:
            raise {error}
        # or all would be trained here before the other place gets a run
        while number("lost") < {awaits} and place == "0":
            time.sleep(0.02)
        return F.cross_entropy(logits, target)
"""
STUDY = """
name = "fragile"
dataset = "stripes"
model = "mlp"
epochs = 2
batch_size = 8
seeds = 7
[arms.plain]
method = "Fragile"
"""
LOST = "torch.AcceleratorError('CUDA error: an illegal memory access\\nCUDA kernel errors ...')"
KILLED = "os.kill(os.getpid(), 9)"
CAUSE = "worker died: AcceleratorError: CUDA error: an illegal memory access"
RETIRED = r"GPU 1( of \S+)? gets no more runs: "


@pytest.fixture(params=["local", "ray"])
def launch_on(request, tmp_path, monkeypatch):
    """Launch a study on places that are called GPUs, of which some break."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def launched(gpus, broken, error=LOST, awaits="1"):
        (tmp_path / "mine.toml").write_text(STUDY)
        breaks = BREAKS.format(folder=tmp_path, broken=broken, error=error, awaits=awaits)
        plugin = write(tmp_path, SOURCE + breaks)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus}
        options = ("--engine", request.param, "--plugin", str(plugin))
        return launch(tmp_path / "mine.toml", tmp_path / "home", *options, env=environment)

    return launched


def printed(done):
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("error", "cause"), [(LOST, re.escape(CAUSE)), (KILLED, "worker killed.*")]
)
def test_a_broken_gpu_is_retired_and_its_runs_are_trained_elsewhere(
    launch_on, tmp_path, error, cause
):
    done = launch_on("0,1", ("1",), error, awaits="1 + (number('trained') > 5)")
    assert done.returncode == 0, done.stderr
    reason = rf"it lost the workers of 2 runs at once \({cause}\)"
    assert re.search(RETIRED + reason, printed(done)), printed(done)
    rows = query(tmp_path / "home", "SELECT state, failures FROM run ORDER BY failures")
    assert [state for state, _ in rows] == ["complete"] * 7
    assert [failures for _, failures in rows] == [0, 0, 0, 0, 0, 1, 1]  # the two that it lost


def test_without_a_place_left_the_study_ends_with_the_cause(launch_on, tmp_path):
    done = launch_on("0,1", ("0", "1"))
    assert done.returncode == 2, done.stderr
    assert "no other place is left" in done.stderr and "illegal memory access" in done.stderr
    rows = query(tmp_path / "home", "SELECT state, error FROM run WHERE error IS NOT NULL")
    assert rows and {state for state, _ in rows} == {"waiting"}  # nothing is lost
    assert {error for _, error in rows} == {CAUSE}


def test_a_gpu_that_torch_cannot_see_costs_its_place_only(launch_on, tmp_path):
    done = launch_on("0,1", ("1",), "ressmooth.errors.DeviceError('torch sees no GPU')")
    assert done.returncode == 0, done.stderr
    assert re.search(RETIRED + "torch sees no GPU", printed(done)), printed(done)
    assert query(tmp_path / "home", "SELECT DISTINCT state, failures FROM run") == [("complete", 0)]
