"""memory:// and sqlite:///path: the embedded store."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, unquote, urlsplit

from jobq.core.redact import redacted_url
from jobq.errors import ConfigError
from jobq.stores.base import Clock
from jobq.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open"]


def open(url: str, clock: Clock | None) -> SqliteStore:
    """`memory://NAME`, `sqlite:///relative/path`, `sqlite:////absolute/path`,
    `?synchronous=full|normal`."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return SqliteStore(url, url, None, full=False, clock=clock)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path:
        raise ConfigError(
            f"{redacted_url(url)!r} names no file: write sqlite:///relative/path.db or sqlite:////absolute/path.db"
        )
    path = os.path.abspath(path)
    if not os.path.isdir(os.path.dirname(path)):
        raise ConfigError(
            f"{redacted_url(url)!r}: the folder {os.path.dirname(path)!r} does not exist"
        )
    return SqliteStore(url, f"file:{path}", path, full=_full(url, parts.query), clock=clock)


def _full(url: str, query: str) -> bool:
    options = parse_qs(query, keep_blank_values=True)
    unknown = set(options) - {"synchronous"}
    if unknown:
        raise ConfigError(
            f"{redacted_url(url)!r}: unknown option {min(unknown)!r}; the only one is synchronous"
        )
    value = options.get("synchronous", ["normal"])[-1].lower()
    if value not in ("full", "normal"):
        raise ConfigError(
            f"{redacted_url(url)!r}: synchronous={value!r} is neither full nor normal"
        )
    return value == "full"
