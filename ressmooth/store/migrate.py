"""Create or upgrade the schema, exactly once even if several processes try."""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from ressmooth.errors import SchemaError, StorageError
from ressmooth.paths import create_private, make_home
from ressmooth.store import migrations
from ressmooth.store.database import Database, damaged, read_revision
from ressmooth.store.migrations import HEAD
from ressmooth.store.tables import Base

MIGRATIONS = Path(migrations.__file__).parent
LOCK = 0x72657373  # "ress": PostgreSQL's advisory lock of our migrations


def upgrade(url: str) -> tuple[str | None, str]:
    """Create or upgrade the tables. Return the revision before (None without tables) and after.

    An older SQLite file is backed up beside itself first. All changes are one transaction.
    """
    # SQLite alters a table by rebuilding it, and dropping the old one would violate foreign keys.
    with closing(Database(url, create=True, foreign_keys=False)) as database:
        if database.path:
            make_home(database.path.parent)
        return database.transact(partial(_upgrade, database), opening=True), HEAD


def _upgrade(database: Database, connection: Connection) -> str | None:
    if not database.path:
        # Inside the transaction: if it were taken before, Alembic's work would be rolled back.
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    revision = read_revision(connection)
    if revision == HEAD:
        return revision
    if revision is None:
        taken = Base.metadata.tables.keys() & inspect(connection).get_table_names()
        if taken:
            raise SchemaError(
                f"{database.name} contains tables of another program ({', '.join(sorted(taken))}); "
                "give ressmooth a database of its own"
            )
    else:
        database.check_not_newer(revision)
        if database.path:
            _back_up(database.path, revision)
    _migrate(connection)
    if database.path and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
        raise damaged(database.name, "rows refer to missing rows")
    return revision


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    command.upgrade(config, "head")


def _back_up(path: Path, revision: str) -> None:
    """Copy the last committed state. The caller's lock keeps it from changing."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    backup = path.with_name(f"{path.name}.{revision}-{stamp}.backup")
    temporary = backup.with_name(f"{backup.name}.tmp")
    create_private(temporary)
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(temporary)) as copy:
            source.backup(copy)
        os.replace(temporary, backup)
    except (OSError, sqlite3.Error) as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"Cannot back up {path} to {backup}: {error}.") from error
