"""An operator drops the tables under open handles, and creates them again."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from jobq import ConfigError, Queue, Worker, transaction
from jobq.stores import open_store
from tests.stores.postgres.callers import add_to, ids
from tests.stores.postgres.servers import ask
from tests.waiting import PATIENCE_S, wait_until


def drop(url: str, store: str) -> None:
    """Drop the schema. It locks tables in another order than calls do, so it may have to yield."""

    def dropped() -> bool:
        with suppress(psycopg.errors.DeadlockDetected):
            ask(url, f"drop schema {store.rpartition('=')[2]} cascade")
            return True
        return False

    wait_until(dropped, "the end of the schema")


async def other_queue(store: str) -> Queue:
    """A queue that gets the number which the queue of the test had, of a handle of its own."""
    async with Queue("other", f"{store}&timeout=9") as other:
        await add_to(other).options(id="theirs").enqueue(1)
        return other


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "idle"])
async def test_a_put_does_not_go_to_the_queue_that_has_the_number_now(
    queue: Queue, url: str, store: str, noticed: bool
) -> None:
    add = add_to(queue)
    await add.enqueue(0)
    await add.enqueue(0)  # the handle knows the queue's number
    drop(url, store)
    if noticed:
        with pytest.raises(ConfigError, match="missing or damaged"):
            await add.enqueue(1)
    other = await other_queue(store)
    await add.options(id="ours").enqueue(1)
    assert await ids(queue) == {"ours"}
    async with other:
        assert await ids(other) == {"theirs"}


async def test_a_worker_continues_with_its_own_queue(queue: Queue, url: str, store: str) -> None:
    add = add_to(queue)
    async with Worker(queue):
        assert await add.call(1) == 2
        drop(url, store)
        with pytest.raises(ConfigError, match="missing or damaged"):
            await add.enqueue(1)
        other = await other_queue(store)
        job = await add.enqueue(2)
        assert await job.result(timeout=PATIENCE_S) == 3
        async with other:
            assert (await other.job("theirs").info()).state == "waiting"


async def test_a_transaction_goes_to_the_new_tables(queue: Queue, url: str, store: str) -> None:
    add = add_to(queue)
    async with await psycopg.AsyncConnection.connect(url) as conn:
        async with transaction(conn):
            await add.enqueue(0)
        await conn.commit()
        drop(url, store)
        async with transaction(conn):
            with pytest.raises(ConfigError, match="without the schema"):
                await add.enqueue(1)
        await conn.rollback()
        with pytest.raises(ConfigError, match="missing or damaged"):
            await add.enqueue(1)
        async with open_store(store):
            pass
        await add.options(id="outside").enqueue(1)
        async with transaction(conn):
            await add.options(id="inside").enqueue(1)
        await conn.commit()
    assert await ids(queue) == {"outside", "inside"}
