"""What the functions and classes of plug-ins must return."""

from typing import Any

from torch import Tensor

from ressmooth.errors import ConfigError


def check_kind(what: str, found: Any, kind: type) -> None:
    """Raise a ConfigError if a plug-in has returned something else than a `kind` of torch."""
    if not isinstance(found, kind):
        rule = f"should return a {kind.__module__}.{kind.__name__}"
        raise ConfigError(f"{what} {rule}, but returned {found!r:.80}")


def check_tensor(what: str, found: Any, shape: tuple[int, ...]) -> None:
    """Raise a ConfigError if a plug-in has returned no tensor of this shape."""
    if not isinstance(found, Tensor) or found.shape != shape:
        shown = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(f"{what} should return a tensor {list(shape)}, but returned {shown}")
