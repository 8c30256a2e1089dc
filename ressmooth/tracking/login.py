"""A log-in in front of MLflow and our pages. After failures, the next attempts have to wait."""

import asyncio
import hmac
import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import LRUCache, TTLCache
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from werkzeug.datastructures import Authorization

from ressmooth.errors import TrackingError

HEALTH = "/health"  # the only path without log-in
FREE = 5  # failures without a delay: people mistype
LONGEST = 30.0  # seconds
FORGOTTEN = 900.0  # seconds after the last failure
CAPACITY = 10_000  # pairs of address and user; the same for known credentials
LOGGER = logging.getLogger("ressmooth.login")


@dataclass
class Attempts:
    """The failed log-ins of a user name from an address."""

    failures: int = 0
    last: float = 0.0  # of the clock
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one attempt at a time

    def wait(self, now: float) -> float:
        """Return the seconds until the next attempt is checked."""
        if self.failures < FREE:
            return 0.0
        delay = min(2.0 ** min(self.failures - FREE, 30), LONGEST)
        return max(self.last + delay - now, 0.0)


class Throttle:
    """Remembers failed log-ins, and which credentials were right, in a bounded memory.

    Credentials that were right before never wait, so nobody can lock out who is working here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.attempts: TTLCache[tuple[str, str], Attempts] = TTLCache(CAPACITY, FORGOTTEN, clock)
        self.known: LRUCache[bytes, bool] = LRUCache(CAPACITY)
        self.secret = secrets.token_bytes(32)

    def of(self, address: str, user: str) -> Attempts:
        """Return the attempts of a user name from an address."""
        return self.attempts.setdefault(_key(address, user), Attempts())

    def wait(self, address: str, user: str) -> float:
        """Return the seconds until the next attempt is checked."""
        return self.of(address, user).wait(self.clock())

    def is_known(self, user: str, password: str) -> bool:
        return self._digest(user, password) in self.known

    def failed(self, address: str, user: str, password: str) -> None:
        attempts = self.of(address, user)
        attempts.failures += 1
        attempts.last = self.clock()
        self.attempts[_key(address, user)] = attempts  # it begins to be forgotten from now on
        self.known.pop(self._digest(user, password), None)

    def succeeded(self, address: str, user: str, password: str) -> None:
        self.attempts.pop(_key(address, user), None)
        self.known[self._digest(user, password)] = True

    def _digest(self, user: str, password: str) -> bytes:
        return hmac.digest(self.secret, f"{user}\0{password}".encode(), "sha256")


def _key(address: str, user: str) -> tuple[str, str]:
    return address, user[:100]  # a header may be long


class Login:
    """Passes on what comes with the right user name and password, as `check` tells."""

    def __init__(
        self, app: ASGIApp, check: Callable[[str, str], bool], throttle: Throttle | None = None
    ) -> None:
        self.app, self.check, self.throttle = app, check, throttle or Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # nothing here uses one
            await send({"type": "websocket.close", "code": 1008})
            return
        is_open = scope["type"] == "lifespan" or scope["path"] == HEALTH
        refusal = None if is_open else await self._refusal(scope)
        await (refusal or self.app)(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request without the right credentials, or None."""
        given = Authorization.from_header(Headers(scope=scope).get("authorization"))
        if given is None or not given.username:
            return _challenge("Log in with your account of MLflow.")
        user, password = given.username, given.password or ""
        address = scope["client"][0] if scope.get("client") else "unknown"
        try:
            if self.throttle.is_known(user, password):
                return await self._check(address, user, password)
            async with self.throttle.of(address, user).lock:
                if self.throttle.is_known(user, password):  # by an attempt at the same time
                    return None
                if wait := math.ceil(self.throttle.wait(address, user)):
                    return _too_many(wait)
                return await self._check(address, user, password)
        except TrackingError as error:
            return PlainTextResponse(f"{error}\n", 503)

    async def _check(self, address: str, user: str, password: str) -> Response | None:
        if await run_in_threadpool(self.check, user, password):
            self.throttle.succeeded(address, user, password)
            return None
        self.throttle.failed(address, user, password)
        wait = math.ceil(self.throttle.wait(address, user))
        then = f"; the next attempt is checked in {wait} s" if wait else ""
        LOGGER.warning("failed log-in of user %.100r from %s%s", user, address, then)
        return _challenge("Wrong user name or password.")


def _challenge(text: str) -> Response:
    return PlainTextResponse(f"{text}\n", 401, {"WWW-Authenticate": 'Basic realm="mlflow"'})


def _too_many(wait: int) -> Response:
    text = f"Too many failed log-ins. The password was not checked; try again in {wait} s.\n"
    return PlainTextResponse(text, 429, {"Retry-After": str(wait)})
