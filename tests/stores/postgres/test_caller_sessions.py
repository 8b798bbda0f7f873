"""jobq.transaction and complete_in, whatever the caller's session is set to or contains."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

import jobq
from jobq import Queue, Worker, current_job, transaction
from jobq.core.records.jobs import Claim, QueueName
from jobq.stores import open_store
from tests.stores.postgres import servers
from tests.stores.postgres.callers import add_to, ids
from tests.stores.postgres.servers import FAST, ask
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("encoding", ["latin1", "euc_jis_2004", "sql_ascii", "utf8"])
async def test_the_encoding_of_the_connection_does_not_matter(
    url: str, store: str, encoding: str
) -> None:
    async with Queue("wörk", store) as queue:
        add = add_to(queue)
        conn = await psycopg.AsyncConnection.connect(url, client_encoding=encoding)
        async with conn, transaction(conn):
            job = await add.options(id="ïd€").enqueue(1)
            with pytest.raises(jobq.InvalidJob):
                await add.options(after=[queue.job("missing€")]).enqueue(1)
            same = f"select lower(current_setting('client_encoding')) = '{encoding}'"
            assert await (await conn.execute(same.encode())).fetchone() == (True,)
            await conn.commit()
        assert await ids(queue) == {"ïd€"}
        async with Worker(queue):
            assert await job.result(timeout=PATIENCE_S) == 2


async def test_a_search_path_that_the_connection_cannot_spell_in_ascii_is_restored(
    queue: Queue, url: str
) -> None:
    add = add_to(queue)
    conn = await psycopg.AsyncConnection.connect(url, client_encoding="latin1")
    async with conn, transaction(conn):
        await conn.execute('set search_path to "früher", public')
        await add.enqueue(1)
        shown = await (await conn.execute("show search_path")).fetchone()
        assert shown == ('"früher", public',)


async def test_temporary_tables_of_the_caller_do_not_hide_those_of_jobq(
    queue: Queue, url: str, store: str
) -> None:
    schema = store.rpartition("=")[2]
    names = "select relname::text from pg_class where relnamespace = %s::regnamespace"
    kinds = " and relkind in ('r', 'p')"
    add = add_to(queue)
    await add.enqueue(0)

    @queue.task
    async def complete() -> Any:
        async with await psycopg.AsyncConnection.connect(url) as conn:
            for (name,) in ask(url, names + kinds, schema):
                await conn.execute(f"create temp table {name} (like {schema}.{name})")
            async with transaction(conn):
                await add.options(id="by a job", unique=True).enqueue(7)
            await current_job().complete_in(conn, "done")
            await conn.commit()

    async with Worker(queue):
        job = await complete.enqueue()
        assert await job.result(timeout=PATIENCE_S) == "done"
        assert await queue.job("by a job").result(timeout=PATIENCE_S) == 8


async def test_a_lost_connection_says_why_it_was_lost(queue: Queue, url: str) -> None:
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn, transaction(conn):
        await add.enqueue(1)
        ask(url, "select pg_terminate_backend(%s, 5000)", conn.info.backend_pid)
        with pytest.raises(jobq.StoreUnavailable, match="terminating connection due to admin"):
            await add.enqueue(2)
        with pytest.raises(jobq.ConfigError, match="the connection is closed"):
            await add.enqueue(3)
    assert await ids(queue) == set()


async def test_a_two_phase_transaction_can_be_prepared_while_workers_sleep() -> None:
    name = QueueName("default", "work")
    servers.postgres_or_skip()
    with servers.running({**FAST, "max_prepared_transactions": "5"}) as server:
        async with Queue("work", server.url) as queue, open_store(server.url) as sleeper:
            add = add_to(queue)
            wanted = Claim(queues=(name,), limit=1, lease_ms=60_000)
            assert (await sleeper.settle([], worker="w", call="1", then=wanted)).asleep
            async with await psycopg.AsyncConnection.connect(server.url) as conn:
                xid = conn.xid(1, "both", "orders")
                await conn.tpc_begin(xid)
                async with transaction(conn):
                    job = await add.enqueue(1)
                await conn.tpc_prepare()
                assert await ids(queue) == set()
                await conn.tpc_commit()
            assert await ids(queue) == {job.id}
            async with Worker(queue), asyncio.timeout(PATIENCE_S):
                assert await job.result() == 2
