"""The study: what is compared, on what, and how it is searched. Free of torch."""

from ressmooth.spec.reader import differences, load, read_stored
from ressmooth.spec.schema import FRESH_SEED, Branch, Choices, Range, Resources, Search, StudySpec
from ressmooth.spec.toml import bundled

__all__ = [
    "FRESH_SEED",
    "Branch",
    "Choices",
    "Range",
    "Resources",
    "Search",
    "StudySpec",
    "bundled",
    "differences",
    "load",
    "read_stored",
]
