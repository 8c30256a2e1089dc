"""Kill a process of a study at a named point, once, without a line of ressmooth for it.

Python imports this file where its directory is on PYTHONPATH: in launchers, fork servers and
workers. CRASH_POINT names the point. CRASH_FILE is created when it is reached, so that it is
reached only once.
"""

import builtins
import importlib.abc
import importlib.util
import io
import os
import signal
import sys
from functools import wraps
from types import SimpleNamespace

ONCE = ("claim", "finish_run")  # a worker calls them once per run


def crash():
    try:
        os.close(os.open(os.environ["CRASH_FILE"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def before(function):
    return _at(function, first=True)


def after(function):
    return _at(function, first=False)


def _at(function, *, first):
    calls = 0

    @wraps(function)
    def call(*arguments, **options):
        nonlocal calls
        calls += 1
        fatal = calls == (1 if function.__name__ in ONCE else 2)  # later: something can be lost
        if first and fatal:
            crash()
        result = function(*arguments, **options)
        if fatal and not first:
            crash()
        return result

    return call


class HalfWritten(io.FileIO):
    """A file that is never written completely."""

    def write(self, content):
        super().write(content[: len(content) // 2])
        crash()
        return super().write(content[len(content) // 2 :])


def half_written(path, mode):
    return HalfWritten(path, mode) if mode == "wb" else builtins.open(path, mode)


def of(module, name, wrapper):
    """Wrap `name`, which may be Class.method, when its module is loaded."""

    def install(loaded):
        holder, _, attribute = name.rpartition(".")
        target = getattr(loaded, holder) if holder else loaded
        setattr(target, attribute, wrapper(getattr(target, attribute)))

    return module, install


def file_operation(name, wrapper):
    """Wrap a function of os as the checkpoint module sees it."""

    def install(loaded):
        wrapped = {**vars(os), name: wrapper(getattr(os, name))}
        loaded.os = SimpleNamespace(**wrapped)

    return "ressmooth.training.checkpoint", install


RUNS, PLANNER = "ressmooth.store.runs", "ressmooth.search.planner"
MIRROR, OUTBOX = "ressmooth.tracking.mirror", "ressmooth.store.outbox"
WORKER = {
    "after claim": of(RUNS, "Runs.claim", after),
    "before checkpoint": of("ressmooth.training.checkpoint", "write", before),
    "half a checkpoint": (
        "ressmooth.training.checkpoint",
        lambda m: setattr(m, "open", half_written),
    ),
    "before fsync": file_operation("fsync", before),
    "before rename": file_operation("replace", before),
    "after rename": file_operation("replace", after),
    "before commit": of(RUNS, "_announce", after),
    "after commit": of(RUNS, "Runs.record_epoch", after),
    "before the result": of(RUNS, "Runs.finish_run", before),
    "after the result": of(RUNS, "Runs.finish_run", after),
}
LAUNCHER = {
    "after a trial": of("ressmooth.store.studies", "Studies.add_trial", after),
    "before tell": of(PLANNER, "Planner.run_ended", before),
    "in tell": of("ressmooth.store.studies", "Studies.finish_trial", after),
    "after tell": of(PLANNER, "Planner.run_ended", after),
    "before MLflow": of(MIRROR, "Mirror.deliver", before),
    "after MLflow": of(MIRROR, "Mirror.deliver", after),
    "after MLflow's mark": of(OUTBOX, "OutboxQueue.mark_sent", after),
}
POINTS = {**WORKER, **LAUNCHER}


class Finder(importlib.abc.MetaPathFinder):
    """Patches one module when it is loaded."""

    def __init__(self, name, install):
        self.name, self.install = name, install

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            self.install(module)

        spec.loader.exec_module = exec_module
        return spec


if point := os.environ.get("CRASH_POINT"):
    sys.meta_path.insert(0, Finder(*POINTS[point]))
