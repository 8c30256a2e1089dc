"""Describe comparisons in sentences: verdicts to quote, and the notes that belong to them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ressmooth.formatting import count, settings
from ressmooth.report.compare import (
    ArmResult,
    Comparison,
    Confirmation,
    Line,
    Ordering,
    by_selecting_statistic,
    nearest,
)
from ressmooth.report.measure import MISSING, Measure
from ressmooth.report.paper import deviations
from ressmooth.report.reference import other_differences, reference_name
from ressmooth.report.stats import MAX_SEEDS, MIN_SEEDS, Sample

SELECTION = {
    "paper": "Validation uses the test set, as in the paper, so selected figures are "
    "optimistically biased.",
    "holdout": "A tenth of the training set was held out for selection; the test set was not used "
    "for it.",
}


def verdict_sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """Return every verdict, after a summary if there are more than two."""
    found = [verdict(line, table) for table in comparisons for line in table.tested]
    selecting = by_selecting_statistic(comparisons)
    if sum(len(table.tested) for table in selecting) > 2:
        found.insert(0, summary(selecting))
    return found + [sentence for table in comparisons for sentence in rankings(table)]


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
        f"{_finding(line, comparison.tests, min(line.sample.n, theirs.n))}{_agreement(line)}"
    )


def is_gain(line: Line) -> bool:
    """Tell whether the arm is better than its reference by the metric's direction."""
    return line.difference is not None and line.arm.measure.score(line.difference.mean) > 0


def _arm_text(arm: ArmResult) -> str:
    selected = settings(arm.searched)
    return arm.label + (f" ({selected})" if selected else "")


def sample_text(sample: Sample, measure: Measure) -> str:
    return f"{measure.mean_and_sd(sample)}{measure.unit} (n = {sample.n})"


def _finding(line: Line, comparisons: int, seeds: int) -> str:
    tested, measure = line.difference, line.arm.measure
    assert tested is not None
    difference = f"a difference of {measure.points(measure.signed(tested.mean))}"
    if tested.p is None:
        few = f"too few seeds to test (at least {MIN_SEEDS} per arm)"
        equal = "not tested, because it is the same for every seed"
        reason = few if seeds < MIN_SEEDS else equal
        return f"{difference}; {reason}"
    p = probability(tested.p) if tested.p < 0.001 else f"= {probability(tested.p)}"
    corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    evidence = (
        f"(95 % interval {measure.interval(tested.interval, signs=True)}, p {p}, "
        f"{tested.test} t-test{corrected})"
    )
    if tested.is_decided:
        what = "gain" if is_gain(line) else "loss"
        return f"a {what} of {measure.points(measure.number(abs(tested.mean)))} {evidence}"
    more = f"not even {MAX_SEEDS} seeds"
    if tested.more_seeds is not None:
        more = f"about {count(tested.more_seeds, 'more seed')}"
    return (
        f"{difference} {evidence}, undecided; "
        f"if that is the true difference, {more} per arm would decide it"
    )


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


def notes(comparisons: Sequence[Comparison], *, against_paper: bool) -> list[str]:
    """Return what a reader must know to judge the figures."""
    lines = [line for comparison in comparisons for line in comparison.lines]
    arms = list({line.arm.trial: line.arm for line in lines}.values())
    found = [SELECTION[each] for each in dict.fromkeys(arm.config["selection"] for arm in arms)]
    found += dict.fromkeys(
        f"Epochs and configurations were selected by {arm.measure.label}; "
        f"{'higher' if arm.measure.metric.is_higher_better else 'lower'} is better."
        for arm in arms
        if arm.measure.name != "accuracy"
    )
    found += _first_arm_notes(lines)
    found += _seed_notes(arms)
    found += [
        f"{arm.label} on {condition_text(arm.condition)}: the figures exclude "
        f"{count(arm.failed, 'failed seed')}."
        for arm in arms
        if arm.failed
    ]
    if any(line.difference and line.difference.p is not None for line in lines):
        found.append(
            "Intervals are 95 %. Intervals and p-values of differences are corrected for the "
            f"number of arms compared with {reference_name(lines)} (Bonferroni)."
        )
    found += dict.fromkeys(
        f"{line.arm.label} also differs from {line.reference.label} in {', '.join(keys)}."
        for line in lines
        if line.reference and (keys := other_differences(line.arm, line.reference))
    )
    return found + (_paper_notes(lines) if against_paper else [])


def _first_arm_notes(lines: Sequence[Line]) -> list[str]:
    """Name the references that were chosen because there is no SGD arm."""
    chosen = {
        line.reference.label
        for line in lines
        if line.reference and not line.reference.named and line.reference.method != "sgd"
    }
    return [
        f"No arm is plain SGD, so the others are compared with {name}, the first arm; "
        'reference = "ARM" in the study file names another.'
        for name in sorted(chosen)
    ]


def _seed_notes(arms: Sequence[ArmResult]) -> list[str]:
    """Say whether the seeds shown were used for selection."""
    biased = [arm for arm in arms if arm.tried > 1 and not arm.is_fresh]
    if not biased:
        is_fresh = any(arm.is_fresh for arm in arms)
        return ["The seeds shown are fresh: none was used for selection."] if is_fresh else []
    found = [
        f"{_names(biased)}: selected by the seeds shown, so their figures are optimistically "
        "biased."
    ]
    failed = [arm for arm in arms if arm.confirmation == Confirmation.FAILED]
    if failed:
        found.append(f"{_names(failed)}: every fresh seed failed, so no arm shows fresh seeds.")
    elif any(arm.confirmation == Confirmation.UNFINISHED for arm in arms):
        found.append("The fresh seeds that will confirm the selection are not all trained yet.")
    elif all(arm.confirmation == Confirmation.NONE for arm in arms):
        found.append(
            "Set confirm = N in the study file to retrain the selected configurations with N "
            "fresh seeds."
        )
    return found


def _names(arms: Iterable[ArmResult]) -> str:
    return ", ".join(dict.fromkeys(arm.label for arm in arms))


def _paper_notes(lines: Sequence[Line]) -> list[str]:
    known = [line for line in lines if line.published is not None]
    if not known:
        return ["The paper has no figures for this comparison."]
    found = []
    if any("test" in line.arm.samples for line in known):
        found.append(
            "Test accuracy is compared with the paper's mean, because the paper's max was "
            "selected on the test set."
        )
    differing = {
        f"{key} {_value_text(ours)} (paper {_value_text(paper)})"
        for line in known
        for key, (ours, paper) in deviations(line).items()
    }
    if differing:
        found.append(f"Different from the paper's protocol: {', '.join(sorted(differing))}.")
    return found


def condition_text(condition: Mapping[str, Any]) -> str:
    """Return a text such as "fashion_mnist (resnet20, fraction 0.125)"."""
    rest = {key: value for key, value in condition.items() if key not in ("dataset", "model")}
    if rest.get("fraction") == 1:
        del rest["fraction"]
    others = [f"{key} {_value_text(value)}" for key, value in rest.items()]
    return f"{condition['dataset']} ({', '.join([condition['model'], *others])})"


def _value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def probability(p: float | None) -> str:
    if p is None:
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
