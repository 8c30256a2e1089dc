"""Describe what a study would do, for `--dry-run`."""

from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.table import Table

from ressmooth.engines import Engine
from ressmooth.errors import RessmoothError
from ressmooth.formatting import count, duration
from ressmooth.report.tables import render_table
from ressmooth.spec import StudySpec
from ressmooth.store import Store, check_same_spec, default_url


class Row(NamedTuple):
    """The plan of an arm, or of the confirmations."""

    arm: str
    configurations: str
    trials: int
    runs: int
    epochs: int


def plan(spec: StudySpec, engine: Engine, home: Path) -> str:
    """Return the table of arms, the number of rounds on the engine, and the estimated time."""
    rows = [_arm(spec, arm) for arm in spec.arms]
    if spec.confirming:
        rows.append(_confirmation(spec))
    trials, runs, epochs = (sum(getattr(r, k) for r in rows) for k in ("trials", "runs", "epochs"))
    title = f"{spec.name}: {spec.search.sampler} search, nothing created"
    table = Table(*Row._fields, title=title)
    for row in rows:
        table.add_row(*map(str, row))
    table.add_row("all", "", str(trials), str(runs), str(epochs), style="bold")
    with _existing_store(home) as store:
        done = _runs_done(spec, store) if store else 0
        left = max(0, runs - done)
        seconds = _seconds(spec, store) if store else None
    workers = engine.workers
    at_most = "" if spec.search.pruner == "none" else "at most "
    before = f", {done} of them done," if done else ""
    return (
        f"{render_table(table)}{engine}: {at_most}{count(runs, 'run')}{before} in about "
        f"{count(-(-left // workers), 'round')}.\n"
        f"{_estimate(spec, None if seconds is None else seconds * left / max(1, runs) / workers)}"
    )


def _existing_store(home: Path) -> AbstractContextManager[Store | None]:
    """Open the Store if there is one. A dry run must not create it."""
    try:
        return closing(Store(default_url(home)))
    except RessmoothError:
        return nullcontext()


def _runs_done(spec: StudySpec, store: Store) -> int:
    """Return how many runs have ended. Reject a changed study, as a launch does."""
    recorded = store.study(spec.name)
    if recorded is None:
        return 0
    check_same_spec(recorded.spec, spec)
    runs = [run for trial in store.trials(recorded.id) for run in trial.runs]
    return sum(run.state.is_terminal for run in runs)


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


def _estimate(spec: StudySpec, seconds: float | None) -> str:
    budget = f"Stops after {spec.search.hours:g} h. " if spec.search.hours else ""
    if seconds is None:
        return f"{budget}The time is unknown: no similar run is recorded yet."
    return f"{budget}About {duration(seconds)}, from recorded epochs of similar runs."


def _seconds(spec: StudySpec, store: Store) -> float | None:
    """Estimate the seconds of all runs from similar recorded ones. Return None without those."""
    runs = [(b.example(), spec.planned_trials(b) * spec.seeds) for b in spec.branches]
    runs += [(example, spec.confirm) for example in spec.confirming]
    total = 0.0
    for example, number in runs:
        config = example.model_dump()
        config["threads"] = config["threads"] or spec.resources.threads
        seconds = store.seconds_per_epoch(config)
        if seconds is None:
            return None
        total += seconds * config["epochs"] * number
    return total
