"""Run by Alembic on the connection of `ressmooth.store.migrate`, inside its transaction."""

from alembic import context

from ressmooth.store.migrations import VERSION_TABLE
from ressmooth.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite cannot alter most of a table in place
)
context.run_migrations()
