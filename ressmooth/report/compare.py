"""Compare arms: which did best, does it beat the reference, and does that agree with the paper?

Arms are compared where their condition is the same: data set, network, fraction and cell of
[grid]. Each arm is represented by the configuration that the study's own rule selected.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Any

from ressmooth.errors import ConfigError, did_you_mean
from ressmooth.report.measure import MEASURES, Measure
from ressmooth.report.paper import method_of, problem, published_for
from ressmooth.report.reference import other_differences, reference_for
from ressmooth.report.stats import Difference, Sample, difference
from ressmooth.store import PublishedFigure, State, Store, StudyRow, TrialRow, Winner
from ressmooth.store.devices import devices_of


class Confirmation(StrEnum):
    """The state of an arm's confirmation with fresh seeds."""

    NONE = "none"
    UNFINISHED = "unfinished"
    FAILED = "failed"
    FRESH = "fresh"


class Ordering(StrEnum):
    """Whether an arm and SGD are in the same order as in the paper."""

    HOLDS = "holds"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class ArmResult:
    """An arm's selected configuration under one condition, and its figures by seed."""

    study: str
    name: str
    condition: dict[str, Any]
    params: dict[str, Any]  # of the selected configuration
    config: dict[str, Any]  # of its runs, without the seed
    method: str | None  # the paper's name
    trial: int
    runs: tuple[int, ...]
    trials: dict[State, int]  # trials of the search by state
    value: float  # by which it was selected
    confirmation: Confirmation
    is_fresh: bool  # the figures are of seeds that were not used for selection
    failed: int  # seeds without a result
    samples: dict[str, Sample]  # by statistic; the one that selects is first
    label: str  # the arm's name, preceded by the study's if there are several
    measure: Measure  # of the study's metric
    named: str | None  # the arm that the study names as its reference
    asked: str | None  # the arm that --reference names instead
    devices: tuple[str, ...] = ()  # that its runs were trained on

    @property
    def selecting_sample(self) -> Sample:
        return next(iter(self.samples.values()))

    @property
    def tried(self) -> int:
        """The complete trials, from which this one was selected."""
        return self.trials.get(State.COMPLETE, 0)

    @property
    def is_biased(self) -> bool:
        """Tell whether the seeds shown also selected the configuration."""
        return self.tried > 1 and not self.is_fresh

    @property
    def searched(self) -> dict[str, Any]:
        """The selected parameters that are not part of the condition."""
        return {key: value for key, value in self.params.items() if key not in self.condition}


@dataclass(frozen=True)
class Line:
    """An arm in a comparison by one statistic. Differences are in the metric's unit."""

    arm: ArmResult
    sample: Sample
    published: PublishedFigure | None
    reference: ArmResult | None = None  # the arm that it is compared with
    difference: Difference | None = None
    paper_difference: float | None = None  # between the paper's figures for the arm and for SGD

    @property
    def paper(self) -> float | None:
        return None if self.published is None else self.published.value

    @property
    def from_paper(self) -> float | None:
        return None if self.paper is None else self.sample.mean - self.paper

    @property
    def ordering(self) -> Ordering | None:
        """None if the paper has no ordering of the two."""
        if self.difference is None or not self.paper_difference:
            return None
        if not self.difference.is_decided:
            return Ordering.UNDECIDED
        agrees = self.difference.is_positive == (self.paper_difference > 0)
        return Ordering.HOLDS if agrees else Ordering.CONTRADICTED


@dataclass(frozen=True)
class Comparison:
    """The arms of one condition, compared by one statistic."""

    condition: dict[str, Any]
    statistic: str
    lines: list[Line]
    tests: int  # number of tests that p-values and intervals are corrected for

    @property
    def measure(self) -> Measure:
        return self.lines[0].arm.measure

    @property
    def has_paper(self) -> bool:
        return any(line.paper is not None for line in self.lines)

    @property
    def tested(self) -> list[Line]:
        return [line for line in self.lines if line.difference is not None]


def arm_results(
    study: StudyRow, winners: Sequence[Winner], reference: str | None = None
) -> list[ArmResult]:
    """Return the arms of a study that have a complete trial, in the order of the study file.

    `reference` replaces the reference that the study names.

    Fresh seeds are reported only where all arms of a condition have them. Comparing one arm's
    fresh seeds with seeds that selected the other would be unfair.
    """
    position = {name: number for number, name in enumerate(study.spec["arms"])}
    unconfirmed = [w.trial.condition for w in winners if _confirmation(w) != Confirmation.FRESH]
    return [
        _arm_result(study, winner, winner.trial.condition not in unconfirmed, reference)
        for winner in sorted(winners, key=lambda winner: position[winner.trial.arm])
    ]


def _confirmation(winner: Winner) -> Confirmation:
    if winner.confirmation is None:
        return Confirmation.NONE
    states = [run.state for run in winner.confirmation.runs]
    if not all(state.is_terminal for state in states):
        return Confirmation.UNFINISHED
    return Confirmation.FRESH if State.COMPLETE in states else Confirmation.FAILED


def _arm_result(
    study: StudyRow, winner: Winner, is_fresh: bool, reference: str | None
) -> ArmResult:
    selected = winner.trial
    shown = winner.confirmation if is_fresh and winner.confirmation else selected
    config = {key: value for key, value in selected.runs[0].config.items() if key != "seed"}
    return ArmResult(
        study=study.name,
        name=selected.arm,
        condition=selected.condition,
        params=selected.params,
        config=config,
        method=method_of(config),
        trial=shown.id,
        runs=tuple(run.id for run in shown.runs if run.state == State.COMPLETE),
        trials=winner.states,
        value=selected.value or 0.0,
        confirmation=_confirmation(winner),
        is_fresh=is_fresh,
        failed=sum(run.state == State.FAILED for run in shown.runs),
        samples=samples(shown, study.spec["search"].get("objective", "max")),
        label=selected.arm,
        measure=measure_of(selected),
        named=reference or study.spec.get("reference"),
        asked=reference,
        devices=tuple(sorted({name for run in shown.runs for name in devices_of(run)})),
    )


def measure_of(trial: TrialRow) -> Measure:
    """Return the measure of the metric that selects. Earlier versions had only accuracy."""
    return MEASURES[trial.runs[0].config.get("metric", "accuracy")]


def samples(trial: TrialRow, objective: str) -> dict[str, Sample]:
    """Return a trial's figures by statistic, the one that selects first."""
    names = ["max", "mean"] if objective == "max" else ["mean", "max"]
    if trial.runs[0].config["selection"] == "holdout":
        names = ["test"]  # the validation set has selected the epoch
    metric = measure_of(trial).name
    complete = [run for run in trial.runs if run.state == State.COMPLETE]
    found = {
        name: {run.seed: v for run in complete if (v := run.result(metric, name)) is not None}
        for name in names
    }
    return {name: Sample(by_seed) for name, by_seed in found.items() if by_seed}


def conditions(rows: Iterable[ArmResult | TrialRow]) -> list[dict[str, Any]]:
    """Return the different conditions, in the order in which they appear."""
    return list({str(row.condition): row.condition for row in rows}.values())


def compare_studies(
    store: Store, studies: Iterable[StudyRow], reference: str | None = None
) -> list[Comparison]:
    """Compare the arms of studies with `reference`, or with the reference of each study."""
    found = [arm_results(s, store.winners(s.id), reference) for s in studies]
    arms = [arm for each in found for arm in each]
    if reference is not None and arms:
        _check_known("reference", [reference], [arm.name for arm in arms])
    return compare_arms(store, arms)


def compare_arms(store: Store, arms: Sequence[ArmResult]) -> list[Comparison]:
    """Return one comparison per condition, metric and statistic.

    Arms of several studies may share one.
    """
    published = store.published_figures(problem(arm.condition) for arm in arms)
    if len({arm.study for arm in arms}) > 1:
        arms = [replace(arm, label=f"{arm.study}: {arm.name}") for arm in arms]
    groups: dict[tuple[str, str, str], list[ArmResult]] = {}
    for arm in arms:
        for statistic in arm.samples:
            key = repr(sorted(arm.condition.items())), arm.measure.name, statistic
            groups.setdefault(key, []).append(arm)
    return [_comparison(group, statistic, published) for (*_, statistic), group in groups.items()]


def _comparison(
    arms: list[ArmResult], statistic: str, published: Sequence[PublishedFigure]
) -> Comparison:
    references = [reference_for(arm, arms) for arm in arms]
    tests = sum(reference is not None for reference in references)
    lines = []
    for arm, reference in zip(arms, references, strict=True):
        sample, figure = arm.samples[statistic], published_for(arm, statistic, published)
        if reference is None:
            lines.append(Line(arm, sample, figure))
            continue
        tested = difference(sample, reference.samples[statistic], tests)
        # the paper compares its methods with SGD only
        is_as_published = reference.method == "sgd" and arm.method != "sgd"
        sgd = published_for(reference, statistic, published) if is_as_published else None
        gain = None if figure is None or sgd is None else figure.value - sgd.value
        lines.append(Line(arm, sample, figure, reference, tested, gain))
    return Comparison(arms[0].condition, statistic, lines, tests)


def nearest(comparison: Comparison) -> list[list[tuple[Line, float]]]:
    """Rank the readings of each method that has several by their distance from the paper."""
    distances = {line.arm.trial: line.from_paper for line in comparison.lines}
    readings: dict[tuple[str, str], list[tuple[Line, float]]] = {}
    for line in comparison.tested:
        assert line.reference is not None
        own, sgd = line.from_paper, distances[line.reference.trial]
        if line.paper_difference is None or other_differences(line.arm, line.reference):
            continue
        assert own is not None and sgd is not None
        group = readings.setdefault((line.arm.study, line.arm.method or ""), [])
        group.append((line, (abs(own) + abs(sgd)) / 2))
    return [sorted(group, key=lambda r: r[1]) for group in readings.values() if len(group) > 1]


@dataclass(frozen=True)
class Row:
    """The figures of one reading of SGD at several weight decays, beside the paper's."""

    lines: list[Line]

    @property
    def label(self) -> str:
        return self.lines[0].arm.label

    @property
    def distance(self) -> float:
        """The mean distance from the paper's figures."""
        return fmean(abs(line.from_paper or 0.0) for line in self.lines)


def nearest_rows(comparisons: Iterable[Comparison]) -> list[Row]:
    """Rank readings of SGD by their distance from the paper over all weight decays of a [grid].

    Takes comparisons by one statistic. Readings that lack a weight decay are left out.
    """
    found: dict[tuple[str, str], list[Line]] = {}
    for comparison in comparisons:
        for line in comparison.lines:
            if line.arm.method == "sgd" and line.paper and "weight_decay" in line.arm.condition:
                found.setdefault((line.arm.study, line.arm.name), []).append(line)
    longest = max(map(len, found.values()), default=0)
    rows = [Row(lines) for lines in found.values() if len(lines) == longest > 1]
    return sorted(rows, key=lambda row: row.distance) if len(rows) > 1 else []


def by_selecting_statistic(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Return the comparisons by the statistic that selected the configurations."""
    return [each for each in comparisons if next(iter(each.lines[0].arm.samples)) == each.statistic]


def filter_comparisons(
    comparisons: Sequence[Comparison], names: Sequence[str], fractions: Sequence[float]
) -> list[Comparison]:
    """Keep the named arms with their references, and the given fractions. Empty means all.

    The correction for the number of tests still counts the arms that are left out.
    """
    lines = [line for table in comparisons for line in table.lines]
    _check_known("arm", names, [line.arm.name for line in lines])
    _check_known("fraction", fractions, [table.condition["fraction"] for table in comparisons])
    wanted = [t for t in comparisons if not fractions or t.condition["fraction"] in fractions]
    shown = [table for each in wanted if (table := _filter_arms(each, names)).lines]
    if not shown:
        known = dict.fromkeys(line.arm.name for table in wanted for line in table.lines)
        raise ConfigError(
            f"--arm {', '.join(names)}: no results at that fraction; known: {', '.join(known)}"
        )
    return shown


def _check_known(option: str, values: Sequence[Any], known: Sequence[Any]) -> None:
    for value in values:
        if value not in known:
            names = ", ".join(str(each) for each in dict.fromkeys(known))
            hint = did_you_mean(str(value)[:64], map(str, known))
            raise ConfigError(f"--{option} {value}: no such {option} here{hint}; known: {names}")


def _filter_arms(table: Comparison, names: Sequence[str]) -> Comparison:
    kept = [line for line in table.lines if not names or line.arm.name in names]
    shown = [line.arm for line in kept] + [line.reference for line in kept]
    return replace(table, lines=[line for line in table.lines if line.arm in shown])
