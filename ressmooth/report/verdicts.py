"""Describe comparisons in sentences: verdicts to quote, and the notes that belong to them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import floor
from typing import Any

from ressmooth.evidence import MAX_SEEDS, least_seeds
from ressmooth.formatting import count, settings
from ressmooth.report.compare import (
    ArmResult,
    Comparison,
    Line,
    Ordering,
    by_selecting_statistic,
    nearest,
    nearest_rows,
)
from ressmooth.report.measure import MISSING, Measure
from ressmooth.report.reference import reference_name
from ressmooth.report.stats import MIN_SEEDS, Difference, Sample


def verdict_sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """Return every verdict, after a summary if there are more than two."""
    found = [verdict(line, table) for table in comparisons for line in table.tested]
    selecting = by_selecting_statistic(comparisons)
    if sum(len(table.tested) for table in selecting) > 2:
        found.insert(0, summary(selecting))
    found += [sentence for table in comparisons for sentence in rankings(table)]
    return found + [*row_ranking(selecting)]


def summary(comparisons: Sequence[Comparison]) -> str:
    """Count the verdicts of comparisons by one statistic."""
    lines = [line for comparison in comparisons for line in comparison.tested]
    decided = [line for line in lines if line.difference and line.difference.is_decided]
    gains = sum(map(is_gain, decided))
    losses = len(decided) - gains
    found = (
        f"By {comparisons[0].measure.phrase(comparisons[0].statistic)}, "
        f"{count(len(lines), 'comparison')} with {reference_name(lines)} "
        f"gave {count(gains, 'gain')}, {losses} {'loss' if losses == 1 else 'losses'} and "
        f"{len(lines) - len(decided)} undecided"
    )
    orderings = Counter(line.ordering for line in lines if line.ordering)
    if not orderings:
        return f"{found}."
    return (
        f"{found}; the paper's ordering holds in {orderings[Ordering.HOLDS]}, is contradicted in "
        f"{orderings[Ordering.CONTRADICTED]} and is undecided in {orderings[Ordering.UNDECIDED]}."
    )


def verdict(line: Line, comparison: Comparison) -> str:
    """Say whether the arm beats its reference, and whether it does in the paper."""
    reference, measure = line.reference, comparison.measure
    assert reference is not None
    theirs = reference.samples[comparison.statistic]
    return (
        f"By {measure.phrase(comparison.statistic)} on {condition_text(comparison.condition)}, "
        f"{_arm_text(line.arm)} reaches {sample_text(line.sample, measure)} and "
        f"{_arm_text(reference)} {sample_text(theirs, measure)}: "
        f"{_finding(line, comparison.tests)}{_caveat(line, reference)}{_agreement(line)}"
    )


def is_gain(line: Line) -> bool:
    """Tell whether the arm is better than its reference by the metric's direction."""
    is_higher_better = line.arm.measure.metric.is_higher_better
    return line.difference is not None and line.difference.is_positive == is_higher_better


def _arm_text(arm: ArmResult) -> str:
    selected = settings(arm.searched)
    return arm.label + (f" ({selected})" if selected else "")


def sample_text(sample: Sample, measure: Measure) -> str:
    return f"{measure.mean_and_sd(sample)}{measure.unit} (n = {sample.n})"


def _finding(line: Line, comparisons: int) -> str:
    """Say what the seeds told about the difference."""
    tested, measure = line.difference, line.arm.measure
    assert tested is not None
    what = f"a difference of {measure.points(measure.signed(tested.mean))}"
    if tested.is_decided:
        side, sign = ("gain", 1) if is_gain(line) else ("loss", -1)
        what = f"a {side} of {measure.points(measure.number(sign * measure.score(tested.mean)))}"
    if tested.p is None:
        return what + _reason_without_test(tested, comparisons)
    interval = measure.interval(tested.interval, signs=True)
    facts = [] if tested.interval is None else [f"95 % interval {interval}"]
    p = probability(tested.p)
    facts.append(f"p {p}" if p.startswith("<") else f"p = {p}")
    if comparisons > 1:
        facts.append(f"corrected for {comparisons} comparisons")
    if tested.evidence is not None:
        facts.insert(0, odds(tested.evidence.e_value))
        return what + _decision(tested, facts, comparisons)
    undecided = "" if tested.is_decided else ", undecided"
    facts.append("Welch's t-test of different seeds, valid for one look only")
    return f"{what}{undecided} ({', '.join(facts)})"


def _caveat(line: Line, reference: ArmResult) -> str:
    """Say that a decision is about configurations that the same seeds have selected."""
    is_decided = line.difference is not None and line.difference.is_decided
    if not is_decided or not (line.arm.is_biased or reference.is_biased):
        return ""
    return (
        ", but these seeds also selected the configurations "
        f"(best of {line.arm.tried} against best of {reference.tried})"
    )


def _reason_without_test(tested: Difference, comparisons: int) -> str:
    if tested.is_paired and tested.n == 1:
        return f", undecided after {_seeds(tested)}{_least(tested, comparisons)}"
    if tested.is_paired or tested.n >= MIN_SEEDS:
        return "; not tested, because it is the same for every seed"
    return f"; not tested, because the seeds differ and an arm has fewer than {MIN_SEEDS}"


def _decision(tested: Difference, facts: Sequence[str], comparisons: int) -> str:
    """Say after how many seeds the difference was decided, or how many more would decide it."""
    assert tested.evidence is not None
    first, seeds = tested.evidence.decided_after, _seeds(tested)
    if first is not None:
        after = seeds if first == tested.n else f"{first} of {seeds}"
        return f", decided after {after} ({', '.join(facts)})"
    advice = f"even {MAX_SEEDS:,} seeds per arm would hardly decide so small a difference"
    if tested.more_seeds is not None:
        more = count(tested.more_seeds, "more seed")
        advice = f"if that is the true difference, about {more} per arm would decide it"
    return f", undecided after {seeds}{_least(tested, comparisons)} ({', '.join(facts)}); {advice}"


def _seeds(tested: Difference) -> str:
    return count(tested.n, "common seed" if tested.unpaired else "seed")


def _least(tested: Difference, comparisons: int) -> str:
    """Say how many seeds it takes at least, if there are fewer."""
    least = least_seeds(comparisons)
    return f"; at least {least} seeds are needed" if tested.n < least else ""


def odds(e_value: float) -> str:
    """Return the evidence for a difference, rounded down: evidence 250 : 1"""
    if e_value < 1.1:
        return "no evidence"
    if e_value >= 1e6:
        return "evidence over 1,000,000 : 1"
    shown = f"{floor(e_value):,}" if e_value >= 10 else f"{floor(e_value * 10) / 10:g}"
    return f"evidence {shown} : 1"


def _agreement(line: Line) -> str:
    if line.paper_difference is None:
        return "."
    reported = f"the paper reports {line.arm.measure.signed(line.paper_difference)}"
    return {
        Ordering.HOLDS: f"; the paper's ordering holds ({reported}).",
        Ordering.CONTRADICTED: f"; the paper's ordering is contradicted ({reported}).",
        Ordering.UNDECIDED: f"; {reported}.",
        None: "; the paper reports no difference.",
    }[line.ordering]


def rankings(comparison: Comparison) -> Iterator[str]:
    """Say which of several readings of the paper comes nearest to its figures."""
    for readings in nearest(comparison):
        line, distance = readings[0]
        assert line.reference is not None
        others = "; ".join(f"{other.arm.label} {far:.2f}" for other, far in readings[1:])
        is_hint = min(each.sample.n for each, _ in readings) == 1
        yield (
            f"By {comparison.statistic}, the reading of {line.arm.method} nearest to the paper is "
            f"{line.arm.label} with {line.reference.label}: {distance:.2f} points off on average "
            f"(next: {others})." + (" With one seed, this is only a hint." if is_hint else "")
        )


def row_ranking(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Say which reading of SGD comes nearest to the paper's row of weight decays."""
    if not (rows := nearest_rows(comparisons)):
        return
    best, *others = rows
    figures = "; ".join(
        f"{line.arm.condition['weight_decay']:g}: {line.sample.mean:.2f}, paper {line.paper:.2f}"
        for line in best.lines
    )
    following = "; ".join(f"{row.label} {row.distance:.2f}" for row in others)
    seeds = [line.sample.n for row in rows for line in row.lines]
    shown = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    yield (
        f"By {comparisons[0].statistic}, the reading of SGD nearest to the paper at all of its "
        f"{count(len(best.lines), 'weight decay')} is {best.label}: {best.distance:.2f} points off "
        f"on average ({figures}). Next: {following}. Seeds: {shown}."
    )


def condition_text(condition: Mapping[str, Any]) -> str:
    """Return a text such as "fashion_mnist (resnet20, fraction 0.125)"."""
    rest = {key: value for key, value in condition.items() if key not in ("dataset", "model")}
    if rest.get("fraction") == 1:
        del rest["fraction"]
    others = [f"{key} {value_text(value)}" for key, value in rest.items()]
    return f"{condition['dataset']} ({', '.join([condition['model'], *others])})"


def value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def probability(p: float | None) -> str:
    if p is None:
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
