"""Say in words what a study's sampler and pruner will do, for the plan. Free of Optuna."""

from ressmooth.config import OWN_PROTOCOL, PROTOCOL
from ressmooth.formatting import count
from ressmooth.search.forks import sharing
from ressmooth.spec import Search, StudySpec, WarmStart

RANDOM_TRIALS = 10  # that TPE draws at random in each branch before it learns
COMPLETED_TRIALS = 5  # that the median pruner needs in a branch
CUTOFF = 1e-3  # of the scale, which the paper's studies use
MIN_SOURCE_TRIALS = 10  # of another study that CMA-ES needs to begin with; it uses a tenth


def notes(spec: StudySpec, warm_start: WarmStart | None = None) -> list[str]:
    """Return what the numbers of the plan do not show, one sentence each."""
    sampled = [branch for branch in spec.branches if branch.space]
    lines = _default_notes(spec) + warm_start_notes(spec, warm_start)
    lines += _sharing_notes(spec)
    if spec.is_race:
        lines.append(_race_note(spec))
    begun = warm_start.trials if warm_start else {}
    if spec.search.pruner != "none":
        epochs = sorted({branch.example().epochs for branch in sampled})
        lines += [_pruner_note(spec.search, number) for number in epochs]
    if spec.search.sampler == "tpe" and spec.search.trials is not None:
        for arm in dict.fromkeys(branch.arm for branch in sampled):
            cells = [branch for branch in sampled if branch.arm == arm]
            most = max(map(spec.planned_trials, cells))
            if most + max(len(begun.get(cell.key, ())) for cell in cells) <= RANDOM_TRIALS:
                lines.append(_random_note(arm, most, spec.cells(arm)))
    return lines


def _sharing_notes(spec: StudySpec) -> list[str]:
    """Return what runs save by sharing their prefixes, or what they would save with a cutoff."""
    now, cut = sharing(spec), sharing(spec, CUTOFF)
    if now.trained < now.planned:
        return [
            f"Runs share their prefixes, where the scale is below the cutoff: {now.trained:,} of "
            f"{now.planned:,} epochs are trained ({100 * now.share:.0f} %)."
        ]
    if cut.trained == cut.planned:
        return []
    return [
        f"In a new study, --set cutoff={CUTOFF:g} would leave {cut.trained:,} of {cut.planned:,} "
        f"epochs ({100 * cut.share:.0f} %): a scale below it counts as 0, and runs that differ "
        "only in their smoothing share their prefix, where theirs is 0."
    ]


def _default_notes(spec: StudySpec) -> list[str]:
    """Return the protocol of data sets that the paper does not have, where nothing else is set."""
    lines = []
    for branch in spec.branches:
        dataset = str(branch.values.get("dataset", ""))
        given = {**branch.values, **branch.space}
        defaults = [f"{key} {value}" for key, value in OWN_PROTOCOL.items() if key not in given]
        if dataset and dataset not in PROTOCOL and defaults:
            lines.append(f"{dataset} has the defaults {', '.join(defaults)}.")
    return list(dict.fromkeys(lines))


def warm_start_notes(spec: StudySpec, warm_start: WarmStart | None) -> list[str]:
    """Return how many trials of another study the samplers begin with."""
    if warm_start is None:
        return []
    differing = f" (others differ in {', '.join(warm_start.differing)})"
    line = (
        f"{spec.search.sampler} begins with {warm_start.used} of the "
        f"{count(warm_start.completed, 'completed trial')} of {spec.search.warm_start}"
        f"{differing if warm_start.differing else ''}."
    )
    few = [key for key, trials in warm_start.trials.items() if len(trials) < MIN_SOURCE_TRIALS]
    if spec.search.sampler != "cmaes" or not few:
        return [line]
    return [
        line,
        f"cmaes needs {MIN_SOURCE_TRIALS} of them per cell: too few for {', '.join(few)}.",
    ]


def _race_note(spec: StudySpec) -> str:
    trials = sum(spec.planned.values())
    fresh = len(spec.confirming) * spec.confirm
    most = trials * spec.at_most + fresh
    range_of = f"{spec.runs_planned:,} to {most:,} runs" if trials else "as many runs as fit"
    return (
        f"Seeds race: {range_of}. After {spec.seeds} seeds of every trial, a round adds a seed to "
        f"each configuration that may still become the best of its arm, up to {spec.at_most}."
    )


def _pruner_note(search: Search, epochs: int) -> str:
    first, factor = search.asha(epochs)
    if search.pruner == "median":
        first = max(1, search.median_warmup(epochs))
    if first >= epochs:
        return f"{search.pruner} stops nothing: it begins after {first} of {epochs} epochs."
    if search.pruner == "median":
        return (
            f"median stops a trial from epoch {first} of {epochs} on if it is worse than the "
            f"median of its cell, once {COMPLETED_TRIALS} trials have completed there."
        )
    rungs = [str(first)]
    while (rung := int(rungs[-1]) * factor) < epochs:
        rungs.append(str(rung))
    return (
        f"asha stops a trial after {', '.join(rungs)} of {epochs} epochs if it is not in the "
        f"best 1/{factor} of its cell."
    )


def _random_note(arm: str, trials: int, cells: int) -> str:
    return (
        f"tpe draws the first {RANDOM_TRIALS} trials of each cell at random, and {arm} has "
        f"{count(trials, 'trial')} per cell: this is a random search. "
        f"Set search.trials above {RANDOM_TRIALS * cells}."
    )
