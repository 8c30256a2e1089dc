"""Execute a run in a process that kills itself at a named point."""

import multiprocessing
import os
import runpy
from importlib import import_module
from pathlib import Path

CRASHING = Path(__file__).parents[1] / "faults" / "crashing"
POINTS = runpy.run_path(str(CRASHING / "sitecustomize.py"))


def execute_in_child(url, run_id, home, point=None):
    """Execute a run in a worker-like process. Return its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ressmooth.engines.runner"])
    child = context.Process(target=_execute, args=(url, run_id, home, point))
    child.start()
    child.join()
    return child.exitcode


def _execute(url, run_id, home, point):
    from ressmooth.engines import Decision
    from ressmooth.engines.runner import execute
    from ressmooth.store import Store

    if point is not None:
        os.environ["CRASH_FILE"] = str(home / "crashed")
        module, install = POINTS["WORKER"][point]
        install(import_module(module))
    execute(Store(url), run_id, home, lambda epoch, best: Decision.CONTINUE)
