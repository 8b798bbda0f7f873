"""PostgreSQL: one real server per session, emptied for every test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from jobq.stores import open_store
from jobq.stores.base import Clock, Store
from jobq_conformance.places import Fresh, Opening, Unavailable, at, place
from scripts.postgres import FAST, Missing, Server, running

_REMEMBER = """
create schema remembered;
do $$
declare found record;
begin
    for found in select tablename as name from pg_tables where schemaname = 'jobq' loop
        execute format('create table remembered.%I as select * from only jobq.%I',
                       found.name, found.name);
    end loop;
end $$
"""
"""Copies what the migrations wrote, which is almost nothing."""

_EMPTY = """
select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
    and backend_type = 'client backend' and state <> 'idle';
do $$
declare found record;
begin
    for found in select c.relname as name, r.oid is null as new
                 from pg_class c left join pg_class r
                   on r.relname = c.relname and r.relnamespace = 'remembered'::regnamespace
                 where c.relnamespace = 'jobq'::regnamespace and c.relkind in ('r', 'p') loop
        if not found.new then
            execute format('delete from only jobq.%I', found.name);
            execute format('insert into jobq.%I overriding system value
                            select * from remembered.%I', found.name, found.name);
        elsif to_regclass(format('jobq.%I', found.name)) is not null then
            execute format('drop table jobq.%I cascade', found.name);
        end if;
    end loop;
    for found in select c.oid, s.seqstart from pg_class c join pg_sequence s on s.seqrelid = c.oid
                 where c.relnamespace = 'jobq'::regnamespace loop
        perform setval(found.oid, found.seqstart, false);
    end loop;
end $$
"""
"""Ends the transactions that the last test left open, and restores the first state: 30 ms.

Dropping the schema and migrating again takes 200 ms, and truncating the tables 130 ms.
"""


@place("postgres")
def postgres(tmp: Path) -> Iterator[Fresh]:
    """The PostgreSQL of JQ_POSTGRES, or else 16."""
    with _server() as server, _emptying(server) as empty:
        yield lambda: empty(server.url)


@contextmanager
def without_fast_calls() -> Iterator[None]:
    """Handles that are opened meanwhile send every call the general way, also about plain jobs."""
    from jobq.stores.postgres import store

    with mock.patch.object(store, "FAST", False):
        yield


@place("postgres-general", default=False)
def postgres_general(tmp: Path) -> Iterator[Fresh]:
    """The same server without the single statements for plain jobs (fast.py)."""

    def fresh() -> Opening:
        opening = empty(server.url)

        def opened(clock: Clock) -> Store:
            with without_fast_calls():
                return opening(clock)

        return opened

    with _server() as server, _emptying(server) as empty:
        yield fresh


@place("pgbouncer", default=False)
def pgbouncer(tmp: Path) -> Iterator[Fresh]:
    """The same server behind a PgBouncer in transaction mode, so without LISTEN."""
    with _server() as server:
        from tests.stores.postgres.servers import running_bouncer

        with running_bouncer(server, connections=10) as bouncer, _emptying(server) as empty:
            yield lambda: empty(f"{bouncer.url}?listen=no")


@place("postgres-app", default=False)
def postgres_app(tmp: Path) -> Iterator[Fresh]:
    """The same server, used by a role that has only the rights of the guide."""
    from jobq.stores.postgres import address, schema
    from tests.stores.postgres.servers import ask
    from tests.stores.postgres.test_access import as_role, rights

    with _server() as server:
        url = as_role(server, "jobq_app")

        def fresh() -> Opening:
            ask(server.url, "drop schema if exists jobq cascade")
            for role in ("jobq_app", "jobq_owner"):
                ask(server.url, f"drop role if exists {role}")
            ask(server.url, rights())
            ask(as_role(server, "jobq_owner"), schema.script(address.parse(url), 0))
            return at(f"{url}?migrate=no")

        yield fresh


@contextmanager
def _server() -> Iterator[Server]:
    try:
        import psycopg
    except ImportError:
        raise Unavailable("pip install 'psycopg[binary]'") from None
    try:
        with running(FAST) as server:
            asyncio.run(_migrated(server.url))
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(_REMEMBER)
            yield server
    except Missing as missing:
        raise Unavailable(str(missing)) from None


@contextmanager
def _emptying(server: Server) -> Iterator[Callable[[str], Opening]]:
    """What opens an emptied store. It keeps one connection: a new one reads the catalog."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:

        def empty(url: str) -> Opening:
            connection.execute(_EMPTY)
            return at(url)

        yield empty


async def _migrated(url: str) -> None:
    async with open_store(url):
        pass
