"""memory:// and sqlite:///path: the embedded store."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from jobq.core.values.printable import redacted_url
from jobq.errors import ConfigError
from jobq.stores.base import Clock
from jobq.stores.base.urls import options_of
from jobq.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open"]


def open(url: str, clock: Clock | None) -> SqliteStore:
    """`memory://NAME`, `sqlite:///relative/path`, `sqlite:////absolute/path`,
    `?synchronous=full|normal`, `?checksums=yes|no`."""
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
    full, checksums = _options(url, parts.query)
    return SqliteStore(url, f"file:{path}", path, full=full, checksums=checksums, clock=clock)


_OPTIONS = {"synchronous": ("normal", "full"), "checksums": ("no", "yes")}
"""The options of a URL with their values, the default first."""


def _options(url: str, query: str) -> tuple[bool, bool]:
    """Whether every commit is synced, and whether pages of a new file have checksums."""
    given = options_of(url, query)
    for name, value in given.items():
        if name not in _OPTIONS:
            known = " and ".join(_OPTIONS)
            raise ConfigError(f"{redacted_url(url)!r}: unknown option {name!r}; there are {known}")
        if value.lower() not in _OPTIONS[name]:
            one, two = _OPTIONS[name]
            raise ConfigError(f"{redacted_url(url)!r}: {name}={value!r} is neither {one} nor {two}")
    full, checksums = (
        given.get(name, "").lower() == values[1] for name, values in _OPTIONS.items()
    )
    return full, checksums
