"""The parts of a URL, and connecting to its servers, host by host, with a deadline for each.

postgresql://[user[:password]@]host[:port][,host…]/database   (postgres:// is the same)

Options of jobq: ?schema=name (default `jobq`) · migrate=no (never change the schema) · listen=no
(for PgBouncer in transaction mode) · timeout=seconds (of one call).
Every other option goes to libpq: sslmode, sslrootcert, target_session_attrs, passfile, service, …
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
from psycopg import pq

from jobq.core.values.printable import redacted_url as shown
from jobq.core.values.printable import split_credentials
from jobq.errors import ConfigError
from jobq.stores.base.urls import options_of
from jobq.stores.postgres.link import Link, LinkLost, LinkStopped, one_line, ready

SCHEMA = "jobq"
"""The schema of the tables, if the URL names no other one."""
TIMEOUT_S = 10.0
"""Seconds that one call may take. Calls are bounded, and take milliseconds on a healthy server. A
longer time would only delay the discovery of a connection that is half-open."""

_LISTS = ("host", "hostaddr", "port")
"""Options of libpq with a value for each server, separated by commas."""
_OWN = ("schema", "migrate", "listen", "timeout")
_REFUSED = {
    "client_encoding": "jobq always uses UTF8",
    "replication": "jobq needs an ordinary connection",
    "connect_timeout": "write timeout=seconds, which is also the time of one call",
}
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
"""Names that need no quotes, unless they are words of SQL: every tool spells them in one way."""

_DEFAULTS = {
    "application_name": "jobq",
    # A role, a database or PGCLIENTENCODING may ask for another one.
    "client_encoding": "UTF8",
    # The kernel finds a peer that is gone after 10 + 3 × 5 s without traffic, or after 10 s in
    # which it did not acknowledge what was sent.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class Address(NamedTuple):
    """The parts of a URL. `shown` is the URL without its password."""

    shown: str
    options: Mapping[str, str]
    """Options of libpq."""
    schema: str = SCHEMA
    migrate: bool = True
    listen: bool = True
    timeout: float = TIMEOUT_S

    def attempts(self) -> Iterator[bytes]:
        """A connection string for each host, in order.

        With one string for all of them, libpq would not go on from a host that never replies.
        """
        names = [n for n in _LISTS if self.options.get(n)]
        lists = {name: self.options[name].split(",") for name in names}
        most = max((len(values) for values in lists.values()), default=1)
        for i in range(most):
            one = {
                name: values[i] if len(values) > 1 else values[0] for name, values in lists.items()
            }
            yield psycopg.conninfo.make_conninfo(**{**self.options, **one}).encode()

    @property
    def hosts(self) -> str:
        """The servers, for messages."""
        host = self.options.get("host") or self.options.get("hostaddr") or "the local server"
        return f"{host}:{self.options['port']}" if self.options.get("port") else host


def parse(url: str) -> Address:
    """Parse a URL. ConfigError says what is wrong with it and what to write instead."""
    if set(split_credentials(url)[1]) & set("/?#"):
        raise ConfigError(
            f"{shown(url)!r} has a '/', '?' or '#' in its user or password: "
            "write %2F, %3F or %23 instead"
        )
    parts = urlsplit(url)
    given = options_of(url, parts.query)
    _check_names(url, given)
    own = {name: given.pop(name) for name in _OWN if name in given}
    options = {**_DEFAULTS, **_of_libpq(url), **given}
    _check_servers(url, options)
    if "," in options.get("host", ""):
        # One of several servers is the primary: a standby refuses all writes.
        options.setdefault("target_session_attrs", "read-write")
    return Address(
        shown=shown(url),
        options=options,
        schema=_schema(url, own.get("schema", SCHEMA)),
        migrate=_yes(url, "migrate", own.get("migrate", "yes")),
        listen=_yes(url, "listen", own.get("listen", "yes")),
        timeout=_seconds(url, own.get("timeout")),
    )


def _of_libpq(url: str) -> dict[str, str]:
    """User, password, hosts, ports and database of the URL, as libpq reads them."""
    place = url.partition("?")[0].partition("#")[0]
    try:
        found = pq.Conninfo.parse(place.encode())
    except psycopg.Error:  # its message may quote a part of the password
        raise ConfigError(
            f"{shown(url)!r} is not a valid URL: "
            "write postgresql://user:password@host:5432/database, with %xx for special characters"
        ) from None
    return {o.keyword.decode(): o.val.decode() for o in found if o.val is not None}


def _check_names(url: str, given: Mapping[str, str]) -> None:
    known = [*_OWN, *(o.keyword.decode() for o in pq.Conninfo.get_defaults())]
    for name in given:
        if name in _REFUSED:
            raise ConfigError(f"{shown(url)!r} has the option {name!r}: {_REFUSED[name]}")
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"jobq has {', '.join(_OWN)}"
            raise ConfigError(
                f"{shown(url)!r} has the unknown option {name!r}: {hint} "
                "All options of libpq, such as sslmode, are known too"
            )


def _check_servers(url: str, options: Mapping[str, str]) -> None:
    """Hosts, addresses and ports belong together: as many of each, or one for all."""
    counts = {name: options[name].count(",") + 1 for name in _LISTS if options.get(name)}
    most = max(counts, key=lambda name: counts[name], default="")
    for name, n in counts.items():
        if n not in (1, counts[most]):
            raise ConfigError(
                f"{shown(url)!r} has {n} values for {name} and {counts[most]} for {most}: write "
                "one for each server"
            )


def _schema(url: str, text: str) -> str:
    if not _SCHEMA.fullmatch(text) or text.startswith("pg_"):
        raise ConfigError(
            f"{shown(url)!r} has {text!r} for its schema: use 1 to 63 lower-case letters, digits "
            "and underscores, not starting with a digit or with pg_"
        )
    return text


def _yes(url: str, what: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ConfigError(f"{shown(url)!r} has {text!r} for {what}: use yes or no")
    return text == "yes"


def _seconds(url: str, text: str | None) -> float:
    if text is None:
        return TIMEOUT_S
    try:
        value = float(text)
        if not 1 <= value < 3600:
            raise ValueError(text)
    except ValueError:
        raise ConfigError(
            f"{shown(url)!r} has {text!r} for timeout: use seconds, from 1 to an hour"
        ) from None
    return value


def connect(address: Address, stop: int, timeout: float) -> Link:
    """Connect to the first server of the address that accepts. LinkLost says why none does."""
    problems = []
    attempts = list(address.attempts())
    for conninfo in attempts:
        deadline = time.monotonic() + timeout / len(attempts)
        try:
            return _connect(conninfo, stop, deadline, pooled=not address.listen)
        except LinkStopped:
            raise
        except LinkLost as e:
            problems.append(str(e))
    raise LinkLost("; ".join(problems))


def _connect(conninfo: bytes, stop: int, deadline: float, *, pooled: bool) -> Link:
    pgconn = pq.PGconn.connect_start(conninfo)
    state = pq.PollingStatus.WRITING
    try:
        while pgconn.status != pq.ConnStatus.BAD and state != pq.PollingStatus.OK:
            reading = state == pq.PollingStatus.READING
            left = deadline - time.monotonic()
            if not ready(pgconn.socket, reading, left, stop):
                where = pgconn.host.decode() or "the server"
                raise LinkLost(f"{where} did not accept a connection in time")
            state = pq.PollingStatus(pgconn.connect_poll())
            if state == pq.PollingStatus.FAILED:
                break
        if pgconn.status != pq.ConnStatus.OK:
            raise LinkLost(one_line(pgconn.get_error_message()))
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()
        # libpq prints notices of the server to stderr; jobq has no use for them.
        pgconn.notice_handler = lambda _: None
    except BaseException:
        pgconn.finish()
        raise
    link = Link(pgconn, stop, pooled=pooled)
    link.deadline = deadline
    return link
