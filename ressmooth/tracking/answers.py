"""Read the errors of a server, and limit its answers: a broken one costs no memory and time."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ressmooth.tracking.server import redact

MAX_BYTES = 64 * 2**20
MAX_SECONDS = 120.0
LIMITED: ContextVar[bool] = ContextVar("limited", default=False)


@contextmanager
def limited_answers() -> Iterator[None]:
    """Give up answers that are too long, within this context only: others use `requests` too."""
    _install()
    token = LIMITED.set(True)
    try:
        yield
    finally:
        LIMITED.reset(token)


def _install() -> None:
    """Let `requests`, which MLflow's client uses, ask whether an answer is limited."""
    from requests.adapters import HTTPAdapter

    build_response = HTTPAdapter.build_response
    if getattr(build_response, "may_limit", False):
        return

    def build(self: HTTPAdapter, request: Any, answer: Any) -> Any:
        response = build_response(self, request, answer)
        if LIMITED.get():
            response.raw.stream = _limited(response.raw.stream)
        return response

    build.may_limit = True  # type: ignore[attr-defined]
    HTTPAdapter.build_response = build  # type: ignore[assignment, method-assign]


def _limited(stream: Any) -> Any:
    """Return a function that streams an answer as `stream` does, and raises if it is too long."""
    from requests import ConnectionError

    def read(*args: Any, **options: Any) -> Iterator[bytes]:
        began, size = time.monotonic(), 0
        for part in stream(*args, **options):
            size += len(part)
            if size > MAX_BYTES or time.monotonic() - began > MAX_SECONDS:
                raise ConnectionError(
                    f"the answer has more than {MAX_BYTES / 2**20:.3g} MiB, or takes more than "
                    f"{MAX_SECONDS:g} s"
                )
            yield part

    return read


def http_status(error: Exception) -> int | None:
    from mlflow.exceptions import MlflowException

    response = getattr(error, "response", None)  # of an upload
    if response is not None:
        return int(response.status_code)
    if not isinstance(error, MlflowException):
        return None
    # MLflow reports some client errors, such as 413, as a 500 with the real code in the message
    found = re.search(r"failed with error code (\d{3})", str(error))
    return int(found[1] if found else error.get_http_status_code())


def innermost(error: BaseException) -> BaseException:
    """Return the first error of a chain. Its message is the shortest: connection refused."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def one_line(error: BaseException, uri: str) -> str:
    text = redact(str(error) or type(error).__name__, uri)
    return " ".join(text.split())[:300]
