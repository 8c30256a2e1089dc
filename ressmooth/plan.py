"""What a study would do, told before it does it: `--dry-run`."""

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
    done = _done(spec, home)
    left = max(0, runs - done)
    at_most = "" if spec.search.pruner == "none" else "at most "
    before = f", {done} of them done," if done else ""
    return (
        f"{rendered(table)}{place}: {at_most}{count(runs, 'run')}{before} in about "
        f"{count(-(-left // workers), 'round')}.\n"
        f"{_estimate(spec, workers, home, left / runs if runs else 1.0)}"
    )


def _done(spec: StudySpec, home: Path) -> int:
    """Runs that are recorded; a study of that name with other settings is refused, as at launch."""
    try:
        store = Store(default_url(home))
    except RessmoothError:
        return 0
    try:
        recorded = store.study(spec.name)
        if recorded is None:
            return 0
        refuse_another(recorded.spec, spec)
        runs = [run for trial in store.trials(recorded.id) for run in trial.runs]
        return sum(run.state in TERMINAL for run in runs)
    finally:
        store.close()


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


def _estimate(spec: StudySpec, workers: int, home: Path, share: float) -> str:
    """Time of a share of the runs, from recorded epochs; opening a store must not create one."""
    budget = f"Stops after {spec.search.hours:g} h. " if spec.search.hours else ""
    unknown = f"{budget}No like run is recorded yet, so the time is not known."
    try:
        store = Store(default_url(home))
    except RessmoothError:
        return unknown
    runs = [(b.example(), spec.planned_trials(b) * spec.seeds) for b in spec.branches]
    runs += [(example, spec.confirm) for example in spec.confirming]
    total = 0.0
    for example, number in runs:
        config = example.model_dump()
        config["threads"] = config["threads"] or spec.resources.threads
        seconds = store.seconds_per_epoch(config)
        if seconds is None:
            store.close()
            return unknown
        total += seconds * config["epochs"] * number
    store.close()
    expected = duration(total * share / workers)
    return f"{budget}About {expected}, from recorded epochs of like runs."
