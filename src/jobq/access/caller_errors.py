"""What a caller is told of an error: never where the store is, or under which name it is used.

A store says in its errors which host, database and user had the problem. That is for operators:
the log gets it under a number, and the caller gets the number.
"""

from __future__ import annotations

import logging
import os
import re
import time
from urllib.parse import urlsplit

from jobq.core.values.printable import redacted_url
from jobq.errors import (
    AccessDenied,
    ConfigError,
    CorruptStore,
    InvalidJob,
    JobNotFound,
    JobqError,
    LockTimeout,
    QueueFull,
    QuotaExceeded,
    StoreUnavailable,
)

log = logging.getLogger("jobq.server")

_AGAIN_S = 60.0
"""Seconds for which the same problem has the same number, and is not logged again. While a store is
down, every call of every client fails."""
_MAX_KNOWN = 1_000
_ABOUT_A_SERVER = re.compile(r"\S+:\d{1,5} ")
"""How messages begin that are about a node of the store, which its URL need not name."""
_REPEATING = (InvalidJob, JobNotFound, AccessDenied, QueueFull, QuotaExceeded)
"""Errors whose messages repeat what the caller said, which may be the address of the store. If they
were hidden, callers could guess the address. A message that is about the store begins with it."""


class Unready(StoreUnavailable):
    """The server itself does not serve now. Its message is for the caller."""


class CallerErrors:
    """Turns errors into what callers are told. One for each store that is served."""

    def __init__(self, store_url: str) -> None:
        self._tells = _tells(store_url)
        self._known: dict[tuple[type[Exception], str], tuple[str, float]] = {}

    def __call__(self, error: Exception, doing: str) -> JobqError:
        """The error for the caller. What it must not know is logged; `doing` is what failed."""
        if isinstance(error, JobqError) and not self._is_about_the_store(error):
            return error
        number = self._logged(error, doing)
        more = f"the log of the server has more under the number {number}"
        match error:
            case CorruptStore():
                return CorruptStore(f"what the store has cannot be read: {more}")
            case LockTimeout():
                return LockTimeout(f"another transaction holds what the call needs: {more}")
            case JobqError():
                return StoreUnavailable(f"the store cannot serve the call now: {more}")
        return JobqError(f"a bug in the server: {more}")

    def _is_about_the_store(self, error: JobqError) -> bool:
        if isinstance(error, StoreUnavailable):
            return not isinstance(error, Unready)
        text = str(error)
        if isinstance(error, _REPEATING):
            return text.startswith(self._tells)
        return any(tell in text for tell in self._tells) or (
            isinstance(error, (ConfigError, CorruptStore)) and bool(_ABOUT_A_SERVER.match(text))
        )

    def _logged(self, error: Exception, doing: str) -> str:
        key, now = (type(error), str(error)), time.monotonic()
        number, until = self._known.get(key, ("", 0.0))
        if now < until:
            return number
        number = os.urandom(4).hex()
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[key] = number, now + _AGAIN_S
        expected = isinstance(error, (StoreUnavailable, LockTimeout))
        log.log(
            logging.WARNING if expected else logging.ERROR,
            "number %s: %s failed: %s",
            number,
            doing,
            error,
            exc_info=None if expected else error,
        )
        return number


def _tells(url: str) -> tuple[str, ...]:
    """What of a URL no caller may read, as far as it can be told from other words."""
    parts = urlsplit(redacted_url(url))
    hosts = [host for host in parts.netloc.rpartition("@")[2].split(",") if ":" in host]
    files = [parts.path] if parts.path.count("/") > 1 else []
    return tuple(filter(None, (url, redacted_url(url), *hosts, *files)))
