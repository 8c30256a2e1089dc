"""Studies that are disturbed, and the same study undisturbed."""

import pytest
from helpers import launch


@pytest.fixture(scope="session")
def calm(undisturbed):
    """Rows and curves of the study `study` when nothing disturbs it."""
    home, _ = undisturbed
    return [launch.query(home, sql) for sql in (launch.RESULTS, launch.CURVES)]
