"""Find the trials that a new study's samplers begin with, before anything is created."""

from contextlib import closing
from pathlib import Path

from ressmooth.spec import StudySpec, WarmStart
from ressmooth.store import Store, default_url, unknown_study
from ressmooth.store.database import Database


def find_warm_start(spec: StudySpec, home: Path) -> WarmStart | None:
    """Return what the samplers begin with, or None without `search.warm_start`."""
    name = spec.search.warm_start
    if name is None:
        return None
    url = default_url(home)
    with closing(Database(url)) as database:
        if database.is_new():
            raise unknown_study(name, [])
    with closing(Store(url)) as store:
        return store.warm_start(spec)
