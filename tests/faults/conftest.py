"""A study that is disturbed, and the same one left in peace."""

import launching
import pytest


@pytest.fixture(scope="session")
def calm(undisturbed):
    """The rows of the study `study` when nothing happens to it."""
    home, _ = undisturbed
    return [launching.query(home, sql) for sql in (launching.RESULTS, launching.CURVES)]
