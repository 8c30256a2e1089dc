"""The published figures, as migration 0002 writes them."""

from importlib import import_module

from ressmooth.store import PublishedFigure


def published_figures() -> list[PublishedFigure]:
    migration = import_module("ressmooth.store.migrations.versions.0002_comparison")
    rows = [dict(row) for row in migration._published_figures()]
    for row in rows:
        del row["version"]
    return [PublishedFigure(**row) for row in rows]
