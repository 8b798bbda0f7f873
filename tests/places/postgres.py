"""PostgreSQL: one real server per session, emptied for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jobq.stores.conformance.places import Fresh, Opening, Unavailable, at, place
from scripts.postgres import FAST, Missing, running

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
    try:
        import psycopg
    except ImportError:
        raise Unavailable("pip install 'psycopg[binary]'") from None
    try:
        with running(FAST) as server:

            def fresh() -> Opening:
                with psycopg.connect(server.url, autocommit=True) as connection:
                    connection.execute(_EMPTY)
                return at(server.url)

            yield fresh
    except Missing as missing:
        raise Unavailable(str(missing)) from None
