"""Which worker gets which run, and what becomes of places that break."""

import tempfile
from types import SimpleNamespace

import pytest

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


def test_an_epoch_that_is_reported_again_does_not_show_that_a_gpu_works():
    """A resumed run reports its last epoch before it trains."""
    one = engine([], ("0",))
    one.view = SimpleNamespace(epoch=lambda *_: None)
    one.scheduler.decide = lambda *_: None
    (worker,) = one.pool
    worker.run, one.strikes[0] = SimpleNamespace(id=2, last_epoch=3), {1}
    for epoch, has_trained in ((3, False), (4, True)):
        worker.connection.recv = lambda epoch=epoch: ("epoch", SimpleNamespace(epoch=epoch), None)
        one._receive(worker)
        assert (worker.has_trained, one.strikes[0]) == (has_trained, set() if has_trained else {1})
