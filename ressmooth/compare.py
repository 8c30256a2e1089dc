"""Which arm did best, does it beat SGD, and does that agree with the paper?

Arms are compared where their condition is the same: data set, network, fraction and the study's
[grid] cell. Of each arm the configuration counts that the study's own rule has selected.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ressmooth.errors import ConfigError
from ressmooth.inference import Difference, Sample, difference
from ressmooth.paper import Baseline, Problem, method_of
from ressmooth.store import Store, StudyRow, TrialRow, Winner
from ressmooth.store.rows import COMPLETE, FAILED, TERMINAL

Ordering = Literal["holds", "contradicted", "undecided"]

FIGURES = {"max": "max_acc", "mean": "mean_acc", "test": "test_acc"}  # of a run, by statistic
# The paper's max is chosen by the test set, its mean is not: that is what an honest test is like.
IN_PAPER = {"max": "max", "mean": "mean", "test": "mean"}
# Settings that an arm should share with the SGD it is compared with.
SHARED = ("augmentation", "output", "reduction", "epochs", "batch_size", "schedule", "precision")
# Settings of the paper's protocol: another value makes it another experiment.
PROTOCOL = ("epochs", "augmentation", "batch_size", "lr", "schedule", "momentum", "selection")


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
    is_confirmed: bool  # the seeds are fresh
    failed: int  # seeds without a result
    samples: dict[str, Sample]  # by statistic, the one that selects first

    @property
    def statistics(self) -> list[str]:
        return list(self.samples)


@dataclass(frozen=True)
class Line:
    """An arm in a comparison by one statistic; differences in points of percent."""

    arm: Arm
    sample: Sample
    baseline: Arm | None  # the SGD that it is compared with
    difference: Difference | None
    paper: float | None
    paper_difference: float | None  # the paper's to its own SGD

    @property
    def from_paper(self) -> float | None:
        return None if self.paper is None else self.sample.mean - self.paper

    @property
    def ordering(self) -> Ordering | None:
        """Of method and SGD as in the paper? None if it has no such ordering."""
        if self.difference is None or not self.paper_difference:
            return None
        if not self.difference.is_decided:
            return "undecided"
        agrees = (self.difference.mean > 0) == (self.paper_difference > 0)
        return "holds" if agrees else "contradicted"


@dataclass(frozen=True)
class Comparison:
    condition: dict[str, Any]
    statistic: str
    lines: list[Line]
    tests: int  # with SGD, for which differences are corrected

    @property
    def has_paper(self) -> bool:
        return any(line.paper is not None for line in self.lines)

    @property
    def tested(self) -> list[Line]:
        return [line for line in self.lines if line.difference is not None]


def compare_studies(store: Store, studies: Iterable[StudyRow]) -> list[Comparison]:
    return compare_arms(store, [a for s in studies for a in arms(s, store.winners(s.id))])


def compare_arms(store: Store, arms: Sequence[Arm]) -> list[Comparison]:
    return compare(arms, store.baselines(problem(arm.condition) for arm in arms))


def problem(condition: dict[str, Any]) -> Problem:
    return condition["dataset"], condition["model"], condition["fraction"]


def only(
    comparisons: Sequence[Comparison], names: Sequence[str], fractions: Sequence[float]
) -> list[Comparison]:
    """Some fractions, some arms and the SGD that each is to beat; all of them without names.

    What is left out of sight still counts for the correction.
    """
    lines = [line for table in comparisons for line in table.lines]
    _check("arm", names, [line.arm.name for line in lines])
    _check("fraction", fractions, [table.condition["fraction"] for table in comparisons])
    wanted = [t for t in comparisons if not fractions or t.condition["fraction"] in fractions]
    return [shown for table in wanted if (shown := _with(table, names)).lines]


def _with(table: Comparison, names: Sequence[str]) -> Comparison:
    if not names:
        return table
    kept = [line for line in table.lines if line.arm.name in names]
    needed = [line.arm for line in kept] + [line.baseline for line in kept]
    return replace(table, lines=[line for line in table.lines if line.arm in needed])


def _check(what: str, given: Sequence[Any], known: Sequence[Any]) -> None:
    for value in given:
        if value not in known:
            there = ", ".join(str(each) for each in dict.fromkeys(known))
            raise ConfigError(f"--{what} {value}: no such {what} here; there is {there}")


def leading(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Those by the statistic that selects."""
    return [each for each in comparisons if each.lines[0].arm.statistics[0] == each.statistic]


def arms(study: StudyRow, winners: Sequence[Winner]) -> list[Arm]:
    """The arms of a study that have a complete trial, in the order of the study."""
    objective = study.spec["search"].get("objective", "max")
    return [_arm(study.name, winner, objective) for winner in winners]


def _arm(study: str, winner: Winner, objective: str) -> Arm:
    chosen, trial = winner.trial, _reported(winner)
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
        trial is not chosen,
        sum(run.state == FAILED for run in trial.runs),
        samples(trial, objective),
    )


def _reported(winner: Winner) -> TrialRow:
    """The fresh seeds, once they are all trained; until then those that selected."""
    fresh = winner.confirmation
    if fresh is None or any(run.state not in TERMINAL for run in fresh.runs):
        return winner.trial
    return fresh if any(run.state == COMPLETE for run in fresh.runs) else winner.trial


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


def compare(arms: Iterable[Arm], published: Sequence[Baseline]) -> list[Comparison]:
    """One table per condition and statistic; arms of several studies may meet in it."""
    groups: dict[tuple[str, str], list[Arm]] = {}
    for arm in arms:
        for statistic in arm.statistics:
            groups.setdefault((repr(sorted(arm.condition.items())), statistic), []).append(arm)
    return [_table(group, statistic, published) for (_, statistic), group in groups.items()]


def _table(arms: list[Arm], statistic: str, published: Sequence[Baseline]) -> Comparison:
    baselines = [baseline_of(arm, arms) for arm in arms]
    tests = sum(baseline is not None for baseline in baselines)
    lines = []
    for arm, baseline in zip(arms, baselines, strict=True):
        sample, figure = arm.samples[statistic], published_for(arm, statistic, published)
        if baseline is None:
            lines.append(Line(arm, sample, None, None, figure, None))
            continue
        tested = difference(sample, baseline.samples[statistic], tests)
        its = published_for(baseline, statistic, published)
        gain = None if figure is None or its is None else figure - its
        lines.append(Line(arm, sample, baseline, tested, figure, gain))
    return Comparison(arms[0].condition, statistic, lines, tests)


def baseline_of(arm: Arm, arms: Iterable[Arm]) -> Arm | None:
    """The SGD that an arm is to beat: of its own study, most alike otherwise, the best."""
    if arm.method == "sgd":
        return None
    candidates = [other for other in arms if other.method == "sgd"]
    return max(
        candidates,
        key=lambda sgd: (sgd.study == arm.study, -len(unlike(arm, sgd)), sgd.value),
        default=None,
    )


def unlike(arm: Arm, baseline: Arm) -> list[str]:
    """What else than the method differs, and could explain a difference."""
    return [key for key in SHARED if arm.config[key] != baseline.config[key]]


def published_for(arm: Arm, statistic: str, published: Iterable[Baseline]) -> float | None:
    """The paper's figure for the arm's method: at the arm's weight decay, if that is fixed and
    was published, otherwise the best, as the arm's own is the best."""
    rows = [
        row
        for row in published
        if row.problem == problem(arm.condition)
        and (row.method, row.statistic) == (arm.method, IN_PAPER[statistic])
    ]
    if "weight_decay" not in arm.params:
        fixed = [row for row in rows if row.weight_decay == arm.config["weight_decay"]]
        rows = fixed or rows
    return max((row.value for row in rows), default=None)


def deviations(arm: Arm) -> dict[str, tuple[Any, Any]]:
    """Where the arm's training is not the paper's: setting -> (ours, the paper's)."""
    from ressmooth.config import parse  # a tenth of a second, only for this

    kept = ("dataset", "optimizer")
    protocol = parse({key: arm.config[key] for key in kept}).model_dump()
    return {
        key: (arm.config[key], protocol[key])
        for key in PROTOCOL
        if arm.config[key] != protocol[key]
    }


def nearest(comparison: Comparison) -> list[tuple[Line, float]]:
    """Rival readings of one method of the paper, nearest first.

    The distance is the mean of how far the arm and its SGD are from the paper's figures. Empty
    where every method has one arm.
    """
    by_name = {(line.arm.study, line.arm.name): line for line in comparison.lines}
    rivals: list[tuple[Line, float]] = []
    for line in comparison.tested:
        same = [other for other in comparison.tested if other.arm.method == line.arm.method]
        assert line.baseline is not None
        sgd = by_name[line.baseline.study, line.baseline.name].from_paper
        if len(same) > 1 and line.from_paper is not None and sgd is not None:
            rivals.append((line, (abs(line.from_paper) + abs(sgd)) / 2))
    return sorted(rivals, key=lambda rival: rival[1])
