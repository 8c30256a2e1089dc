"""What a study would do, told before it does it: `--dry-run`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from rich.table import Table

from ressmooth.errors import RessmoothError
from ressmooth.phrases import count, duration
from ressmooth.report.tables import rendered
from ressmooth.spec import StudySpec
from ressmooth.store import Store, default_url, refuse_another
from ressmooth.store.rows import TERMINAL


def describe(spec: StudySpec, place: str, workers: int, home: Path) -> str:
    """Arms, trials, runs, epochs, how they pack into `place`, and how long that may take."""
    table = Table(title=f"{spec.name}: {spec.search.sampler} search, nothing created")
    for column in ("arm", "configurations", "trials", "runs", "epochs"):
        table.add_column(column)
    rows = [_row(spec, arm) for arm in spec.arms]
    if spec.confirming:
        rows.append(_confirmation(spec))
    for arm, what, trials, runs, epochs in rows:
        table.add_row(arm, what, str(trials), str(runs), str(epochs))
    runs, epochs = sum(row[3] for row in rows), sum(row[4] for row in rows)
    table.add_row("all", "", str(sum(row[2] for row in rows)), str(runs), str(epochs), style="bold")
    with _recorded(home) as store:
        done = _done(spec, store) if store else 0
        left = max(0, runs - done)
        seconds = _seconds(spec, store) if store else None
    at_most = "" if spec.search.pruner == "none" else "at most "
    before = f", {done} of them done," if done else ""
    return (
        f"{rendered(table)}{place}: {at_most}{count(runs, 'run')}{before} in about "
        f"{count(-(-left // workers), 'round')}.\n"
        f"{_estimate(spec, None if seconds is None else seconds * left / max(1, runs) / workers)}"
    )


@contextmanager
def _recorded(home: Path) -> Iterator[Store | None]:
    """What there is already, if it can be read; looking must not create it."""
    try:
        store = Store(default_url(home))
    except RessmoothError:
        yield None
        return
    try:
        yield store
    finally:
        store.close()


def _done(spec: StudySpec, store: Store) -> int:
    """Runs that are recorded; a study of that name with other settings is refused, as at launch."""
    recorded = store.study(spec.name)
    if recorded is None:
        return 0
    refuse_another(recorded.spec, spec)
    runs = [run for trial in store.trials(recorded.id) for run in trial.runs]
    return sum(run.state in TERMINAL for run in runs)


def _row(spec: StudySpec, arm: str) -> tuple[str, str, int, int, int]:
    branches = [branch for branch in spec.branches if branch.arm == arm]
    searched = sorted({name for branch in branches for name in branch.space})
    trials = sum(map(spec.planned_trials, branches))
    what = f"{len(branches)} fixed" if not searched else f"search {', '.join(searched)}"
    if searched and len(branches) > 1:
        what += f" in {len(branches)} cells"
    epochs = round(fmean(branch.example().epochs for branch in branches))
    return arm, what, trials, trials * spec.seeds, trials * spec.seeds * epochs


def _confirmation(spec: StudySpec) -> tuple[str, str, int, int, int]:
    trials, seeds = len(spec.confirming), spec.confirm
    epochs = sum(example.epochs for example in spec.confirming) * seeds
    return (
        "confirm",
        f"what was chosen, {count(seeds, 'fresh seed')}",
        trials,
        trials * seeds,
        epochs,
    )


def _estimate(spec: StudySpec, seconds: float | None) -> str:
    budget = f"Stops after {spec.search.hours:g} h. " if spec.search.hours else ""
    if seconds is None:
        return f"{budget}No like run is recorded yet, so the time is not known."
    return f"{budget}About {duration(seconds)}, from recorded epochs of like runs."


def _seconds(spec: StudySpec, store: Store) -> float | None:
    """Of all runs, from recorded epochs of like ones; None if some are like none."""
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
