"""The GPU path of training on an emulated GPU (helpers/emulated_cuda.py), in its own process.

It shows device placement, waiting and bits as far as an emulator goes. What hardware does, it
cannot show: `pytest -m gpu` is for machines with a GPU.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parents[1] / "helpers" / "gpu_checks.py"
pytestmark = pytest.mark.slow
MIXED = "Expected all tensors to be on the same device"
CAUGHT = {  # by what a planted bug is caught
    "labels_stay_on_the_cpu": MIXED,
    "normaliser_stays_on_the_cpu": MIXED,
    "validation_stays_on_the_cpu": MIXED,
    "crops_are_computed_on_the_cpu": MIXED,
    "flips_by_a_mask": "by a mask",
    "noise_from_a_generator_of_the_cpu": "Expected a 'cuda' device type for generator",
    "the_loss_is_read_at_every_step": "item()",
    "the_loss_is_read_at_every_evaluated_batch": "item()",
    "images_are_moved_before_they_are_padded": "tensors of the size of the training set",
    "checkpoints_are_read_without_map_location": "deserialize object on a CUDA device",
    "best_weights_stay_on_the_cpu": "best weights are on the wrong device",
    "determinism_is_not_set": "AssertionError",
    "tf32_is_left_on": "AssertionError",
    "an_operator_has_no_deterministic_kernel": "does not have a deterministic implementation",
}


@pytest.fixture(scope="module")
def found():
    done = subprocess.run([sys.executable, str(CHECKS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_training_evaluation_and_checkpoints_are_right(found):
    assert {check: wrong for check, wrong in found["checks"].items() if wrong} == {}
    assert len(found["checks"]) == 5


@pytest.mark.parametrize("bug", CAUGHT)
def test_a_planted_bug_is_caught(found, bug):
    assert found["bugs"][bug] and CAUGHT[bug] in found["bugs"][bug]
    assert found["bugs"].keys() == CAUGHT.keys()
