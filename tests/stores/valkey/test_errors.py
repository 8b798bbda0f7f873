"""Failed runs are stored where no claim reads them, and are removed with their job."""

from __future__ import annotations

from msgspec.structs import replace

from jobq.core.records.failures import MAX_ERRORS
from jobq.core.records.jobs import JobKey, QueueName, RetryLater
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import done, failed, spec, take
from tests.stores.valkey.servers import Server


async def test_a_lease_does_not_contain_tracebacks(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.put([spec(queue, "a")])
    (lease,) = await take(store, queue)
    failure = replace(failed(lease).failure, traceback="x" * 4000)
    outcome = RetryLater(queue=queue, id="a", token=lease.token, failure=failure)
    await store.settle([outcome], worker="w1", call="retry")
    carried = server.tell("HGETALL", f"{keys.Space().prefix(queue)}x:a")
    assert len(carried) < 100
    (lease,) = await take(store, queue)
    await store.settle([done(lease)], worker="w1", call="done")
    assert b"x" * 4000 in server.tell("LRANGE", f"{keys.Space().prefix(queue)}er:a", "0", "-1")


async def test_a_job_that_never_failed_has_no_key_for_failed_runs(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.put([spec(queue, "a")])
    (lease,) = await take(store, queue)
    await store.settle([done(lease)], worker="w1", call="done")
    assert b"er:a" not in server.tell("KEYS", "*")


async def test_no_more_failed_runs_are_stored_than_are_shown(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.put([spec(queue, "a")])
    for n in range(MAX_ERRORS + 5):
        (lease,) = await take(store, queue)
        outcome = RetryLater(queue=queue, id="a", token=lease.token, failure=failed(lease).failure)
        await store.settle([outcome], worker="w1", call=f"retry{n}")
    assert server.tell("LLEN", f"{keys.Space().prefix(queue)}er:a").strip() == b":%d" % MAX_ERRORS


async def test_an_unreadable_failed_run_is_listed_as_unreadable(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.put([spec(queue, "a")])
    (lease,) = await take(store, queue)
    await store.settle([failed(lease)], worker="w1", call="fail")
    server.tell("LSET", f"{keys.Space().prefix(queue)}er:a", "0", "junk")
    (record,) = await store.get([JobKey(queue, "a")])
    assert record is not None
    assert record.failure is not None
    assert [error.type for error in record.errors] == [record.failure.type] == ["Unreadable"]
