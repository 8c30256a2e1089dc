"""Describe what a study would do, for `--dry-run`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Protocol

from ressmooth.engines.catalogue import planned_runs
from ressmooth.errors import RessmoothError
from ressmooth.formatting import count, duration
from ressmooth.report.measure import MISSING
from ressmooth.report.sheet import Sheet, as_text
from ressmooth.report.tables import prose
from ressmooth.search.forks import sharing
from ressmooth.search.notes import notes
from ressmooth.search.progress import Progress, count_runs
from ressmooth.search.warm_start import find_warm_start
from ressmooth.spec import StudySpec
from ressmooth.store import Store, check_same_spec, default_url


class Workers(Protocol):
    """An engine, or a service. `str` describes it."""

    @property
    def workers(self) -> int: ...  # concurrent runs

    @property
    def gpus_per_run(self) -> float | None: ...  # None: a service does not record it


class Row(NamedTuple):
    """The plan of an arm, or of the confirmations."""

    arm: str
    configurations: str
    trials: int
    runs: int
    epochs: int


def plan(
    spec: StudySpec,
    engine: Workers,
    home: Path,
    measure: Callable[[], float] | None,
    time_command: str,
) -> str:
    """Return the table of arms, the number of rounds on the engine, and the estimated time.

    The seconds of all runs come from `measure`, or else from similar runs that are recorded. If
    there are none, the text suggests `time_command`.
    """
    rows = [_arm(spec, arm) for arm in spec.arms]
    if spec.confirming:
        rows.append(_confirmation(spec))
    trials, runs, epochs = (sum(getattr(r, k) for r in rows) for k in ("trials", "runs", "epochs"))
    title = f"{spec.name}: {spec.search.sampler} search, nothing created"
    rows.append(Row("all", MISSING, trials, runs, epochs))
    cells = [[str(cell) for cell in row] for row in rows]
    table = Sheet(title, Row._fields, cells, best=len(rows) - 1, details=(1,))
    with _existing_store(home) as store:
        progress = _progress(spec, store)
        seconds = _seconds(spec, store) if store and not measure else None
    known, done = progress.runs_known, progress.runs_done
    left = known - done
    source = "from recorded epochs of similar runs"
    if measure and left:
        seconds, source = measure(), "from a few steps measured on this machine"
    workers = max(1, engine.workers)
    bound = "" if spec.search.pruner == "none" or not left else "at most "
    bound = "at least " if spec.is_race and left else bound
    before = f", {done} of them done," if done else ""
    rounds = count(-(-left // workers), "round")
    sentences = [
        f"{engine}: {bound}{count(known, 'run')}{before} in about {rounds}.",
        *notes(spec, find_warm_start(spec, home)),
    ]
    if spec.resources.gpus_per_run == "auto" and engine.gpus_per_run is not None:
        meaning = (
            "1 here: a GPU for each run" if engine.gpus_per_run else "0 here: runs train on CPUs"
        )
        sentences.insert(1, f'resources.gpus_per_run = "auto" is {meaning}.')
    if spec.search.hours:
        sentences.append(f"Stops after {spec.search.hours:g} h.")
    if left and seconds is not None:
        time = duration(seconds * sharing(spec).share * left / max(1, runs) / workers)
        sentences.append(f"About {time} of training, {source}.")
    text = f"{as_text(table)}\n\n{prose(sentences)}"
    if left and seconds is None:
        text += f"\nThe time is unknown: no similar run is recorded. Measure it: {time_command}"
    return text


def _existing_store(home: Path) -> AbstractContextManager[Store | None]:
    """Open the Store if there is one. A dry run must not create it."""
    try:
        return closing(Store(default_url(home)))
    except RessmoothError:
        return nullcontext()


def _progress(spec: StudySpec, store: Store | None) -> Progress:
    """Return how many runs there are and have ended. Reject a changed study, as a launch does."""
    recorded = store.study(spec.name) if store else None
    if store is None or recorded is None:
        return count_runs([], spec)
    check_same_spec(recorded.spec, spec)
    hours = spec.search.hours
    out_of_time = hours is not None and recorded.elapsed > hours * 3600
    return count_runs(store.trials(recorded.id), spec, out_of_time=out_of_time)


def _arm(spec: StudySpec, arm: str) -> Row:
    branches = [branch for branch in spec.branches if branch.arm == arm]
    searched = sorted({name for branch in branches for name in branch.space})
    trials = sum(map(spec.planned_trials, branches))
    configurations = f"search {', '.join(searched)}" if searched else f"{len(branches)} fixed"
    if searched and len(branches) > 1:
        configurations += f" in {len(branches)} cells"
    epochs = round(fmean(branch.example().epochs for branch in branches))
    return Row(arm, configurations, trials, trials * spec.seeds, trials * spec.seeds * epochs)


def _confirmation(spec: StudySpec) -> Row:
    trials, seeds = len(spec.confirming), spec.confirm
    epochs = sum(example.epochs for example in spec.confirming) * seeds
    configurations = f"the selected ones, {count(seeds, 'fresh seed')}"
    return Row("confirm", configurations, trials, trials * seeds, epochs)


def _seconds(spec: StudySpec, store: Store) -> float | None:
    """Estimate the seconds of all runs from similar recorded ones. Return None without those."""
    total = 0.0
    for example, number in planned_runs(spec):
        config = example.model_dump()
        config["threads"] = config["threads"] or spec.resources.threads
        seconds = store.seconds_per_epoch(config)
        if seconds is None:
            return None
        total += seconds * config["epochs"] * number
    return total
