"""Tell a webhook (Slack, Mattermost) how studies end, from the Store's outbox of messages.

The address is in RESSMOOTH_WEBHOOK. It is a secret, so it is never shown, logged or stored.
"""

import http.client
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from ressmooth.errors import ConfigError, TrackingError
from ressmooth.formatting import count, printable
from ressmooth.paths import command
from ressmooth.store import Notification, Store

PERIOD = 2.0  # seconds between two looks at the outbox
TIMEOUT = 5.0  # seconds for each step of a request
FINAL_TIMEOUT = 5.0  # seconds that messages get when a launcher or service ends
MAX_BACKOFF = 300.0  # seconds between two tries during an outage
RETRYABLE = (408, 429)  # client errors that the request does not cause
MAX_VERDICTS = 2  # sentences in a message
MAX_PROBLEM = 500  # characters in a message

log = logging.getLogger(__name__)


class Unanswered(TrackingError):
    """The webhook does not answer, or not now."""


class Refused(Exception):
    """The webhook refuses a message and would refuse it again."""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could lead to another host, and urllib would drop the message."""

    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirects)


def webhook_address() -> str | None:
    """Return RESSMOOTH_WEBHOOK, None without one. Raise a ConfigError that does not show it."""
    address = os.environ.get("RESSMOOTH_WEBHOOK", "").strip()
    if address and not _is_valid(address):
        raise ConfigError(
            "RESSMOOTH_WEBHOOK: not an address as in https://hooks.slack.com/services/..., with "
            "http or https, a host, and no user name (the value is secret and not shown)"
        )
    return address or None


def _is_valid(address: str) -> bool:
    try:
        parts = urlsplit(address)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = address.isascii() and address.isprintable() and " " not in address
    return is_http and is_plain and "@" not in parts.netloc


def send_pending(store: Store, home: Path, address: str) -> int:
    """Send the messages that nobody is sending. Return how many the webhook received.

    Raise Unanswered if it does not answer. A message that it refuses is logged and given up.
    """
    sent = 0
    while store.count_notifications() and (message := store.claim_notification()):
        try:
            _post(address, _content(store, home, message))
            sent += 1
        except Refused as refusal:
            what = f"{message.study} {_event(message)}"
            log.warning("The webhook refused the message that %s (%s). It is lost.", what, refusal)
        except Unanswered:
            store.release_notification(message.id)
            raise
        store.mark_notified(message.id)
    return sent


def _post(address: str, content: dict[str, str | None]) -> None:
    """Send a message. Raise Refused if no retry helps, and Unanswered otherwise."""
    headers = {"Content-Type": "application/json", "User-Agent": "ressmooth"}
    request = urllib.request.Request(address, json.dumps(content).encode(), headers)
    try:
        OPENER.open(request, timeout=TIMEOUT).close()
    except urllib.error.HTTPError as error:
        error.close()
        # not the server's own phrase, which may repeat the address
        status = f"HTTP {error.code} {http.client.responses.get(error.code, '')}".strip()
        if 400 <= error.code < 500 and error.code not in RETRYABLE:
            raise Refused(status) from None
        raise Unanswered(f"The webhook does not accept messages now ({status}).") from None
    except (OSError, http.client.HTTPException) as error:
        reason = _reason(error, address)
        raise Unanswered(f"The webhook does not answer ({reason}).") from None


def _reason(error: Exception, address: str) -> str:
    """Return an error's text without the address."""
    cause = getattr(error, "reason", error)
    text = str(cause) or type(cause).__name__
    parts = urlsplit(address)
    for secret in (address, f"{parts.path}?{parts.query}", parts.path, parts.query):
        if len(secret) > 1:
            text = text.replace(secret, "***")
    return printable(text)


def _content(store: Store, home: Path, message: Notification) -> dict[str, str | None]:
    """Return the message as Slack and Mattermost read it, with fields of our own."""
    sentence = f"{message.study} {_event(message)}"
    see = {"failed": "show", "standstill": "watch"}.get(message.kind, "compare")
    if message.kind == "standstill":
        sentence += ": no epoch has ended for an hour."
    elif message.problem:
        sentence += f": {_plain(message.problem)}"
    else:
        verdict = _verdict_or_none(store, message.study)
        see = "show" if verdict == NOTHING else see
        sentence = " ".join(filter(None, (f"{sentence}.", verdict)))
    text = f"{_escape(sentence)}\n{command(home, see, message.study)}"
    return {
        "text": text,
        "study": message.study,
        "kind": message.kind,
        "owner": message.owner,
    }


NOTHING = "No trial is complete."


def _event(message: Notification) -> str:
    return "stands still" if message.kind == "standstill" else f"has {message.kind}"


def _verdict_or_none(store: Store, study: str) -> str | None:
    try:
        return _verdict(store, study)
    except Exception:  # a message without a verdict is better than none
        log.debug("no verdict about %s", study, exc_info=True)
        return None


def _verdict(store: Store, study: str) -> str:
    """Return the first sentences about a study's comparison."""
    # imported here because scipy is slow to load
    from ressmooth.report.compare import by_selecting_statistic, compare_studies
    from ressmooth.report.verdicts import verdict_sentences

    row = store.study(study)
    compared = by_selecting_statistic(compare_studies(store, [row])) if row else []
    return " ".join(verdict_sentences(compared)[:MAX_VERDICTS]) if compared else NOTHING


def _plain(problem: str) -> str:
    """Return an error in one line that mentions nobody."""
    line = "; ".join(map(printable, problem.strip().split("\n")))
    return line[:MAX_PROBLEM].replace("@", "@\N{ZERO WIDTH SPACE}")


def _escape(text: str) -> str:
    """Escape Slack's control characters, with which a text could mention a whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Webhook(threading.Thread):
    """Sends messages as they come. It has its own Store and never raises."""

    def __init__(self, url: str, home: Path, address: str) -> None:
        super().__init__(name="webhook", daemon=True)
        self.url, self.home, self.address = url, home, address
        self.store: Store | None = None
        self.finishing = threading.Event()
        self.problem: str | None = None  # why messages are not sent

    def finish(self, timeout: float) -> int:
        """Send what is left within `timeout` seconds. Return the number of messages not sent."""
        deadline = time.monotonic() + timeout
        self.finishing.set()
        self.join(timeout)
        try:
            with closing(Store(self.url)) as store:
                while (left := store.count_notifications()) and not self.problem:
                    if time.monotonic() >= deadline:  # another process may be sending them
                        break
                    time.sleep(0.1)
                return left
        except Exception:
            return 0  # the launcher or service meets the same error

    def run(self) -> None:
        failures = 0
        while True:
            finishing = self.finishing.is_set()
            try:
                self.store = self.store or Store(self.url)
                send_pending(self.store, self.home, self.address)
                self.problem, failures = None, 0
            except Exception as error:
                failures += 1
                self.problem = _reason(error, self.address)
                if failures == 1:
                    log.warning("%s Messages wait.", self.problem)
            if finishing:
                break
            self.finishing.wait(min(PERIOD * 2**failures, MAX_BACKOFF))
        if self.store is not None:
            self.store.close()


@contextmanager
def notifying(
    store: Store, home: Path, address: str | None, warn: Callable[[str], None]
) -> Iterator[None]:
    """Send the messages of a Store while it is in use, if there is an address.

    At the end, messages get FINAL_TIMEOUT. What is left then is sent by the next process.
    """
    store.notifies = address is not None
    if address is None:
        yield
        return
    webhook = Webhook(store.url, home, address)
    webhook.start()
    try:
        yield
    finally:
        if left := webhook.finish(FINAL_TIMEOUT):
            later = command(home, "sync")
            reason = webhook.problem or "it took too long"
            warn(f"{count(left, 'message')} not sent to the webhook ({reason}); later: {later}")
