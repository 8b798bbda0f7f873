"""The database publishes all its tables: for a replica, an upgrade, or change data capture."""

from __future__ import annotations

from jobq import Queue, State, Worker
from jobq.stores import open_store
from tests.stores.postgres import servers
from tests.stores.postgres.callers import add_to, events
from tests.stores.postgres.servers import FAST, ask
from tests.waiting import PATIENCE_S

KEYED = """
select c.relname::text from pg_class c
where c.relnamespace = 'jobq'::regnamespace and c.relkind = 'r' and c.relpersistence = 'p'
    and c.relreplident = 'd'
    and not exists (select 1 from pg_index i where i.indrelid = c.oid and i.indisprimary)
"""
"""Tables whose rows PostgreSQL refuses to change or delete while they are published."""


async def test_jobs_run_in_a_database_that_publishes_all_tables() -> None:
    servers.postgres_or_skip()
    with servers.running({**FAST, "wal_level": "logical"}) as server:
        ask(server.url, "create publication everything for all tables")
        async with Queue("work", server.url) as queue:
            add = add_to(queue)
            async with Worker(queue):
                assert await add.call(1) == 2
                job = await add.options(delay=0.1).enqueue(2)
                assert await job.result(timeout=PATIENCE_S) == 3
            await add.options(delay=60).enqueue(3)
            assert await queue.purge(State.DELAYED) == 1
            assert "completed" in await events(queue)
        async with open_store(server.url) as store:
            await store.tick()
        assert ask(server.url, KEYED) == []
