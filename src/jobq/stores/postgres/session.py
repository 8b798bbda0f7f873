"""What a connection is set to, and what it learns about its server."""

from __future__ import annotations

from typing import NamedTuple

from jobq.errors import ConfigError
from jobq.stores.postgres.address import Address
from jobq.stores.postgres.clock import elapsed
from jobq.stores.postgres.link import Link
from jobq.stores.postgres.queries import LATEST

OLDEST_SERVER = 140_000
"""PostgreSQL 14, as libpq numbers versions."""
ENCODINGS = frozenset({"UTF8", "SQL_ASCII"})
"""Encodings of databases that store every text. SQL_ASCII stores bytes as they come."""
LOCK_S = 3.0
"""Seconds that a statement waits for a lock. Calls of jobq hold locks for milliseconds."""
FROZEN_S = 15.0
"""Seconds after which the server ends a transaction whose client sends nothing: its process is
frozen, or the network is gone. Others wait for its locks meanwhile."""

_STATE = f"""
SELECT extract(epoch FROM clock_timestamp())::float8,
    to_hex(hashtextextended(pg_postmaster_start_time()::text, 0)),
    (SELECT value FROM meta WHERE name = 'clock'),
    ({LATEST}),
    (SELECT value FROM meta WHERE name = 'oldest'),
    (SELECT value FROM meta WHERE name = 'log')
"""


class ServerState(NamedTuple):
    """The server as a connection finds it."""

    server_s: float
    sent: float
    """When the question was sent, by clock.elapsed."""
    received: float
    incarnation: str
    """Changes with every start of a server, so also with a restored backup or a new primary."""
    clock: str | None
    """The time that is stored in `meta`."""
    latest: int | None
    """The latest time in the event log."""
    oldest: str | None
    """The oldest layout whose code can work on the tables."""
    log: str | None
    """The id of the event log."""


def lock_s(address: Address) -> float:
    """Seconds that a statement waits for a lock."""
    return min(LOCK_S, address.timeout / 3)


def settings(address: Address) -> dict[str, str]:
    """The settings of a session, or of each transaction if the server may change between them."""
    return {
        # Temporary tables come last: those of a caller may have the names of jobq's tables.
        "search_path": f"{address.schema},pg_catalog,pg_temp",
        # Half a second before the client gives up and closes the connection.
        "statement_timeout": f"{address.timeout * 1000 - 500:.0f}",
        "lock_timeout": f"{lock_s(address) * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{max(FROZEN_S, address.timeout) * 1000:.0f}",
        "client_min_messages": "error",
        # A statement must see what was committed before it. The database may have another default.
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        # Statements contain backslashes that mean themselves.
        "standard_conforming_strings": "on",
        # A plan of a few index scans is never worth compiling.
        "jit": "off",
        # A plan that was made while a table was small must not read all of it later.
        "enable_seqscan": "off",
        # A bitmap reads all rows that match, and dead versions, where a few in order would do.
        "enable_bitmapscan": "off",
        # Planning the statements of fast.sql takes ten times as long as running them for one job.
        "plan_cache_mode": "force_generic_plan",
    }


def of_caller(address: Address) -> dict[str, str]:
    """The settings of a call inside a caller's transaction, which get their old values after it."""
    given = settings(address)
    names = ("search_path", "lock_timeout", "jit", "enable_seqscan", "enable_bitmapscan")
    return {name: given[name] for name in names}


def apply(link: Link, address: Address, *, injected: bool = False) -> None:
    """Apply the settings: to the session, or to the transaction that has just begun.

    `injected`: the store's time is not the server's, so statements must not read that one."""
    given = {**settings(address), "jobq.clock": "injected" if injected else "server"}
    calls = ", ".join(
        f"set_config('{name}', '{value}', {'true' if link.pooled else 'false'})"
        for name, value in given.items()
    )
    link.command(f"SELECT {calls}".encode())


def check_server(link: Link, store: str) -> None:
    """ConfigError if the server is too old, or its database cannot store every text."""
    version: int = link.pgconn.server_version
    if version < OLDEST_SERVER:
        raise ConfigError(
            f"{store} is PostgreSQL {version // 10_000}, and jobq needs 14 or newer: "
            "upgrade the server"
        )
    encoding = (link.pgconn.parameter_status(b"server_encoding") or b"UTF8").decode()
    if encoding not in ENCODINGS:
        raise ConfigError(
            f"the database of {store} has the encoding {encoding}, and jobq needs UTF8: create "
            "another database for jobq (CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0)"
        )


def read_state(link: Link) -> ServerState:
    """Read the server's clock and what `meta` says. Runs inside a transaction."""
    link.wait()
    sent = elapsed()
    row = link.execute(_STATE).fetchone()
    assert row is not None
    received = elapsed()
    server_s, incarnation, *rest = row
    return ServerState(server_s, sent, received, incarnation[:8], *rest)
