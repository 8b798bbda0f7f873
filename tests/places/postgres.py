"""PostgreSQL: one real server per session, emptied for every test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobq.stores.conformance.places import Fresh, Opening, Unavailable, at, place
from scripts.postgres import FAST, Missing, Server, running

_EMPTY = """
select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
    and backend_type = 'client backend';
drop schema if exists jobq cascade
"""
"""Ends what the last test left open, which could hold locks, and drops the tables."""


@place("postgres", default=False)
def postgres(tmp: Path) -> Iterator[Fresh]:
    """The PostgreSQL of JQ_POSTGRES, or else 16."""
    with _server() as server:
        yield lambda: _emptied(server, server.url)


@place("pgbouncer", default=False)
def pgbouncer(tmp: Path) -> Iterator[Fresh]:
    """The same server behind a PgBouncer in transaction mode, so without LISTEN."""
    with _server() as server:
        from tests.stores.postgres.servers import running_bouncer

        with running_bouncer(server, connections=10) as bouncer:
            yield lambda: _emptied(server, f"{bouncer.url}?listen=no")


@contextmanager
def _server() -> Iterator[Server]:
    try:
        import psycopg  # noqa: F401 (only to see whether it is installed)
    except ImportError:
        raise Unavailable("pip install 'psycopg[binary]'") from None
    try:
        with running(FAST) as server:
            yield server
    except Missing as missing:
        raise Unavailable(str(missing)) from None


def _emptied(server: Server, url: str) -> Opening:
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(_EMPTY)
    return at(url)
