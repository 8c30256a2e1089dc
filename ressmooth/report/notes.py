"""The notes under comparisons: what their figures and verdicts rest on."""

from collections.abc import Iterable, Sequence

from ressmooth.evidence import LEVEL
from ressmooth.formatting import count
from ressmooth.report.compare import (
    ArmResult,
    Comparison,
    Confirmation,
    Line,
)
from ressmooth.report.paper import deviations
from ressmooth.report.reference import other_differences, reference_name
from ressmooth.report.verdicts import condition_text, value_text

SELECTION = {
    "paper": "Validation uses the test set, as in the paper, so selected figures are "
    'optimistically biased; selection = "holdout" avoids that.',
    "holdout": "A tenth of the training set was held out for selection; the test set was not used "
    "for it.",
}


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
    found += _test_notes(lines)
    found += _limit_notes(comparisons)
    found += dict.fromkeys(
        f"{line.arm.label} also differs from {line.reference.label} in {', '.join(keys)}."
        for line in lines
        if line.reference and (keys := other_differences(line.arm, line.reference))
    )
    found += _device_notes(lines)
    return found + (_paper_notes(lines) if against_paper else [])


def _device_notes(lines: Sequence[Line]) -> list[str]:
    """Name the arms that changed their device, or were trained on another than their reference."""
    changed = [
        f"{line.arm.label} was trained on several devices: {', '.join(line.arm.devices)}."
        for line in lines
        if len(line.arm.devices) > 1
    ]
    other = [
        f"{line.arm.label} was trained on {', '.join(line.arm.devices)}, {line.reference.label} on "
        f"{', '.join(line.reference.devices)}."
        for line in lines
        if line.reference
        and len(line.arm.devices) == len(line.reference.devices) == 1
        and line.arm.devices != line.reference.devices
    ]
    return list(dict.fromkeys([*changed, *other]))


def _test_notes(lines: Sequence[Line]) -> list[str]:
    """Say how often one may look, and what a verdict takes."""
    tests = {line.difference.test for line in lines if line.difference}
    corrected = f"times the number of arms compared with {reference_name(lines)} (Bonferroni)"
    found = []
    if "paired" in tests:
        found.append(
            "Verdicts, and p and intervals of differences, stay valid however often you look and "
            f"add seeds. A verdict takes evidence of {1 / LEVEL:g} : 1 {corrected}."
        )
        if any(line.arm.is_biased for line in lines):
            found.append("None of them corrects for selecting configurations by the same seeds.")
    if "Welch" in tests:
        found.append(
            "Arms with fewer than two common seeds are compared by Welch's t-test, which is valid "
            f"for one look only. Its p is that of one test {corrected}. Train both with the same "
            "seeds for a verdict that stays valid."
        )
    if any(line.sample.interval for line in lines):
        found.append("The 95 % interval of a mean is Student's t, valid for one look.")
    return found


def _limit_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Say which choices no verdict is corrected for."""
    tables = [comparison for comparison in comparisons if comparison.tested]
    found = []
    if len(tables) > 1:
        found.append(
            f"The {100 * LEVEL:g} % of false verdicts hold for each of the {len(tables)} tables, "
            "not for all together."
        )
    asked = {line.arm.asked for table in tables for line in table.lines if line.arm.asked}
    found += [
        f"The reference is {name} because of --reference. No correction covers a reference that "
        "was chosen after a look at the results."
        for name in sorted(asked)
    ]
    return found


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
    biased = [arm for arm in arms if arm.is_biased]
    if not biased:
        is_fresh = any(arm.is_fresh for arm in arms)
        return ["The seeds shown are fresh: none was used for selection."] if is_fresh else []
    found = [
        f"{_names(biased)}: selected by the seeds shown, so their figures and verdicts are "
        "optimistically biased."
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
        f"{key} {value_text(ours)} (paper {value_text(paper)})"
        for line in known
        for key, (ours, paper) in deviations(line).items()
    }
    if differing:
        found.append(f"Different from the paper's protocol: {', '.join(sorted(differing))}.")
    return found
