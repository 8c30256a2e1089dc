"""What only a GPU can show: `pytest -m gpu` on a machine with one.

Nobody has run these yet. Please send the output to the project, also if all is well.
"""

import dataclasses
import os
import signal
import subprocess
import sys

import pytest
import torch
from helpers import specs
from helpers.launch import CURVES, RESULTS, TINY, command, epochs_recorded, launch, query

from ressmooth.config import COSTS, parse
from ressmooth.engines import Decision, runner
from ressmooth.search.planner import Planner
from ressmooth.training import device
from ressmooth.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
SETTINGS = {"dataset": "synthetic", "model": "resnet20", "fraction": 0.2, "epochs": 3}


def trained(tmp_path, **settings):
    trainer = Trainer(parse({**SETTINGS, "device": "cuda", **settings}), tmp_path)
    while trainer.train_epoch():
        pass
    return trainer


def bits(trainer):
    curve = [dataclasses.replace(e, **dict.fromkeys(COSTS, 0.0)) for e in trainer.curve]
    return curve, {name: w.cpu() for name, w in trainer.model.state_dict().items()}


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop-flip"])
@pytest.mark.parametrize("method", ["smoothing", "mse", "label_smoothing", "cross_entropy"])
def test_a_step_does_not_wait_for_the_gpu(tmp_path, method, augmentation):
    settings = {**SETTINGS, "device": "cuda", "method": method, "augmentation": augmentation}
    trainer = Trainer(parse(settings), tmp_path)
    batches = trainer.batches.epoch(1)
    trainer._step(*next(batches), 0.5)  # the first one initialises
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer._step(*next(batches), 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_the_same_run_has_the_same_bits(tmp_path, precision):
    if precision in ("tf32", "bf16") and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs compute capability 8.0")
    (curve, weights), (again, weights_again) = (
        bits(trained(tmp_path, precision=precision)) for _ in range(2)
    )
    assert curve == again
    assert all(torch.equal(weights[name], weights_again[name]) for name in weights)


def test_a_gpu_learns_as_a_cpu_does(tmp_path):
    gpu, cpu = trained(tmp_path), trained(tmp_path, device="cpu")
    assert gpu.curve[0].train_loss == pytest.approx(cpu.curve[0].train_loss, rel=1e-2)


def study(tmp_path, epochs=12):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY.format(epochs=epochs) + "\n[resources]\ngpus_per_run = 0.5\n")
    return file


def test_a_killed_study_resumes_to_the_same_rows_with_two_runs_on_a_gpu(tmp_path):
    file = study(tmp_path)
    whole = launch(file, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    launcher = subprocess.Popen(command(file, tmp_path / "killed"))
    epochs_recorded(tmp_path / "killed", 5)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    resumed = launch(file, tmp_path / "killed")
    assert resumed.returncode == 0, resumed.stderr
    for rows in (RESULTS, CURVES):
        assert query(tmp_path / "killed", rows) == query(tmp_path / "whole", rows)
    ((device,),) = query(tmp_path / "whole", "SELECT DISTINCT device FROM run")
    assert device == torch.cuda.get_device_name()


def test_a_run_that_does_not_fit_says_how_much_memory_there_is(store, tmp_path, monkeypatch):
    limit = lambda _: torch.cuda.set_per_process_memory_fraction(0.002)  # noqa: E731
    monkeypatch.setattr(device, "limit_memory", limit)
    large = {"dataset": "synthetic", "model": "densenet_bc_100_12", "batch_size": 512}
    spec = specs.study({"smooth": {"method": "smoothing"}}, device="cuda", **large)
    run_id = Planner(store, store.open_study(spec), spec).next().id
    for state in ("waiting", "failed"):  # once more with the GPU to itself
        assert runner.execute(store, run_id, tmp_path, lambda *_: Decision.CONTINUE) == state
    error = store.run(run_id).error
    assert error.startswith("CUDA out of memory with batch_size = 512") and " MiB)" in error
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert device.context_works()


def test_the_bench_measures_a_gpu():
    arguments = [sys.executable, "-m", "ressmooth.cli", "bench", "--quick", "--device", "cuda"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0 and torch.cuda.get_device_name() in done.stdout, done.stderr
