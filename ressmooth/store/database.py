"""Reaching the database: addresses, connections, transactions that outlive an outage, schema.

SQLite is a file under the home directory, PostgreSQL an address in RESSMOOTH_DATABASE_URL."""

import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from ressmooth.errors import (
    ConfigError,
    RessmoothError,
    SchemaError,
    StorageError,
    StoreCorrupt,
    StoreUnreachable,
)
from ressmooth.store.migrations import HEAD, VERSION_TABLE

T = TypeVar("T")
log = logging.getLogger(__name__)
BUSY_TIMEOUT = 60.0  # seconds that SQLite itself waits for a lock
PATIENCE = 300.0  # seconds that a transaction is tried again
OPENING_PATIENCE = 5.0  # the same for the first one: a wrong address should be told soon
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  # seconds between two tries


WAL_IS_SAFE = (3, 51, 3)  # before, WAL could corrupt: https://sqlite.org/wal.html#walresetbug
# What a server that died without a word may take to be noticed: 30 + 3 x 10 s.
POSTGRESQL: dict[str, Any] = {
    "application_name": "ressmooth",
    "client_encoding": "utf8",  # of a database without one, psycopg would return bytes
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}


def default_url(home: Path) -> str:
    """RESSMOOTH_DATABASE_URL, or a SQLite file in the home directory."""
    url = os.environ.get("RESSMOOTH_DATABASE_URL") or f"sqlite:///{home.absolute()}/results.db"
    return re.sub(r"^sqlite:///(?![/:])", f"sqlite:///{Path.cwd()}/", url)  # for workers elsewhere


def safe_url(url: str) -> str:
    """The address without its password."""
    url = re.sub(r"(?<=://)([^:/@]*):.+@", r"\1:***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", url)


def parse(url: str) -> URL:
    """A URL that can be opened here, or a ConfigError."""
    allowed = "allowed: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"{safe_url(url)!r} is not the address of a database; {allowed}"
        ) from None
    if "@" in (parsed.host or ""):
        raise ConfigError(f"{safe_url(url)!r}: write @ in a password as %40")
    match parsed.get_backend_name():
        case "postgresql":
            return parsed.set(drivername="postgresql+psycopg")
        case "sqlite" if parsed.database not in (None, "", ":memory:") and not parsed.query:
            return parsed
    raise ConfigError(f"{safe_url(url)!r} cannot hold results; {allowed}")


class Database:
    """Connections to one database and the transactions over them."""

    def __init__(self, url: str, *, create: bool = False, foreign_keys: bool = True) -> None:
        parsed = parse(url)
        self.name = safe_url(url)
        self.path: Path | None = None  # of SQLite's file
        options: dict[str, Any]
        if parsed.get_backend_name() == "sqlite":
            self.path = Path(str(parsed.database)).absolute()
            self.name = str(self.path)
            creator = partial(_connect, self.path, create=create, foreign_keys=foreign_keys)
            options = {"creator": creator}
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
            self.reader: Engine = self.engine.execution_options(begin="BEGIN")
        else:  # all queries of a reading see one state, as they do in SQLite
            self.reader = self.engine.execution_options(isolation_level="REPEATABLE READ")

    def transact(
        self, work: Callable[[Connection], T], *, reads: bool = False, opening: bool = False
    ) -> T:
        """Do `work` in a transaction of its own; all of it again if the database went away.

        An acknowledgement may get lost after the commit, so `work` must bear being done twice.
        """
        engine = self.reader if reads else self.engine
        deadline = time.monotonic() + (OPENING_PATIENCE if opening else PATIENCE)
        pauses = _pauses()
        while True:
            try:
                with engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                failure = self._diagnose(error)
                if failure is None:
                    raise
                left = deadline - time.monotonic()
                if left <= 0 or not isinstance(failure, StoreUnreachable):
                    raise failure from error
                pause = min(next(pauses), left)
                log.warning("%s Trying again in %.1f s.", failure, pause)
                time.sleep(pause)

    def close(self) -> None:
        self.engine.dispose()

    def is_new(self) -> bool:
        """True for no file, an empty one or no tables of ours."""
        if self.path and (not self.path.exists() or self.path.stat().st_size == 0):
            return True
        return self._revision() is None

    def _revision(self) -> str | None:
        return self.transact(read_revision, reads=True, opening=True)

    def check(self) -> None:
        """Refuse a database that this program cannot work with as it is."""
        if self.path and not self.path.exists():
            raise StoreUnreachable(f"There is no database {self.path}; launching a study makes it.")
        if self.path and self.path.stat().st_size == 0:  # SQLite would take it for a new one
            raise damaged(self.name, "it is empty")
        revision = self._revision()
        if revision is None:
            raise SchemaError(f"{self.name} has no tables yet; create them: ressmooth db upgrade")
        if revision < HEAD:
            raise SchemaError(
                f"{self.name} has the older schema {revision}, this program needs {HEAD}; "
                "upgrade it: ressmooth db upgrade"
            )
        self.refuse_newer(revision)

    def refuse_newer(self, revision: str) -> None:
        if revision > HEAD:
            raise SchemaError(
                f"{self.name} has schema {revision}, which is newer than this program's ({HEAD}); "
                "install the ressmooth that wrote it, or a later one"
            )

    def _diagnose(self, error: DBAPIError) -> RessmoothError | None:
        """What the driver's error means for the user; None if it is our mistake."""
        cause = error.orig
        reason = str(cause).strip().partition("\n")[0]
        if self.path and self.path.is_dir():
            return damaged(self.name, "it is a directory")
        kind = _sqlite(cause) if isinstance(cause, sqlite3.Error) else _postgresql(error)
        if kind is StoreUnreachable:
            return StoreUnreachable(f"The database {self.name} does not answer ({reason}).")
        if kind is StoreCorrupt:
            return damaged(self.name, reason)
        if kind is StorageError:
            return StorageError(
                f"Cannot write to the database {self.name} ({reason}). What was recorded is kept."
            )
        return None


def damaged(name: str, reason: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"{name} is damaged or no database of ressmooth ({reason}). It was left as it is; "
        "restore a backup or move it away."
    )


def read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return revision


def _connect(path: Path, *, create: bool, foreign_keys: bool) -> sqlite3.Connection:
    # Without mode=rw a file that was moved away would come back empty.
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,  # transactions are begun by _begin
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
    """Take the write lock at once: a reader that turns writer can meet another and both fail."""
    options = connection.get_execution_options()
    connection.exec_driver_sql(options.get("begin", "BEGIN IMMEDIATE"))


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


def _sqlite(cause: sqlite3.Error) -> type[RessmoothError] | None:
    match getattr(cause, "sqlite_errorcode", 0) & 0xFF:  # the upper bits tell variants apart
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


def _postgresql(error: DBAPIError) -> type[RessmoothError] | None:
    """By SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html"""
    match getattr(error.orig, "sqlstate", None):
        case "53100" | "58030" | "42501":  # disk full, I/O error, no permission
            return StorageError
        case "XX001" | "XX002":  # damaged table, damaged index
            return StoreCorrupt
        case None:  # the connection broke or never was
            import psycopg

            lost = isinstance(error.orig, psycopg.OperationalError | psycopg.InterfaceError)
            return StoreUnreachable if lost else None
        case str(code) if code[:2] in ("08", "40", "53", "57") or code == "25006":
            # connection, deadlock, resources, shutting down or starting; a standby taking over
            return StoreUnreachable
    return None


class HasDatabase(Protocol):
    database: Database


S = TypeVar("S", bound=HasDatabase)
P = ParamSpec("P")


Method = Callable[Concatenate[S, Connection, P], T]
Call = Callable[Concatenate[S, P], T]  # the same without the connection


def reading(method: Method[S, P, T]) -> Call[S, P, T]:
    return _transaction(method, reads=True)


def writing(method: Method[S, P, T]) -> Call[S, P, T]:
    return _transaction(method, reads=False)


def _transaction(method: Method[S, P, T], *, reads: bool) -> Call[S, P, T]:
    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.database.transact(
            lambda connection: method(self, connection, *args, **kwargs), reads=reads
        )

    return call
