"""Residual smoothing (arXiv 1907.09750): train, search, track and compare."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ressmooth.smoothing import Constant as Constant
    from ressmooth.smoothing import Laplace as Laplace
    from ressmooth.smoothing import Logistic as Logistic
    from ressmooth.smoothing import SmoothingLoss as SmoothingLoss
    from ressmooth.smoothing import SpatialSmoothingLoss as SpatialSmoothingLoss
    from ressmooth.smoothing import diffuse as diffuse
    from ressmooth.smoothing import smooth as smooth

__version__ = "0.1.0"
__all__ = [
    "Constant",
    "Laplace",
    "Logistic",
    "SmoothingLoss",
    "SpatialSmoothingLoss",
    "diffuse",
    "smooth",
]


def __getattr__(name: str) -> Any:
    """Load torch only when the method is used, so that `--help` is fast."""
    if name in __all__:
        return getattr(import_module("ressmooth.smoothing"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
