"""Which worker gets which run, and what becomes of places that break."""

import os
import tempfile
from types import SimpleNamespace

import pytest
from helpers.launch import launch, query
from helpers.plugins import SOURCE, write

from ressmooth.engines.local import MAX_TMPDIR, LocalEngine, Worker
from ressmooth.errors import ConfigError
from ressmooth.spec import Resources

CLOSED = SimpleNamespace(started=lambda *_: None)


class Slot(Worker):
    """A worker without a process."""

    def __init__(self, number, gpus):
        self.number, self.gpus, self.run = number, gpus, None
        self.has_trained, self.cause, self.connection = False, None, SimpleNamespace()

    def send(self, message):
        pass


def engine(runs, *gpus):
    """Return an engine with a worker per tuple of GPUs, and these runs to start."""
    made = object.__new__(LocalEngine)
    made.pool = [Slot(number, each) for number, each in enumerate(gpus)]
    queue = iter([SimpleNamespace(id=i, needs_whole_gpu=whole) for i, whole in enumerate(runs)])
    made.scheduler = SimpleNamespace(next=lambda: next(queue, None))
    made.view, made.pending = CLOSED, None
    made.strikes = {worker.number: set() for worker in made.pool}
    return made


def started(engine):
    engine._start_runs()
    return [worker.run and worker.run.id for worker in engine.pool]


def test_workers_share_a_gpu():
    assert started(engine([False, False], ("0",), ("0",))) == [0, 1]


def test_a_run_that_needs_the_gpu_to_itself_waits_for_its_neighbours_to_end():
    two = engine([False, True, False], ("0",), ("0",))
    assert started(two) == [0, None]
    assert started(two) == [0, None]
    two.pool[0].run = None
    assert started(two) == [1, None]  # and the other place stays empty
    two.pool[0].run = None
    assert started(two) == [2, None]


def test_another_gpu_that_is_free_takes_it():
    assert started(engine([False, True, False], ("0",), ("0",), ("1",))) == [0, None, 1]


def test_runs_on_a_cpu_are_no_neighbours():
    assert started(engine([False, True], (), ())) == [0, 1]


def test_a_temporary_directory_that_is_too_long_for_sockets(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/".ljust(MAX_TMPDIR, "x"))
    LocalEngine(Resources(), 1)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/".ljust(MAX_TMPDIR + 1, "x"))
    with pytest.raises(ConfigError, match="TMPDIR = '/tmp/xx.*': at most 75 characters, .*=/tmp"):
        LocalEngine(Resources(), 1)


def test_a_run_that_lost_its_worker_at_once_goes_to_another_place():
    two = engine([False, False], ("0",), ("1",))
    two.strikes[0] = {0}
    assert started(two) == [None, 0]
    assert started(two) == [1, 0]  # what follows gets the free place


def test_a_run_that_lost_its_workers_everywhere_is_started_anywhere():
    two = engine([False], ("0",), ("1",))
    two.strikes = {0: {0}, 1: {0}}
    assert started(two) == [0, None]


BREAKS = """

import os


@ressmooth.method
class Fragile(nn.Module):
    def forward(self, logits, target, progress):
        if os.environ["CUDA_VISIBLE_DEVICES"] in {broken}:
            raise {error}
        return F.cross_entropy(logits, target)
"""
STUDY = """
name = "fragile"
dataset = "stripes"
model = "mlp"
epochs = 2
batch_size = 8
seeds = 5
[arms.plain]
method = "Fragile"
"""
LOST = "torch.AcceleratorError('CUDA error: an illegal memory access\\nCUDA kernel errors ...')"


def launch_on(gpus, broken, folder, error=LOST):
    """Launch a study on places that are called GPUs, of which some break. Return what it printed.

    Without a driver, torch trains on the CPU there.
    """
    (folder / "mine.toml").write_text(STUDY)
    plugin = write(folder, SOURCE + BREAKS.format(broken=broken, error=error))
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus}
    return launch(folder / "mine.toml", folder / "home", "--plugin", str(plugin), env=environment)


@pytest.mark.slow
def test_a_broken_gpu_is_retired_and_its_runs_are_trained_elsewhere(tmp_path):
    done = launch_on("0,1", ("1",), tmp_path)
    assert done.returncode == 0, done.stderr
    cause = "worker died: AcceleratorError: CUDA error: an illegal memory access"
    assert f"GPU 1 gets no more runs: it lost the workers of 2 runs at once ({cause})" in (
        done.stderr + done.stdout
    )
    rows = query(tmp_path / "home", "SELECT state, gpus, failures FROM run ORDER BY failures")
    assert [state for state, *_ in rows] == ["complete"] * 5
    assert [failures for *_, failures in rows] == [0, 0, 0, 1, 1]  # the two that it lost


@pytest.mark.slow
def test_without_a_place_left_the_study_ends_with_the_cause(tmp_path):
    done = launch_on("0,1", ("0", "1"), tmp_path)
    assert done.returncode == 2
    assert "no other place is left" in done.stderr and "illegal memory access" in done.stderr
    rows = query(tmp_path / "home", "SELECT state, error FROM run WHERE error IS NOT NULL")
    assert rows and {state for state, _ in rows} == {"waiting"}  # nothing is lost
    assert all(error.startswith("worker died: AcceleratorError: CUDA") for _, error in rows)


@pytest.mark.slow
def test_a_gpu_that_torch_cannot_see_costs_its_place_only(tmp_path):
    unseen = "ressmooth.errors.DeviceError('torch sees no GPU')"
    done = launch_on("0,1", ("1",), tmp_path, unseen)
    assert done.returncode == 0, done.stderr
    assert "GPU 1 gets no more runs: torch sees no GPU" in done.stderr + done.stdout
    assert query(tmp_path / "home", "SELECT DISTINCT state, failures FROM run") == [("complete", 0)]
