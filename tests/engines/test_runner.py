"""One run against a real store: recording, resuming, pruning and failing."""

import math
import subprocess
import sys

import pytest
import torch
from helpers import specs

from ressmooth.engines import Decision, runner
from ressmooth.errors import DeviceError, StaleAttempt
from ressmooth.search.planner import Planner
from ressmooth.store.devices import devices_of
from ressmooth.training import device
from ressmooth.training.checkpoint import sha256
from ressmooth.training.measures import Measures
from ressmooth.training.trainer import Trainer


@pytest.fixture
def waiting(store):
    """Create a run in state waiting. Return its id."""

    def make(**settings):
        spec = specs.study({"smooth": {"method": "smoothing"}}, **settings)
        study_id = store.open_study(spec)
        return Planner(store, study_id, spec).next().id

    return make


def always_continue(epoch, best):
    return Decision.CONTINUE


def curve(store, run_id):
    return [(e.epoch, e.train_loss, e.val_acc) for e in store.curve(run_id)]


def stop_at(number, decision=Decision.STOP):
    return lambda epoch, best: decision if epoch.epoch == number else Decision.CONTINUE


def test_a_run_records_its_epochs_its_result_and_its_environment(store, waiting, tmp_path):
    run_id = waiting()
    assert runner.execute(store, run_id, tmp_path, always_continue) == "complete"
    row = store.run(run_id)
    accuracies = [epoch.val_acc for epoch in store.curve(run_id)]
    assert row.state == "complete" and row.last_epoch == len(accuracies) == 3
    assert row.max_acc == max(accuracies) and row.mean_acc == accuracies[-1]
    assert row.weights_sha256 == sha256(
        (tmp_path / "runs" / row.uid / "best.safetensors").read_bytes()
    )
    assert row.threads == 1 and row.device == "cpu" and row.host
    assert row.versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert row.seconds > 0 and row.started_at < row.finished_at
    assert list((tmp_path / "runs" / row.uid).iterdir()) == [
        tmp_path / "runs" / row.uid / "best.safetensors"
    ]


def test_a_stopped_run_waits_and_resumes_to_the_same_result(store, waiting, tmp_path):
    whole = waiting(name="whole")
    runner.execute(store, whole, tmp_path, always_continue)
    run_id = waiting(name="stopped")
    assert runner.execute(store, run_id, tmp_path, stop_at(2)) == "waiting"
    assert store.run(run_id).state == "waiting" and store.run(run_id).last_epoch == 2
    assert runner.execute(store, run_id, tmp_path, always_continue) == "complete"
    assert curve(store, run_id) == curve(store, whole)
    assert store.run(run_id).weights_sha256 == store.run(whole).weights_sha256


def test_a_resumed_run_reports_its_last_epoch_again(store, waiting, tmp_path):
    """The launcher may have died before it decided about that epoch."""
    run_id = waiting()
    runner.execute(store, run_id, tmp_path, stop_at(2))
    assert runner.execute(store, run_id, tmp_path, stop_at(2, Decision.PRUNE)) == "pruned"
    assert store.run(run_id).last_epoch == 2


def test_a_pruned_run_keeps_its_epochs(store, waiting, tmp_path):
    run_id = waiting()
    assert runner.execute(store, run_id, tmp_path, stop_at(2, Decision.PRUNE)) == "pruned"
    row = store.run(run_id)
    assert row.state == "pruned" and len(store.curve(run_id)) == 2
    assert row.max_acc == max(epoch.val_acc for epoch in store.curve(run_id))


def damage_newest(directory):
    path = max(directory.glob("epoch-*.pt"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(store, waiting, tmp_path):
    whole = waiting(name="whole")
    runner.execute(store, whole, tmp_path, always_continue)
    run_id = waiting(name="damaged")
    runner.execute(store, run_id, tmp_path, stop_at(2))
    directory = tmp_path / "runs" / store.run(run_id).uid
    damage_newest(directory)
    trained = []
    runner.execute(store, run_id, tmp_path, lambda e, _: trained.append(e.epoch) or Decision.STOP)
    assert trained == [1] and (directory / "epoch-000002.corrupt").exists()
    assert runner.execute(store, run_id, tmp_path, always_continue) == "complete"
    assert curve(store, run_id) == curve(store, whole)
    assert store.run(run_id).weights_sha256 == store.run(whole).weights_sha256


def test_a_run_without_intact_checkpoints_starts_from_the_beginning(store, waiting, tmp_path):
    run_id = waiting()
    runner.execute(store, run_id, tmp_path, stop_at(2))
    for path in (tmp_path / "runs" / store.run(run_id).uid).glob("epoch-*.pt"):
        path.write_bytes(b"")
    assert runner.execute(store, run_id, tmp_path, always_continue) == "complete"
    assert [epoch for epoch, *_ in curve(store, run_id)] == [1, 2, 3]


def test_a_diverged_run_fails_without_a_result(store, waiting, tmp_path):
    run_id = waiting(output="identity", lr=1e5)
    assert runner.execute(store, run_id, tmp_path, always_continue) == "failed"
    row = store.run(run_id)
    assert row.error == "diverged at epoch 1" and row.max_acc is None


@pytest.mark.parametrize("part", ["_train", "_evaluate"])
@pytest.mark.parametrize("position", [0, 1], ids=["loss", "accuracy"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_never_recorded(
    store, waiting, tmp_path, monkeypatch, part, position, value
):
    measure = getattr(Trainer, part)

    def broken(self, *arguments):
        measured = list(measure(self, *arguments))
        if len(self.curve) == 1 and isinstance(measured[position], Measures):
            measured[position] = measured[position]._replace(accuracy=value)
        elif len(self.curve) == 1:  # in the second epoch
            measured[position] = value
        return measured

    monkeypatch.setattr(Trainer, part, broken)
    run_id = waiting()
    assert runner.execute(store, run_id, tmp_path, always_continue) == "failed"
    row = store.run(run_id)
    assert (row.error, row.max_acc, row.failures) == ("diverged at epoch 2", None, 0)
    assert [epoch.epoch for epoch in store.curve(run_id)] == [1]


@pytest.mark.parametrize(
    "error, reason",
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("a bug in a model"), "RuntimeError: a bug in a model"),
    ],
)
def test_an_exception_becomes_a_failed_run(store, waiting, tmp_path, monkeypatch, error, reason):
    def fail(self):
        raise error

    run_id = waiting()
    monkeypatch.setattr(Trainer, "train_epoch", fail)
    assert runner.execute(store, run_id, tmp_path, always_continue) == "failed"
    assert store.run(run_id).error.strip().splitlines()[-1] == reason


def test_a_run_out_of_gpu_memory_is_retried_once_with_the_gpu_to_itself(
    store, waiting, tmp_path, monkeypatch
):
    def fail(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    run_id = waiting(batch_size=64)
    monkeypatch.setattr(Trainer, "train_epoch", fail)
    assert not store.run(run_id).needs_whole_gpu
    assert runner.execute(store, run_id, tmp_path, always_continue) == "waiting"
    row = store.run(run_id)
    assert row.needs_whole_gpu and row.state == "waiting"
    assert runner.execute(store, run_id, tmp_path, always_continue) == "failed"
    row = store.run(run_id)
    assert not row.needs_whole_gpu
    assert row.error.startswith("CUDA out of memory with batch_size = 64, also with the GPU to")


@pytest.mark.parametrize("library", ["CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR"])
def test_a_failure_of_cublas_or_cudnn_is_retried_as_one_of_memory(
    store, waiting, tmp_path, monkeypatch, library
):
    def fail(self):
        raise RuntimeError(f"CUDA error: {library} when calling `create(handle)`\nmore")

    run_id = waiting(batch_size=64)
    monkeypatch.setattr(Trainer, "train_epoch", fail)
    assert runner.execute(store, run_id, tmp_path, always_continue) == "waiting"
    assert store.run(run_id).needs_whole_gpu
    assert runner.execute(store, run_id, tmp_path, always_continue) == "failed"
    error = store.run(run_id).error
    assert error.startswith(f"RuntimeError: CUDA error: {library} when calling `create(handle)`: ")
    assert "probably CUDA out of memory with batch_size = 64" in error


def test_a_run_whose_process_has_lost_the_gpu_is_left_to_another(
    store, waiting, tmp_path, monkeypatch
):
    def fail(self):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")

    run_id = waiting()
    monkeypatch.setattr(Trainer, "train_epoch", fail)
    monkeypatch.setattr(device, "context_works", lambda: False)
    with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
        runner.execute(store, run_id, tmp_path, always_continue)
    assert store.run(run_id).state == "running"  # until the launcher notices


def test_a_run_that_changes_its_device_says_so(store, waiting, tmp_path, monkeypatch):
    run_id = waiting()
    environment = runner.environment
    on_gpu = lambda *args: {**environment(*args), "device": "NVIDIA A100"}  # noqa: E731
    monkeypatch.setattr(runner, "environment", on_gpu)
    runner.execute(store, run_id, tmp_path, stop_at(1))
    assert devices_of(store.run(run_id)) == ["NVIDIA A100"]
    monkeypatch.setattr(runner, "environment", environment)
    for epoch in (2, 3):
        runner.execute(store, run_id, tmp_path, stop_at(epoch))
        assert devices_of(store.run(run_id)) == ["NVIDIA A100", "cpu"]


def test_a_run_of_a_cpu_is_trained_again_on_the_cpu(store, waiting, tmp_path, monkeypatch):
    run_id = waiting(device="auto")
    runner.execute(store, run_id, tmp_path, always_continue)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert runner.rerun(store, store.run(run_id), store.curve(run_id), tmp_path) == []


def test_a_retry_with_the_gpu_to_itself_ends_as_any_run(store, waiting, tmp_path, monkeypatch):
    run_id = waiting()
    store.release_run(store.claim(run_id, {}), "CUDA out of memory")
    assert runner.execute(store, run_id, tmp_path, always_continue) == "complete"
    assert store.run(run_id).error is None


def test_a_long_error_is_shortened(store, waiting, tmp_path, monkeypatch):
    def fail(self):
        raise RuntimeError("begin" + "x" * 10**6 + "end")

    run_id = waiting()
    monkeypatch.setattr(Trainer, "train_epoch", fail)
    runner.execute(store, run_id, tmp_path, always_continue)
    error = store.run(run_id).error
    assert len(error) < 8_100
    assert "RuntimeError: begin" in error and error.endswith("end\n")


def test_a_run_on_a_gpu_does_not_fall_back_to_the_cpu(store, waiting, tmp_path, monkeypatch):
    """If the driver is too old, Ray and nvidia-smi see the GPU, but torch does not."""
    run_id = waiting(device="auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(device, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="is the driver new enough for CUDA"):
        runner.execute(store, run_id, tmp_path, always_continue)
    assert store.run(run_id).state == "waiting"


def test_a_stale_attempt_writes_nothing(store, waiting, tmp_path):
    """As from a worker that was suspended for long and then continues."""
    run_id = waiting()

    def replaced(epoch, best):
        store.fail_worker(run_id, "thought dead")
        return Decision.CONTINUE

    with pytest.raises(StaleAttempt):
        runner.execute(store, run_id, tmp_path, replaced)
    assert len(store.curve(run_id)) == 1
    assert store.run(run_id).state == "waiting"


def test_a_worker_that_is_told_to_exit_leaves_its_run_to_be_resumed(store, waiting, tmp_path):
    """Ray raises SystemExit in a worker whose launcher is gone."""
    run_id = waiting()

    def interrupted(self, number):
        raise SystemExit(1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_train", interrupted)
        with pytest.raises(SystemExit):
            runner.execute(store, run_id, tmp_path, always_continue)
    assert store.run(run_id).state == "running"
    assert runner.execute(store, run_id, tmp_path, always_continue) == "complete"


def test_the_first_run_of_a_worker_imports_nothing_heavy(tmp_path):
    """What it needs is loaded once, in the process that workers are forked from."""
    code = (
        "import sys; from pathlib import Path; import ressmooth.engines.runner\n"
        "from ressmooth.config import parse; from ressmooth.training.trainer import Trainer\n"
        "before = set(sys.modules)\n"
        "Trainer(parse({'dataset': 'digits', 'epochs': 1}), Path(sys.argv[1])).train_epoch()\n"
        "print(len(set(sys.modules) - before) < 20, 'sklearn' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "True False\n", done.stderr
