"""Find the arm that another is compared with. A race and a comparison must find the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ressmooth.config import RunConfig

# Settings that an arm should share with its reference. The second group applies to arms with the
# same optimizer.
SHARED = (
    *("augmentation", "crop_padding", "padding", "output", "reduction", "epochs"),
    *("batch_size", "drop_last", "schedule", "precision"),
)
SHARED_BY_OPTIMIZER = ("lr", "momentum")


class Compared(Protocol):
    """An arm with its selected configuration."""

    @property
    def study(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def named(self) -> str | None: ...  # the arm that the study names as its reference

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def params(self) -> Mapping[str, Any]: ...


A = TypeVar("A", bound=Compared)


def reference_or_itself(arm: A, arms: Sequence[A], score: Callable[[A], float]) -> A | None:
    """Return the arm that the study names, or else an SGD arm, or else the first arm.

    Of several, return the one of the same study, then the most similar, then the best by `score`.
    None if the named arm has no result.
    """
    if arm.named is not None:
        found = [other for other in arms if other.name == arm.named]
    else:
        found = [other for other in arms if _is_sgd(other)] or list(arms[:1])
    if arm in found:
        return arm

    def rank(other: A) -> tuple[bool, int, float]:
        return other.study == arm.study, -len(other_differences(arm, other)), score(other)

    return max(found, key=rank, default=None)


def _is_sgd(arm: Compared) -> bool:
    """Tell whether the arm is what the paper calls SGD."""
    return (arm.config["method"], arm.config["optimizer"]) == ("mse", "sgd")


def _setting(arm: Compared, key: str) -> Any:
    """Return the value of a setting, which an earlier version may not have had."""
    return arm.config.get(key, RunConfig.model_fields[key].default)


def other_differences(arm: Compared, reference: Compared) -> list[str]:
    """Return the settings, apart from the method and those tuned for both, that differ.

    They could explain a difference between the figures.
    """
    same_optimizer = arm.config["optimizer"] == reference.config["optimizer"]
    return [
        key
        for key in (*SHARED, *(SHARED_BY_OPTIMIZER if same_optimizer else ()))
        if _setting(arm, key) != _setting(reference, key)
        and not (key in arm.params and key in reference.params)
    ]
