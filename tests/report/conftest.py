import pytest
from helpers import records, specs
from helpers.shown import ARMS, EIGHTH, accuracy

from ressmooth.report.compare import compare_studies
from ressmooth.store import open_store


@pytest.fixture(scope="session")
def store(quick_directory):
    """A store that all tests share. Each test has its own studies in it."""
    store = open_store(f"sqlite:///{quick_directory}/report.db")
    yield store
    store.close()


@pytest.fixture(scope="session")
def study(store):
    return records.simulate(store, specs.study(ARMS, seeds=5, name="shown", **EIGHTH), accuracy)


@pytest.fixture
def compared(store, study):
    return compare_studies(store, [study])
