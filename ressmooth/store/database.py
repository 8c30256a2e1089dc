"""Connect to the database, and run transactions that are retried after an outage.

The database is a SQLite file under the home directory, or a PostgreSQL server whose URL is in
RESSMOOTH_DATABASE_URL.
"""

import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from ressmooth import paths
from ressmooth.errors import (
    ConfigError,
    RessmoothError,
    SchemaError,
    StorageError,
    StoreCorrupt,
    StoreUnreachable,
)
from ressmooth.store.holder import Holder
from ressmooth.store.migrations import HEAD, VERSION_TABLE

BUSY_TIMEOUT = 60.0  # seconds that SQLite itself waits for a lock
RETRY_FOR = 300.0  # seconds for which a transaction is retried
RETRY_OPENING_FOR = 5.0  # seconds for the first one, so that a wrong URL is reported soon
IDLE_TIMEOUT = 10_000  # milliseconds between two statements of a PostgreSQL transaction
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds between two tries
WAL_IS_SAFE = (3, 51, 3)  # before, WAL could corrupt: https://sqlite.org/wal.html#walresetbug
POSTGRESQL: dict[str, Any] = {
    "application_name": "ressmooth",
    "client_encoding": "utf8",  # psycopg returns bytes if the database has no encoding
    "connect_timeout": 10,
    # A server that vanished is noticed after 30 + 3 x 10 seconds.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}

log = logging.getLogger(__name__)
T = TypeVar("T")


def default_url(home: Path) -> str:
    """Return RESSMOOTH_DATABASE_URL, or the URL of a SQLite file in the home directory."""
    url = os.environ.get("RESSMOOTH_DATABASE_URL") or f"sqlite:///{home.absolute()}/results.db"
    # Absolute, because a worker may have another working directory.
    return re.sub(r"^sqlite:///(?![/:])", f"sqlite:///{Path.cwd()}/", url)


def safe_url(url: str) -> str:
    """Return the URL without its password."""
    url = re.sub(r"(?<=://)([^:/@]*):.+@", r"\1:***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", url)


def parse_url(url: str) -> URL:
    """Return the URL of a supported database, or raise a ConfigError."""
    allowed = "allowed: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(f"{safe_url(url)!r} is not a database URL; {allowed}") from None
    if "@" in (parsed.host or ""):
        raise ConfigError(f"{safe_url(url)!r}: write @ in a password as %40")
    match parsed.get_backend_name():
        case "postgresql":
            return parsed.set(drivername="postgresql+psycopg")
        case "sqlite" if parsed.database not in (None, "", ":memory:") and not parsed.query:
            return parsed
    raise ConfigError(f"{safe_url(url)!r} is not a supported database; {allowed}")


class Database:
    """The connections to one database, and its transactions."""

    def __init__(self, url: str, *, create: bool = False, foreign_keys: bool = True) -> None:
        parsed = parse_url(url)
        self.name, self.creates = safe_url(url), create
        self.path: Path | None = None  # the file, if it is SQLite
        if parsed.get_backend_name() == "sqlite":
            self.path = Path(str(parsed.database)).absolute()
            self.name = str(self.path)
            connect = partial(_connect, self.path, create=create, foreign_keys=foreign_keys)
            options: dict[str, Any] = {"creator": connect}
        else:
            defaults = {key: POSTGRESQL[key] for key in POSTGRESQL.keys() - parsed.query.keys()}
            options = {"pool_pre_ping": True, "connect_args": defaults}
        self.engine = create_engine(
            parsed,
            json_serializer=partial(json.dumps, ensure_ascii=False, allow_nan=False),
            **options,
        )
        if self.path:
            event.listen(self.engine, "begin", _begin)
            self.reader = self.engine.execution_options(begin="BEGIN")
        else:  # all queries of a transaction see one state, as they do in SQLite
            event.listen(self.engine, "connect", _limit_idle_transactions)
            self.reader = self.engine.execution_options(isolation_level="REPEATABLE READ")

    def transact(
        self, work: Callable[[Connection], T], *, reads: bool = False, opening: bool = False
    ) -> T:
        """Do `work` in a transaction. Retry all of it if the database is unreachable.

        The acknowledgement of a commit can be lost, so `work` must be idempotent.
        """
        engine = self.reader if reads else self.engine
        deadline = time.monotonic() + (RETRY_OPENING_FOR if opening else RETRY_FOR)
        pause = FIRST_PAUSE
        while True:
            if self._is_gone():  # SQLite notices it late, and with WAL never
                raise self._gone()
            try:
                with engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                failure = self._diagnose(error)
                if failure is None:
                    raise
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not isinstance(failure, StoreUnreachable):
                    raise failure from error
                pause = min(pause, LONGEST_PAUSE, remaining)
                log.warning("%s Retrying in %.1f s.", failure, pause)
                time.sleep(pause)
                pause *= 2

    def close(self) -> None:
        self.engine.dispose()

    def is_new(self) -> bool:
        """Tell whether the file is missing or empty, or has no tables of ressmooth."""
        if self.path and (not self.path.exists() or self.path.stat().st_size == 0):
            return True
        return self.transact(read_revision, reads=True, opening=True) is None

    def check(self) -> None:
        """Raise an error if this program cannot use the database as it is."""
        if self.path and not self.path.exists():
            raise StoreUnreachable(
                f"There is no database {self.path}; launch a study to create it, as in: "
                f"{self.command('study', 'quickstart')}"
            )
        if self.path and self.path.stat().st_size == 0:  # SQLite treats it as a new one
            raise damaged(self.name, "it is empty")
        revision = self.transact(read_revision, reads=True, opening=True)
        if revision is None:
            raise SchemaError(
                f"{self.name} has no tables yet; create them: {self.command('db', 'upgrade')}"
            )
        if revision < HEAD:
            raise SchemaError(
                f"{self.name} has the older schema {revision}, this program needs {HEAD}; "
                f"upgrade it: {self.command('db', 'upgrade')}"
            )
        self.check_not_newer(revision)

    def check_not_newer(self, revision: str) -> None:
        if revision > HEAD:
            raise SchemaError(
                f"{self.name} has schema {revision}, which is newer than this program's ({HEAD}); "
                "install the ressmooth that wrote it, or a later one"
            )

    def _diagnose(self, error: DBAPIError) -> RessmoothError | None:
        """Return the driver's error as one for the user, or None for a bug of ours."""
        if self.path and self.path.is_dir():
            return damaged(self.name, "it is a directory")
        cause = error.orig
        moved = getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_DBMOVED
        if moved or self._is_gone():
            return self._gone()
        reason = str(cause).strip().partition("\n")[0]
        kind = _sqlite_kind(cause) if isinstance(cause, sqlite3.Error) else _postgresql_kind(cause)
        if kind is StoreUnreachable:
            return StoreUnreachable(f"The database {self.name} does not answer ({reason}).")
        if kind is StoreCorrupt:
            return damaged(self.name, reason)
        if kind is StorageError:
            return StorageError(
                f"Cannot write to the database {self.name} ({reason}). Recorded results are kept."
            )
        return None

    def command(self, *words: str) -> str:
        """Return a command that uses this database."""
        if self.path is None or os.environ.get("RESSMOOTH_DATABASE_URL"):
            return paths.command(paths.home(), *words)
        return paths.command(self.path.parent, *words)

    def _is_gone(self) -> bool:
        return self.path is not None and not self.creates and not self.path.exists()

    def _gone(self) -> StorageError:
        """Return the error for a file that was there when it was opened."""
        assert self.path is not None
        runs = self.path.parent / "runs"
        checkpoints = f" Checkpoints in {runs} remain." if runs.is_dir() else ""
        return StorageError(
            f"The database file {self.path} is gone: it was moved or deleted while in use. What "
            f"was recorded in it is lost unless you move it back.{checkpoints} Nothing was created "
            "in its place."
        )


def damaged(name: str, reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{name} is damaged or not a database of ressmooth ({reason}). It was not changed; "
        "restore a backup or move it away."
    )


def read_revision(connection: Connection) -> str | None:
    """Return the revision of the schema, or None if there are no tables of ressmooth."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return revision


def _connect(path: Path, *, create: bool, foreign_keys: bool) -> sqlite3.Connection:
    if create:
        paths.create_private(path)
    # Without mode=rw, SQLite would replace a file that was moved away with an empty one.
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,  # _begin begins transactions
        check_same_thread=False,  # the pool gives a connection to one thread at a time
    )
    wal = sqlite3.sqlite_version_info >= WAL_IS_SAFE
    try:
        connection.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if wal else 'FULL'}")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _begin(connection: Connection) -> None:
    """Take the write lock at once. If two readers became writers, SQLite would fail one."""
    begin = connection.get_execution_options().get("begin", "BEGIN IMMEDIATE")
    connection.exec_driver_sql(begin)


def _limit_idle_transactions(connection: Any, _: object) -> None:
    """Let PostgreSQL end a transaction of a frozen process, whose locks would block a standby."""
    connection.autocommit = True
    connection.execute(f"SET idle_in_transaction_session_timeout = {IDLE_TIMEOUT}")
    connection.autocommit = False


def _sqlite_kind(cause: sqlite3.Error) -> type[RessmoothError] | None:
    match getattr(cause, "sqlite_errorcode", 0) & 0xFF:  # without the extended code
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return StoreUnreachable
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StoreCorrupt
        case (
            sqlite3.SQLITE_FULL
            | sqlite3.SQLITE_IOERR
            | sqlite3.SQLITE_READONLY
            | sqlite3.SQLITE_CANTOPEN
        ):
            return StorageError
    return None


def _postgresql_kind(cause: BaseException | None) -> type[RessmoothError] | None:
    # SQLSTATE codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
    match getattr(cause, "sqlstate", None):
        case "53100" | "58030" | "42501":  # disk full, I/O error, no permission
            return StorageError
        case "XX001" | "XX002":  # damaged table, damaged index
            return StoreCorrupt
        case None:  # there is no connection
            import psycopg

            lost = isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
            return StoreUnreachable if lost else None
        case str(code) if code[:2] in ("08", "40", "53", "57") or code == "25006":
            # connection lost, deadlock, too many connections, shutdown; a read-only standby
            return StoreUnreachable
    return None


class Part:
    """A part of the Store."""

    database: Database
    holder: Holder | None = None  # whose leases the writes of a launcher or service need


S = TypeVar("S", bound=Part)
P = ParamSpec("P")
Method = Callable[Concatenate[S, Connection, P], T]
Call = Callable[Concatenate[S, P], T]  # the same without the connection


def reading(method: Method[S, P, T]) -> Call[S, P, T]:
    """Decorate a method that reads: each call is one transaction and gets its connection."""
    return _transaction(method, reads=True)


def writing(method: Method[S, P, T]) -> Call[S, P, T]:
    """Decorate a method that writes: each call is one transaction and gets its connection."""
    return _transaction(method, reads=False)


def _transaction(method: Method[S, P, T], *, reads: bool) -> Call[S, P, T]:
    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.transact(
            lambda connection: method(self, connection, *args, **kwargs), reads=reads
        )

    return call
