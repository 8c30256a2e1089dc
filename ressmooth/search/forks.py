"""Where the runs of a study fork from their common prefixes, and what sharing these saves."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ressmooth.prefix import SMOOTHING, prefix_key, prefix_of, shared_epochs
from ressmooth.spec import Branch, StudySpec
from ressmooth.store import RunRow

Forks = dict[str, set[int]]  # epochs by the key of the prefix


def forks(spec: StudySpec, cutoff: float | None = None) -> Forks:
    """Return the epochs after which runs of a study leave their prefix, by its key.

    They are known where nothing is sampled. Where smoothing is, a checkpoint after each tenth of
    training serves whatever is chosen. Another `cutoff` than the study's can be tried.
    """
    found: Forks = defaultdict(set)
    if cutoff is None and not any(_has_cutoff(branch) for branch in spec.branches):
        return found
    for branch, settings in _examples(spec, cutoff):
        if settings["method"] != "smoothing" or not settings["cutoff"]:
            continue
        epochs = settings["epochs"]
        tenth = -(-epochs // 10)
        if not branch.space and (prefix := prefix_of(settings)):
            found[prefix.key].add(prefix.epochs)
        elif branch.space and branch.space.keys() <= SMOOTHING:
            found[prefix_key(settings)].update(range(tenth, epochs, tenth))
    return found


def _has_cutoff(branch: Branch) -> bool:
    return bool(branch.values.get("cutoff")) or "cutoff" in branch.space


def _examples(spec: StudySpec, cutoff: float | None) -> Iterator[tuple[Branch, dict[str, Any]]]:
    for branch in spec.branches:
        settings = branch.example().model_dump()
        if cutoff is not None and "cutoff" not in branch.space:
            settings["cutoff"] = cutoff
        yield branch, settings


@dataclass(frozen=True)
class Sharing:
    """The epochs of a study's grid, and those of them that are trained."""

    planned: int
    trained: int

    @property
    def share(self) -> float:
        return self.trained / self.planned if self.planned else 1.0


def sharing(spec: StudySpec, cutoff: float | None = None) -> Sharing:
    """Count the epochs of a study, and what is left of them if runs share their prefixes.

    What is sampled shares nothing here, because it is not known yet.
    """
    kept = forks(spec, cutoff)
    prefixes: dict[str, list[int]] = defaultdict(list)
    planned = 0
    for branch, settings in _examples(spec, cutoff):
        planned += settings["epochs"] * spec.planned_trials(branch)
        prefix = None if branch.space else prefix_of(settings)
        if prefix:
            prefixes[prefix.key].append(prefix.epochs)
    shared = sum(shared_epochs(plain, sorted(kept[key])) for key, plain in prefixes.items())
    return Sharing(planned * spec.seeds, (planned - shared) * spec.seeds)


def awaits_prefix(
    run: RunRow, training: Iterable[RunRow], reached: dict[tuple[str, int], int]
) -> bool:
    """Tell whether another run is training a part of this one's prefix that nobody has yet."""
    if run.prefix is None or run.plain_epochs is None or run.last_epoch:
        return False
    key = run.prefix, run.seed
    coming = [
        min(other.plain_epochs or 0, run.plain_epochs)
        for other in training
        if (other.prefix, other.seed) == key
    ]
    return max(coming, default=0) > reached.get(key, 0)
