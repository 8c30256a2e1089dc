"""The arms of a study: the configuration that each has selected, and its accuracies by seed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ressmooth.inference import Sample
from ressmooth.paper import Problem, method_of
from ressmooth.store import StudyRow, TrialRow, Winner
from ressmooth.store.rows import COMPLETE, FAILED, TERMINAL

Confirmation = Literal["none", "unfinished", "failed", "fresh"]

FIGURES = {"max": "max_acc", "mean": "mean_acc", "test": "test_acc"}  # of a run, by statistic


@dataclass(frozen=True)
class Arm:
    """An arm's selected configuration under one condition, and its accuracies by seed."""

    study: str
    name: str
    condition: dict[str, Any]
    params: dict[str, Any]  # what was selected
    config: dict[str, Any]  # of its runs, the seed aside
    method: str | None  # as the paper names it
    trial: int
    runs: tuple[int, ...]
    tried: int  # complete trials, from which this was selected
    value: float  # what it was selected by
    confirmation: Confirmation
    is_fresh: bool  # the figures are of seeds that have selected nothing
    failed: int  # seeds without a result
    samples: dict[str, Sample]  # by statistic, the one that selects first
    label: str  # its name, with the study's if there are several

    @property
    def statistics(self) -> list[str]:
        return list(self.samples)

    @property
    def leading(self) -> Sample:
        """By the statistic that selects."""
        return next(iter(self.samples.values()))


def arms_of(study: StudyRow, winners: Sequence[Winner]) -> list[Arm]:
    """The arms of a study that have a complete trial, in the order of the study.

    Fresh seeds are reported where all arms of a condition have them: fresh ones of one arm against
    seeds that have selected the other would be no fair test.
    """
    objective = study.spec["search"].get("objective", "max")
    stale = [w.trial.condition for w in winners if _confirmation(w) != "fresh"]
    return [
        _arm(study.name, winner, winner.trial.condition not in stale, objective)
        for winner in winners
    ]


def _confirmation(winner: Winner) -> Confirmation:
    fresh = winner.confirmation
    if fresh is None:
        return "none"
    if any(run.state not in TERMINAL for run in fresh.runs):
        return "unfinished"
    return "fresh" if any(run.state == COMPLETE for run in fresh.runs) else "failed"


def _arm(study: str, winner: Winner, is_fresh: bool, objective: str) -> Arm:
    chosen = winner.trial
    trial = winner.confirmation if is_fresh and winner.confirmation else chosen
    config = {key: value for key, value in chosen.runs[0].config.items() if key != "seed"}
    runs = [run for run in trial.runs if run.state == COMPLETE]
    return Arm(
        study,
        chosen.arm,
        chosen.condition,
        chosen.params,
        config,
        method_of(config),
        trial.id,
        tuple(run.id for run in runs),
        winner.tried,
        chosen.value or 0.0,
        _confirmation(winner),
        is_fresh,
        sum(run.state == FAILED for run in trial.runs),
        samples(trial, objective),
        chosen.arm,
    )


def samples(trial: TrialRow, objective: str) -> dict[str, Sample]:
    """A trial's accuracies by statistic and seed, the statistic that selects first."""
    names = ["max", "mean"] if objective == "max" else ["mean", "max"]
    if trial.runs[0].config["selection"] == "holdout":
        names = ["test"]  # what was held out has selected the epoch
    complete = [run for run in trial.runs if run.state == COMPLETE]
    found = {
        name: {run.seed: v for run in complete if (v := getattr(run, FIGURES[name])) is not None}
        for name in names
    }
    return {name: Sample(by_seed) for name, by_seed in found.items() if by_seed}


def searched(arm: Arm) -> dict[str, Any]:
    """What was selected; what all arms of the condition share is none of it."""
    return {key: value for key, value in arm.params.items() if key not in arm.condition}


def conditions(of: Iterable[Arm | TrialRow]) -> list[dict[str, Any]]:
    """The different ones, in the order in which they appear."""
    return list({str(each.condition): each.condition for each in of}.values())


def problem(condition: dict[str, Any]) -> Problem:
    return condition["dataset"], condition["model"], condition["fraction"]
