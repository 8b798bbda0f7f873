"""The parts of a URL: which servers, how to connect, how many replicas to wait for.

valkey://[user[:password]@]host[:port][/db]       one server (redis:// is the same)
valkeys://…                                       one server over TLS (rediss:// is the same)
valkey+sentinel://[…@]host[:port],…/name[/db]      the primary that these Sentinels call `name`
valkey+cluster://[…@]host[:port],…                 the Cluster that these nodes belong to

Options: ?prefix=name (the beginning of all keys) · wait=1 (replicas that put, claim and settle wait
for) · wait_timeout, timeout (seconds) · tls=1 · ca=path
"""

from __future__ import annotations

import re
import ssl
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from jobq.core.values.printable import redacted_url as shown
from jobq.core.values.printable import split_credentials
from jobq.errors import ConfigError
from jobq.stores.base.urls import options_of, port_of, seconds_of
from jobq.stores.valkey.keys import SPACE

Kind = Literal["single", "sentinel", "cluster"]
Node = tuple[str, int]

_KINDS: dict[str, tuple[Kind, bool]] = {
    "valkey": ("single", False),
    "redis": ("single", False),
    "valkeys": ("single", True),
    "rediss": ("single", True),
    "valkey+sentinel": ("sentinel", False),
    "valkey+cluster": ("cluster", False),
}
_OPTIONS = {"prefix", "wait", "wait_timeout", "timeout", "tls", "ca"}
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
"""No braces or colons, which would move keys to another slot or queue.

Nothing that an ACL must quote.
"""


class Address(NamedTuple):
    """The parts of a URL. `shown` is the URL without its password."""

    kind: Kind
    nodes: tuple[Node, ...]
    shown: str
    user: str | None = None
    password: str | None = None
    db: int = 0
    name: str | None = None  # of the primary, with Sentinel
    wait: int = 0
    wait_timeout_ms: int = 1000
    timeout: float = 5.0
    tls: bool = False
    ca: str | None = None
    prefix: str = SPACE

    def context(self) -> ssl.SSLContext | None:
        """The TLS context, or None without TLS."""
        return ssl.create_default_context(cafile=self.ca) if self.tls else None


def parse(url: str) -> Address:
    """Parse a URL. ConfigError says what is wrong with it and what to write instead."""
    try:
        parts = urlsplit(url)
    except ValueError as e:
        raise ConfigError(f"{shown(url)!r} is not a URL: {e}") from None
    if set(split_credentials(url)[1]) & set("/?#"):
        raise ConfigError(
            f"{shown(url)!r} has a '/', '?' or '#' in its user or password: "
            "write %2F, %3F or %23 instead"
        )
    kind, tls = _KINDS[parts.scheme]
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    options = options_of(url, parts.query)
    if unknown := options.keys() - _OPTIONS:
        raise ConfigError(
            f"{shown(url)!r} has the unknown option {min(unknown)!r}: "
            f"the options are {', '.join(sorted(_OPTIONS))}"
        )
    path = [unquote(p) for p in parts.path.split("/") if p]
    name = None
    if kind == "sentinel":
        if not path:
            raise ConfigError(
                f"{shown(url)!r} does not name a primary: "
                "write valkey+sentinel://host:26379/mymaster"
            )
        name = path.pop(0)
    db = _number(url, "database", path.pop(0)) if path else 0
    if path:
        raise ConfigError(f"{shown(url)!r} has {path[0]!r} after its database: remove it")
    if kind == "single" and "," in hosts:
        raise ConfigError(
            f"{shown(url)!r} names one server only: for several, write "
            "valkey+cluster://host,host or valkey+sentinel://host,host/name"
        )
    if kind == "cluster" and db:
        raise ConfigError(f"{shown(url)!r} names database {db}: a Cluster has only database 0")
    default = 26379 if kind == "sentinel" else 6379
    wait = _number(url, "wait", options.get("wait", "0"))
    wait_timeout = seconds_of(url, "wait_timeout", options.get("wait_timeout", "1"))
    timeout = seconds_of(url, "timeout", options.get("timeout", "5"))
    if wait_timeout < 0.001:  # a WAIT of 0 ms has no limit
        raise ConfigError(
            f"{shown(url)!r} has {wait_timeout:g} for wait_timeout: use 0.001 s or more"
        )
    if wait and wait_timeout >= timeout:
        raise ConfigError(
            f"{shown(url)!r} waits {wait_timeout:g} s for replicas, but closes the connection "
            f"after {timeout:g} s without a reply: make wait_timeout shorter than timeout"
        )
    tls = _tls(url, tls, options.get("tls"))
    if "ca" in options and not tls:
        raise ConfigError(f"{shown(url)!r} has ca without TLS: add tls=1")
    return Address(
        kind=kind,
        nodes=tuple(_node(url, host, default) for host in (hosts or "localhost").split(",")),
        shown=shown(url),
        # A user without a password needs none. The server still has to know the user.
        user=unquote(user) or None,
        password=unquote(password) if user or password else None,
        db=db,
        name=name,
        wait=wait,
        wait_timeout_ms=int(wait_timeout * 1000),
        timeout=timeout,
        tls=tls,
        ca=options.get("ca"),
        prefix=_prefix(url, options.get("prefix", SPACE)),
    )


def _tls(url: str, by_scheme: bool, option: str | None) -> bool:
    """A word that is not understood must not send a password in the clear."""
    if option not in (None, "0", "1"):
        raise ConfigError(f"{shown(url)!r} has {option!r} for tls: use 1 or 0")
    if by_scheme and option == "0":
        raise ConfigError(f"{shown(url)!r} has tls=0, but its scheme uses TLS: remove one of them")
    return by_scheme or option == "1"


def _prefix(url: str, text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ConfigError(
            f"{shown(url)!r} has {text!r} for its prefix: use 1 to 64 letters, digits, "
            "underscores, dots and hyphens"
        )
    return text


def _node(url: str, host: str, default: int) -> Node:
    name, port = host, ""
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        port = port.lstrip(":")
    elif ":" in host:
        name, port = host.rsplit(":", 1)
    number = port_of(url, port) if port else default
    return name or "localhost", number


def _number(url: str, what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{shown(url)!r} has {text!r} for its {what}: use a whole number")
    return int(text)
