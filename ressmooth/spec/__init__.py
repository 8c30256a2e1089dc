"""The study: what is compared, on what, and how it is searched. Free of torch."""

from ressmooth.spec.differences import can_warm_start, differences
from ressmooth.spec.files import bundled
from ressmooth.spec.reader import find_plugins, load, load_recorded, read_stored
from ressmooth.spec.renaming import with_name
from ressmooth.spec.schema import FRESH_SEED, Branch, Choices, Range, Resources, Search, StudySpec
from ressmooth.spec.warm_start import WarmStart, select_trials

__all__ = [
    "FRESH_SEED",
    "Branch",
    "Choices",
    "Range",
    "Resources",
    "Search",
    "StudySpec",
    "WarmStart",
    "bundled",
    "can_warm_start",
    "differences",
    "find_plugins",
    "load",
    "load_recorded",
    "read_stored",
    "select_trials",
    "with_name",
]
