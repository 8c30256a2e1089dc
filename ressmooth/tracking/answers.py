"""Limit what a server may answer, so that a broken one costs neither memory nor time."""

import time
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 64 * 2**20
MAX_SECONDS = 120.0


def limit_answers() -> None:
    """Make `requests`, which MLflow's client uses, give up answers that are too long."""
    from requests.adapters import HTTPAdapter

    build_response = HTTPAdapter.build_response
    if getattr(build_response, "is_limited", False):
        return

    def build_limited_response(self: HTTPAdapter, request: Any, answer: Any) -> Any:
        response = build_response(self, request, answer)
        response.raw.stream = _limited(response.raw.stream)
        return response

    build_limited_response.is_limited = True  # type: ignore[attr-defined]
    HTTPAdapter.build_response = build_limited_response  # type: ignore[assignment, method-assign]


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
