"""What Ray costs a study, beside plain Ray Tune with its MLflow callback.

Each side is a process of its own on a Ray that it starts, as a user would: the time from its launch
to the first epoch, then the time per run, where a run trains nothing and reports one epoch. Of
the runs the second half counts: in the first, MLflow makes its database.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

from ressmooth.bench.timing import Bench

SIDES = ("plain", "ours")
GOALS = {"launch to first epoch": 1, "a run that trains nothing": 20}


def measure(bench: Bench, directory: Path) -> None:
    runs = (6, 200) if bench.quick else (12, 400)
    rounds = [
        [
            _timed(side, directory / str(number) / side, n)
            for side, n in zip(SIDES, runs, strict=True)
        ]
        for number in range(bench.rounds // 3)
    ]
    for index, (what, must) in enumerate(GOALS.items()):
        ratios = [plain[index] / ours[index] for plain, ours in rounds]
        what = f"{what}: Ray Tune + MLflowLoggerCallback / ours on Ray"
        bench.keep("G6", what, ratios, must=must, at_most=False)


def _timed(side: str, directory: Path, runs: int) -> tuple[float, float]:
    """Seconds from launch to the first epoch, and per run once it is in full swing."""
    directory.mkdir(parents=True)
    call = f"{side}({str(directory)!r}, {runs}, {time.time()})"
    code = f"from ressmooth.bench.on_ray import {side}; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    later = times[runs // 2 :]
    return times[0], (later[-1] - later[0]) / (len(later) - 1)
