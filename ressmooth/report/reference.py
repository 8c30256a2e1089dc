"""Find the arm that another is compared with, and what else differs between the two."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ressmooth.report.compare import ArmResult, Line

# Settings that an arm should share with its reference. The second group applies to arms with the
# same optimizer.
SHARED = ("augmentation", "output", "reduction", "epochs", "batch_size", "schedule", "precision")
SHARED_BY_OPTIMIZER = ("lr", "momentum")


def reference_for(arm: "ArmResult", arms: Sequence["ArmResult"]) -> "ArmResult | None":
    """Return the arm to compare with. None for a reference itself."""
    found = reference_or_itself(arm, arms)
    return None if found is arm else found


def reference_or_itself(arm: "ArmResult", arms: Sequence["ArmResult"]) -> "ArmResult | None":
    """Return the arm that the study names, or else an SGD arm, or else the first arm.

    Of several, return the one of the same study, then the most similar, then the best. None if
    the named arm has no result.
    """
    if arm.named is not None:
        found = [other for other in arms if other.name == arm.named]
    else:
        found = [other for other in arms if other.method == "sgd"] or list(arms[:1])
    if arm in found:
        return arm

    def rank(other: "ArmResult") -> tuple[bool, int, float]:
        score = arm.measure.score(other.value)
        return other.study == arm.study, -len(other_differences(arm, other)), score

    return max(found, key=rank, default=None)


def reference_name(lines: Iterable["Line"]) -> str:
    """Return what the others are compared with: SGD, an arm's label, or "the reference".

    SGD is the paper's name, unless SGD arms are compared too.
    """
    shown = list(lines)
    found = {line.reference.label: line.reference.method for line in shown if line.reference}
    if not found:
        return next((line.arm.named for line in shown if line.arm.named), "SGD")
    compared = [line.arm.method for line in shown if line.reference]
    if set(found.values()) == {"sgd"} and "sgd" not in compared:
        return "SGD"
    return next(iter(found)) if len(found) == 1 else "the reference"


def other_differences(arm: "ArmResult", reference: "ArmResult") -> list[str]:
    """Return the settings, apart from the method and those tuned for both, that differ.

    They could explain a difference between the figures.
    """
    same_optimizer = arm.config["optimizer"] == reference.config["optimizer"]
    return [
        key
        for key in (*SHARED, *(SHARED_BY_OPTIMIZER if same_optimizer else ()))
        if arm.config[key] != reference.config[key]
        and not (key in arm.params and key in reference.params)
    ]
