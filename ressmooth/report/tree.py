"""Show which runs continue the prefix of another, and how many epochs that has saved."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ressmooth.formatting import count, run_name
from ressmooth.store import RunRow, TrialRow

Children = Mapping[int | None, Sequence[RunRow]]  # by the run that they fork from


def tree_of(trials: Sequence[TrialRow]) -> str:
    """Return the runs of a study as a tree: under each run, those that continue its prefix."""
    names = {run.id: run_name(t.arm, t.params, run.seed) for t in trials for run in t.runs}
    children: dict[int | None, list[RunRow]] = defaultdict(list)
    for run in sorted(_runs(trials), key=lambda run: (-(run.forked_at or 0), run.id)):
        children[run.forked_from].append(run)
    lines = [line for root in children[None] for line in _lines(root, "", "", names, children)]
    return "\n".join([*lines, "", saved(trials) or "No run continues the prefix of another."])


def _lines(
    run: RunRow, first: str, rest: str, names: Mapping[int, str], children: Children
) -> Iterator[str]:
    begin = (run.forked_at or 0) + 1
    epochs = f"epochs {begin} to {run.last_epoch}" if run.trained_epochs else "no epoch yet"
    yield f"{first}run {run.id}, {names[run.id]}: {epochs} of {run.config['epochs']}"
    below = children.get(run.id, ())
    for number, child in enumerate(below, 1):
        is_last = number == len(below)
        branch, line = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield from _lines(child, rest + branch, rest + line, names, children)


def saved(trials: Iterable[TrialRow]) -> str:
    """Return how many epochs were not trained again, or nothing if there are none."""
    runs = _runs(trials)
    shared = sum(run.last_epoch - run.trained_epochs for run in runs)
    epochs = sum(run.last_epoch for run in runs)
    if not shared:
        return ""
    forked = count(sum(bool(run.forked_at) for run in runs), "run")
    return (
        f"{forked} continue the prefix of another: {epochs - shared:,} of {epochs:,} epochs were "
        f"trained ({100 * (epochs - shared) / epochs:.0f} %)"
    )


def _runs(trials: Iterable[TrialRow]) -> list[RunRow]:
    return [run for trial in trials for run in trial.runs]
