"""A study that is disturbed, and the same one left in peace."""

import pytest
from helpers import launch


@pytest.fixture(scope="session")
def calm(undisturbed):
    """The rows of the study `study` when nothing happens to it."""
    home, _ = undisturbed
    return [launch.query(home, sql) for sql in (launch.RESULTS, launch.CURVES)]
