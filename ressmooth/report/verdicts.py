"""Comparisons in sentences: verdicts that can be quoted, and what must be said beside them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ressmooth.formatting import count, settings
from ressmooth.report.compare import Arm, Comparison, Line, deviations, nearest, searched, unlike
from ressmooth.report.stats import FEWEST, MOST_SEEDS, Difference, Interval, Sample

SELECTION = {
    "paper": "Validation is the test set, as in the paper: that flatters whatever it selects.",
    "holdout": "A tenth of the training set selected; the test set, read at the end, did not.",
}
STATISTIC = {
    "max": "the best epoch's accuracy",
    "mean": "the mean accuracy over the last tenth of the epochs",
    "test": "the test accuracy",
}


def problem(condition: Mapping[str, Any]) -> str:
    """fashion_mnist (resnet20, fraction 0.125)"""
    rest = {key: value for key, value in condition.items() if key not in ("dataset", "model")}
    if rest.get("fraction") == 1:
        del rest["fraction"]
    others = [f"{key} {_number(value)}" for key, value in rest.items()]
    return f"{condition['dataset']} ({', '.join([condition['model'], *others])})"


def figure(sample: Sample) -> str:
    """mean ± standard deviation; one seed has no spread to speak of."""
    return f"{sample.mean:.2f}" + ("" if sample.sd is None else f" ± {sample.sd:.2f}")


def signed(points: float | None) -> str:
    if points is None:
        return "–"
    return f"{round(points, 2) + 0.0:+.2f}".replace("-", "−")  # + 0.0: no -0.00


def between(interval: Interval | None, *, signs: bool = False) -> str:
    if interval is None:
        return "–"
    low, high = (signed(end) if signs else f"{min(end, 100.0):.2f}" for end in interval)
    return f"{low} to {high}"


def probability(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def summary(comparisons: Sequence[Comparison]) -> str:
    """All verdicts by one statistic in one sentence."""
    lines = [line for comparison in comparisons for line in comparison.tested]
    decided = [line.difference for line in lines if line.difference and line.difference.is_decided]
    gains = sum(tested.mean > 0 for tested in decided)
    found = (
        f"By {STATISTIC[comparisons[0].statistic]}, of {count(len(lines), 'comparison')} with SGD "
        f"{_are(gains, 'gain')}, "
        f"{_are(len(decided) - gains, 'loss')} and {len(lines) - len(decided)} undecided"
    )
    orderings = Counter(line.ordering for line in lines if line.ordering)
    if not orderings:
        return f"{found}."
    holds, against = orderings["holds"], orderings["contradicted"]
    return (
        f"{found}; the paper's ordering holds in {holds}, is contradicted in {against} and "
        f"undecided in {orderings['undecided']}."
    )


def verdict(line: Line, comparison: Comparison) -> str:
    """Does the arm beat its SGD, and is it so in the paper?"""
    arm, sgd, tested = line.arm, line.baseline, line.difference
    assert sgd is not None and tested is not None
    theirs = sgd.samples[comparison.statistic]
    opening = (
        f"By {STATISTIC[comparison.statistic]} on {problem(comparison.condition)}, {_named(arm)} "
        f"reaches {_counted(line.sample)} and {_named(sgd)} {_counted(theirs)}: "
    )
    return opening + _finding(tested, comparison.tests) + _agreement(line)


def _finding(tested: Difference, comparisons: int) -> str:
    if tested.p is None:
        return (
            f"a difference of {signed(tested.mean)} points, which so few seeds cannot tell from "
            f"chance; at least {FEWEST} of each, and not all alike, are needed"
        )
    corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    evidence = (
        f"(95 % interval {between(tested.interval, signs=True)}, "
        f"p {_p(tested.p)}, {tested.test} t-test{corrected})"
    )
    if tested.is_decided:
        what = "gain" if tested.mean > 0 else "loss"
        return f"a {what} of {abs(tested.mean):.2f} points {evidence}"
    return (
        f"a difference of {signed(tested.mean)} points {evidence}, undecided; "
        f"if that is the true difference, {_more_seeds(tested)} decide it"
    )


def _more_seeds(tested: Difference) -> str:
    if tested.more_seeds is None:
        return f"not even {MOST_SEEDS} seeds per arm would"
    return f"about {count(tested.more_seeds, 'more seed')} per arm would"


def _agreement(line: Line) -> str:
    if line.paper_difference is None:
        return "."
    reported = f"the paper reports {signed(line.paper_difference)}"
    return {
        "holds": f"; the paper's ordering holds ({reported}).",
        "contradicted": f"; the paper's ordering is contradicted ({reported}).",
        "undecided": f"; {reported}.",
        None: "; in the paper the two are equal.",
    }[line.ordering]


def ranking(comparison: Comparison) -> list[str]:
    """Which of several readings of the paper comes nearest to its figures."""
    return [_nearest(rivals, comparison.statistic) for rivals in nearest(comparison)]


def _nearest(rivals: Sequence[tuple[Line, float]], statistic: str) -> str:
    line, distance = rivals[0]
    assert line.baseline is not None
    lone = "" if min(each.sample.n for each, _ in rivals) > 1 else ", with one seed a hint only"
    others = "; ".join(f"{rival.arm.label} {far:.2f}" for rival, far in rivals[1:])
    return (
        f"By {statistic}, the reading of {line.arm.method} nearest to the paper is "
        f"{line.arm.label} with {line.baseline.label}: {distance:.2f} points off on average{lone} "
        f"(then: {others})."
    )


def notes(comparisons: Sequence[Comparison], *, against_paper: bool) -> list[str]:
    """What a reader must know to believe the figures no more than they deserve."""
    lines = [line for comparison in comparisons for line in comparison.lines]
    arms = list({line.arm.trial: line.arm for line in lines}.values())
    found = [SELECTION[each] for each in dict.fromkeys(arm.config["selection"] for arm in arms)]
    found += _freshness(arms)
    found += [
        f"{arm.label} on {problem(arm.condition)}: {count(arm.failed, 'seed')} failed and "
        f"{_is(arm.failed)} not in its figures."
        for arm in arms
        if arm.failed
    ]
    tested = [line for line in lines if line.difference is not None]
    if any(line.difference and line.difference.p is not None for line in tested):
        found.append(
            "Intervals are 95 %; those of differences and their p are corrected for the number "
            "of arms compared with SGD (Bonferroni)."
        )
    found += dict.fromkeys(
        f"{line.arm.label} differs from {line.baseline.label} also in {', '.join(keys)}."
        for line in tested
        if line.baseline and (keys := unlike(line.arm, line.baseline))
    )
    return found + (_paper_notes(lines) if against_paper else [])


def _freshness(arms: Sequence[Arm]) -> list[str]:
    """Did the seeds that are shown select what they show?"""
    stale = [arm for arm in arms if arm.tried > 1 and not arm.is_fresh]
    if not stale:
        fresh = any(arm.is_fresh for arm in arms)
        return ["The seeds shown are fresh: they selected nothing."] if fresh else []
    found = [f"{_names(stale)}: selected by the seeds shown, which flatters."]
    lost = [arm for arm in arms if arm.confirmation == "failed"]
    if lost:
        found.append(f"{_names(lost)}: every fresh seed failed, so no arm is shown by them.")
    elif any(arm.confirmation == "unfinished" for arm in arms):
        found.append("The fresh seeds that are to confirm them are not all trained yet.")
    elif all(arm.confirmation == "none" for arm in arms):
        found.append("confirm = N in the study file trains what was selected with N fresh seeds.")
    return found


def _paper_notes(lines: Sequence[Line]) -> list[str]:
    known = [line for line in lines if line.published is not None]
    if not known:
        return ["The paper has no figures for this."]
    found = []
    if any("test" in line.arm.samples for line in known):
        found.append(
            "Test accuracy stands beside the paper's mean: its max was chosen by the test set."
        )
    away = {
        f"{key} {_number(ours)} (paper {_number(paper)})"
        for line in known
        for key, (ours, paper) in deviations(line).items()
    }
    if away:
        found.append(f"Not the paper's protocol: {', '.join(sorted(away))}.")
    return found


def _named(arm: Arm) -> str:
    selected = settings(searched(arm))
    return arm.label + (f" ({selected})" if selected else "")


def _counted(sample: Sample) -> str:
    return f"{figure(sample)} % (n = {sample.n})"


def _p(p: float) -> str:
    return probability(p) if p < 0.001 else f"= {probability(p)}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _are(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {_is(number)} {f'a {what}' if number == 1 else plural}"


def _names(arms: Iterable[Arm]) -> str:
    return ", ".join(dict.fromkeys(arm.label for arm in arms))
