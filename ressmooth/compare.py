"""Which arm did best, does it beat SGD, and does that agree with the paper?

Arms are compared where their condition is the same: data set, network, fraction and the study's
[grid] cell. Of each arm the configuration counts that the study's own rule has selected.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ressmooth.arms import Arm, arms_of, problem, searched
from ressmooth.errors import ConfigError
from ressmooth.inference import Difference, Sample, difference
from ressmooth.paper import Baseline
from ressmooth.store import Store, StudyRow

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
    published: Baseline | None
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
    return compare(arms, store.baselines(problem(arm.condition) for arm in arms))


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


def compare(arms: Iterable[Arm], published: Sequence[Baseline]) -> list[Comparison]:
    """One table per condition and statistic; arms of several studies may meet in it."""
    given = list(arms)
    if len({arm.study for arm in given}) > 1:
        given = [replace(arm, label=f"{arm.study}: {arm.name}") for arm in given]
    groups: dict[tuple[str, str], list[Arm]] = {}
    for arm in given:
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


def published_for(arm: Arm, statistic: str, published: Iterable[Baseline]) -> Baseline | None:
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
    from ressmooth.config import parse  # a tenth of a second, only for this

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
