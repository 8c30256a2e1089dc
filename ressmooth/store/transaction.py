"""Methods that are transactions: the decorator opens one and passes its connection."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy import Connection

from ressmooth.store.database import Database


class HasDatabase(Protocol):
    database: Database


S = TypeVar("S", bound=HasDatabase)
P = ParamSpec("P")
T = TypeVar("T")
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
