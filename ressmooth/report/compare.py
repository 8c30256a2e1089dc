"""Which arm did best, does it beat SGD, and does that agree with the paper?

Arms are compared where their condition is the same: data set, network, fraction and the study's
[grid] cell. Of each arm the configuration counts that the study's own rule has selected."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ressmooth.errors import ConfigError
from ressmooth.report.paper import method_of
from ressmooth.report.stats import Difference, Sample, difference
from ressmooth.store import Problem, PublishedFigure, State, Store, StudyRow, TrialRow, Winner

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
    if any(not run.state.is_terminal for run in fresh.runs):
        return "unfinished"
    return "fresh" if any(run.state == State.COMPLETE for run in fresh.runs) else "failed"


def _arm(study: str, winner: Winner, is_fresh: bool, objective: str) -> Arm:
    chosen = winner.trial
    trial = winner.confirmation if is_fresh and winner.confirmation else chosen
    config = {key: value for key, value in chosen.runs[0].config.items() if key != "seed"}
    runs = [run for run in trial.runs if run.state == State.COMPLETE]
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
        sum(run.state == State.FAILED for run in trial.runs),
        samples(trial, objective),
        chosen.arm,
    )


def samples(trial: TrialRow, objective: str) -> dict[str, Sample]:
    """A trial's accuracies by statistic and seed, the statistic that selects first."""
    names = ["max", "mean"] if objective == "max" else ["mean", "max"]
    if trial.runs[0].config["selection"] == "holdout":
        names = ["test"]  # what was held out has selected the epoch
    complete = [run for run in trial.runs if run.state == State.COMPLETE]
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


Ordering = Literal["holds", "contradicted", "undecided"]
# The paper's max is chosen by the test set, its mean is not: that is what an honest test is like.
IN_PAPER = {"max": "max", "mean": "mean", "test": "mean"}
# Settings that an arm should share with the SGD it is compared with; the second with its kind.
SHARED = ("augmentation", "output", "reduction", "epochs", "batch_size", "schedule", "precision")
OF_OPTIMIZER = ("lr", "momentum")
# Settings of the paper's protocol: another value makes it another experiment.
PROTOCOL = ("epochs", "augmentation", "batch_size", "lr", "schedule", "momentum", "selection")
OF_SMOOTHING = ("mu", "alpha", "layers")


@dataclass(frozen=True)
class Line:
    """An arm in a comparison by one statistic; differences in points of percent."""

    arm: Arm
    sample: Sample
    baseline: Arm | None  # the SGD that it is compared with
    difference: Difference | None
    published: PublishedFigure | None
    paper_difference: float | None  # the paper's to its own SGD

    @property
    def paper(self) -> float | None:
        return None if self.published is None else self.published.value

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
    return compare_arms(store, [a for s in studies for a in arms_of(s, store.winners(s.id))])


def compare_arms(store: Store, arms: Sequence[Arm]) -> list[Comparison]:
    return compare(arms, store.published_figures(problem(arm.condition) for arm in arms))


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
    shown = [table for each in wanted if (table := _with(each, names)).lines]
    if not shown:
        there = dict.fromkeys(line.arm.name for table in wanted for line in table.lines)
        raise ConfigError(
            f"--arm {', '.join(names)}: not at that fraction; there is {', '.join(there)}"
        )
    return shown


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


def compare(arms: Iterable[Arm], published: Sequence[PublishedFigure]) -> list[Comparison]:
    """One table per condition and statistic; arms of several studies may meet in it."""
    given = list(arms)
    if len({arm.study for arm in given}) > 1:
        given = [replace(arm, label=f"{arm.study}: {arm.name}") for arm in given]
    groups: dict[tuple[str, str], list[Arm]] = {}
    for arm in given:
        for statistic in arm.statistics:
            groups.setdefault((repr(sorted(arm.condition.items())), statistic), []).append(arm)
    return [_table(group, statistic, published) for (_, statistic), group in groups.items()]


def _table(arms: list[Arm], statistic: str, published: Sequence[PublishedFigure]) -> Comparison:
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
        gain = None if figure is None or its is None else figure.value - its.value
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
    """What else than the method differs, and could explain a difference; not what both tune."""
    alike = arm.config["optimizer"] == baseline.config["optimizer"]
    return [
        key
        for key in (*SHARED, *(OF_OPTIMIZER if alike else ()))
        if arm.config[key] != baseline.config[key]
        and not (key in arm.params and key in baseline.params)
    ]


def published_for(
    arm: Arm, statistic: str, published: Iterable[PublishedFigure]
) -> PublishedFigure | None:
    """The paper's figure for the arm's method: at the arm's weight decay, if that is fixed and
    was published, otherwise the best, as the arm's own is the best."""
    rows = [
        row
        for row in published
        if row.problem == problem(arm.condition)
        and (row.method, row.statistic) == (arm.method, IN_PAPER[statistic])
    ]
    if "weight_decay" not in searched(arm):
        fixed = [row for row in rows if row.weight_decay == arm.config["weight_decay"]]
        rows = fixed or rows
    return max(rows, key=lambda row: row.value, default=None)


def deviations(line: Line) -> dict[str, tuple[Any, Any]]:
    """Where an arm's training is not the paper's: setting -> (ours, the paper's)."""
    from ressmooth.config import parse

    arm = line.arm
    protocol = parse({key: arm.config[key] for key in ("dataset", "optimizer")}).model_dump()
    keys = list(PROTOCOL)
    if arm.config["method"] == "smoothing":
        keys += OF_SMOOTHING
    if line.published is not None:
        keys.append("weight_decay")
        protocol["weight_decay"] = line.published.weight_decay
    if arm.method and arm.method.startswith("global"):
        protocol["alpha"] = 0.0
    return {
        key: (arm.config[key], protocol[key])
        for key in keys
        if arm.config[key] != protocol[key] and key not in searched(arm)
    }


def nearest(comparison: Comparison) -> list[list[tuple[Line, float]]]:
    """Rival readings of a method of the paper, nearest first; a list for each that has rivals.

    The distance is the mean of how far the arm and the SGD of the same reading are from the
    paper's figures.
    """
    distances = {line.arm.trial: line.from_paper for line in comparison.lines}
    rivals: dict[tuple[str, str], list[tuple[Line, float]]] = {}
    for line in comparison.tested:
        assert line.baseline is not None
        own, sgd = line.from_paper, distances[line.baseline.trial]
        if own is None or sgd is None or unlike(line.arm, line.baseline):
            continue
        group = rivals.setdefault((line.arm.study, line.arm.method or ""), [])
        group.append((line, (abs(own) + abs(sgd)) / 2))
    return [sorted(group, key=lambda rival: rival[1]) for group in rivals.values() if group[1:]]
