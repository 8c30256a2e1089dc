"""Residual smoothing (arXiv 1907.09750): train, search, track and compare."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ressmooth.api import Study as Study
    from ressmooth.api import list_studies as list_studies
    from ressmooth.api import open as open
    from ressmooth.api import run as run
    from ressmooth.plugins import dataset as dataset
    from ressmooth.plugins import method as method
    from ressmooth.plugins import model as model
    from ressmooth.plugins import optimizer as optimizer
    from ressmooth.smoothing import Constant as Constant
    from ressmooth.smoothing import Laplace as Laplace
    from ressmooth.smoothing import Logistic as Logistic
    from ressmooth.smoothing import SmoothingLoss as SmoothingLoss
    from ressmooth.smoothing import SpatialSmoothingLoss as SpatialSmoothingLoss
    from ressmooth.smoothing import diffuse as diffuse
    from ressmooth.smoothing import smooth as smooth
    from ressmooth.training.data import Dataset as Dataset
    from ressmooth.training.data import Images as Images

__version__ = "0.1.0"
PUBLIC = {  # names by the module that defines them
    "smoothing": (
        "Constant",
        "Laplace",
        "Logistic",
        "SmoothingLoss",
        "SpatialSmoothingLoss",
        "diffuse",
        "smooth",
    ),
    "api": ("Study", "list_studies", "open", "run"),
    "plugins": ("dataset", "method", "model", "optimizer"),
    "training.data": ("Dataset", "Images"),
}
MODULES = {name: module for module, names in PUBLIC.items() for name in names}
__all__ = [name for name in MODULES if name != "open"]  # `import *` must not hide Python's open


def __getattr__(name: str) -> Any:
    """Load torch only when the method is used, so that `--help` is fast."""
    if name in MODULES:
        return getattr(import_module(f"ressmooth.{MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
