"""Find the arm that another is compared with, and how texts name it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ressmooth.spec import reference
from ressmooth.spec.reference import other_differences

if TYPE_CHECKING:
    from ressmooth.report.compare import ArmResult, Line

__all__ = ["other_differences", "reference_for", "reference_name", "reference_or_itself"]


def reference_for(arm: "ArmResult", arms: Sequence["ArmResult"]) -> "ArmResult | None":
    """Return the arm to compare with. None for a reference itself."""
    found = reference_or_itself(arm, arms)
    return None if found is arm else found


def reference_or_itself(arm: "ArmResult", arms: Sequence["ArmResult"]) -> "ArmResult | None":
    """Return the arm to compare with, which may be the arm itself. None without a result of it."""
    return reference.reference_or_itself(arm, arms, lambda other: arm.measure.score(other.value))


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
