"""Migrations: applied once, refused where they would do damage, and printed for a DBA."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from jobq import Queue, Worker, transaction
from jobq.errors import ConfigError, CorruptStore
from jobq.stores import open_store
from jobq.stores.postgres import schema
from jobq.stores.postgres.address import parse
from jobq.stores.postgres.connection import Connections, Kind
from jobq.stores.postgres.store import PostgresStore
from tests.stores.postgres import servers
from tests.stores.postgres.callers import add_to, ids
from tests.stores.postgres.servers import FAST, Server, ask
from tests.waiting import PATIENCE_S

GOLDEN = Path(__file__).parent / "schema.txt"
"""The schema that the migrations make. `JQ_GOLDEN=write` writes it."""

CATALOG = """
select format('%%s %%s', case c.relkind when 'r' then 'table' when 'p' then 'partitioned table'
        when 'S' then 'sequence' when 'v' then 'view' else c.relkind::text end, c.relname)
    || case c.relpersistence when 'u' then ' unlogged' else '' end
    || coalesce(' ' || pg_get_expr(c.relpartbound, c.oid), '')
    || coalesce(' ' || c.reloptions::text, '')
    || case c.relreplident when 'f' then ' identified by all columns'
        when 'i' then ' identified by an index' else '' end,
    c.relname, 0, ''
from pg_class c
where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'S', 'v')
union all
select format('  %%s %%s%%s%%s%%s', a.attname, format_type(a.atttypid, a.atttypmod),
        case when l.collname = 'default' then '' else coalesce(' collate ' || l.collname, '') end,
        case when a.attnotnull then ' not null' else '' end,
        coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
        || case a.attidentity when '' then '' else ' identity' end),
    c.relname, 1, to_char(a.attnum, '000')
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
left join pg_collation l on l.oid = a.attcollation
where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'v')
union all
select '  ' || pg_get_constraintdef(o.oid), c.relname, 2, o.conname
from pg_constraint o join pg_class c on c.oid = o.conrelid
where c.relnamespace = %(schema)s::regnamespace and o.contype <> 'n'
union all
select '  ' || pg_get_indexdef(i.indexrelid), c.relname, 3, x.relname
from pg_index i join pg_class c on c.oid = i.indrelid join pg_class x on x.oid = i.indexrelid
where c.relnamespace = %(schema)s::regnamespace
union all
select 'function ' || p.oid::regprocedure::text || ' ' || md5(p.prosrc), '~' || p.proname, 4, ''
from pg_proc p where p.pronamespace = %(schema)s::regnamespace
order by 2, 3, 4
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """A server with a database per test."""
    servers.postgres_or_skip()
    with servers.running(FAST) as server:
        yield server


@pytest.fixture
def url(shared: Server, request: pytest.FixtureRequest) -> str:
    """A database without tables."""
    name = f"d{abs(hash(request.node.nodeid)) % 10**9}"
    ask(shared.url, f"create database {name}")
    return shared.url_of(name)


def catalog(url: str, name: str = "jobq") -> str:
    """The tables, columns, constraints and indexes of a schema, as sorted text."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(f"set search_path to {name}".encode())
        rows = connection.execute(CATALOG.encode(), {"schema": name}).fetchall()
    return "\n".join(row[0] for row in rows) + "\n"


async def migrated(url: str) -> None:
    """Open the store once."""
    async with open_store(url):
        pass


async def test_the_migrations_make_the_schema_on_record(url: str) -> None:
    await migrated(url)
    found = catalog(url)
    if os.environ.get("JQ_GOLDEN") == "write":
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text(), "JQ_GOLDEN=write pytest … writes the new schema"


async def test_a_schema_of_another_name_has_the_same_tables(url: str) -> None:
    await migrated(f"{url}?schema=elsewhere")
    assert catalog(url, "elsewhere").replace("elsewhere.", "jobq.") == GOLDEN.read_text()
    assert ask(url, "select to_regnamespace('jobq')") == [(None,)]


@pytest.mark.parametrize("name", ["user", "order", "default", "authorization", "_"])
async def test_a_schema_may_have_the_name_of_a_word_of_sql(server: Server, name: str) -> None:
    database = server.url_of("words")
    if not ask(server.url, "select 1 from pg_database where datname = 'words'"):
        ask(server.url, "create database words")
    url = f"{database}?schema={name}"
    async with Queue("work", url) as queue, Worker(queue):
        add = add_to(queue)
        assert await add.call(1) == 2
        async with await psycopg.AsyncConnection.connect(database) as conn:
            async with transaction(conn):
                job = await add.enqueue(2)
            await conn.commit()
        assert await job.result(timeout=PATIENCE_S) == 3
    ask(database, f'drop schema "{name}" cascade')
    ask(database, schema.script(parse(url), 0))
    async with Queue("work", f"{url}&migrate=no") as queue:
        assert await ids(queue) == set()


async def test_starters_at_the_same_time_migrate_once(url: str) -> None:
    await asyncio.gather(*(migrated(url) for _ in range(8)))
    assert ask(url, "select count(*) from jobq.meta where name = 'log'") == [(1,)]


async def test_a_start_on_current_tables_takes_no_lock_and_changes_nothing(url: str) -> None:
    await migrated(url)
    before = ask(
        url, "select name, value, xmin::text from jobq.meta where name <> 'clock' order by 1"
    )
    import psycopg

    with psycopg.connect(url) as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended('jobq:jobq', 0))")
        async with asyncio.timeout(10):
            await migrated(url)
    after = ask(
        url, "select name, value, xmin::text from jobq.meta where name <> 'clock' order by 1"
    )
    assert after == before


async def test_migrate_no_names_the_command_and_changes_nothing(url: str) -> None:
    with pytest.raises(ConfigError, match=r"has no tables, .* run `jq-ctl store migrate --url …`"):
        await migrated(f"{url}?migrate=no")
    assert ask(url, "select to_regnamespace('jobq')") == [(None,)]
    await migrated(url)
    await migrated(f"{url}?migrate=no")


async def test_a_store_of_a_newer_jobq_that_this_one_would_damage_is_refused(url: str) -> None:
    await migrated(url)
    ask(url, "update jobq.meta set value = '99' where name in ('schema', 'oldest')")
    ask(url, "update jobq.meta set value = '9.9' where name = 'release'")
    with pytest.raises(ConfigError, match=r"has layout 99, from jobq 9.9, .* upgrade jobq here"):
        await migrated(url)


async def test_a_store_of_a_newer_jobq_that_only_added_something_is_opened(url: str) -> None:
    await migrated(url)
    ask(url, "update jobq.meta set value = '99' where name = 'schema'")
    await migrated(url)
    assert ask(url, "select value from jobq.meta where name = 'schema'") == [("99",)]


async def test_an_open_handle_refuses_a_layout_that_changed_meanwhile(url: str) -> None:
    async with open_store(url) as store:
        await store.queues()
        ask(url, "update jobq.meta set value = '99' where name in ('schema', 'oldest')")
        assert isinstance(store, PostgresStore)
        assert store._connections is not None
        store._connections.clock._readings = 0  # as if the next look were due
        with pytest.raises(ConfigError, match=r"has layout 99"):
            await store.queues()


async def test_tables_that_do_not_say_their_layout_are_corrupt(url: str) -> None:
    await migrated(url)
    ask(url, "delete from jobq.meta where name = 'schema'")
    with pytest.raises(CorruptStore, match=r"does not say which layout"):
        await migrated(url)


async def test_a_failed_migration_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = schema.text(1)
    monkeypatch.setattr(schema, "text", lambda number: f"{whole};\nselect 1 / 0")
    with pytest.raises(Exception, match="division by zero"):
        await migrated(url)
    assert ask(url, "select to_regnamespace('jobq')") == [(None,)]


@asynccontextmanager
async def link_to(url: str) -> AsyncIterator[Any]:
    """Runs work(link, …) on a connection."""
    from jobq.stores.postgres.clock import StoreClock
    from jobq.stores.postgres.mailbox import ChannelMailbox

    address = parse(url)
    found = Connections(address, StoreClock(None), lambda *_: None, ChannelMailbox())
    try:
        yield lambda work: found.submit(Kind.LINK, work, (address,))
    finally:
        await asyncio.to_thread(found.close)


async def test_the_printed_sql_makes_the_same_tables(url: str, shared: Server) -> None:
    async with link_to(url) as run:
        sql = await run(schema.pending)
        psql: list[str | Path] = [
            shared.bin / "psql",
            "--no-psqlrc",
            "-v",
            "ON_ERROR_STOP=1",
            "-q",
            url,
        ]
        subprocess.run(psql, input=sql, text=True, check=True, capture_output=True, timeout=60)
        assert await run(schema.pending) == ""
    assert catalog(url) == GOLDEN.read_text()
    await migrated(f"{url}?migrate=no")
