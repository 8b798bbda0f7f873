"""`?prefix=`: stores that share a server and do not see each other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Edge, JobKey, QueueName, Topic
from jobq.core.records.queues import QueueConfig, ScheduleSpec
from jobq.core.records.workers import WorkerRecord
from jobq.core.rules.waits import child_note
from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.valkey.address import parse
from tests.stores.valkey import servers
from tests.stores.valkey.jobs import done, exchange, failed, spec, take

Pair = tuple[Store, Store]


@pytest.fixture(scope="session")
def a_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    servers.valkey_or_skip()
    with servers.running_cluster(tmp_path_factory.mktemp("prefixes"), replicas=0) as nodes:
        yield nodes.url


@pytest.fixture(params=["single", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "cluster":
        return str(request.getfixturevalue("a_cluster"))
    return str(request.getfixturevalue("server").url)


@pytest.fixture
async def pair(url: str) -> AsyncIterator[Pair]:
    """Two stores on one server. The first has the default prefix."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_store(url))
        second = await stack.enter_async_context(open_store(f"{url}?prefix=other-1.x_y"))
        yield first, second


async def test_the_same_id_under_another_prefix_is_another_job(
    pair: Pair, queue: QueueName
) -> None:
    for n, store in enumerate(pair):
        (result,) = await store.put([spec(queue, "a", payload=b"%d" % n)])
        assert not result.duplicate
    for n, store in enumerate(pair):
        (lease,) = await take(store, queue, 5)
        assert lease.payload == b"%d" % n
        await exchange(store, queue, done(lease, b"result %d" % n))
        (record,) = await store.get([JobKey(queue, "a")])
        assert record is not None
        assert record.result == b"result %d" % n


async def test_queues_schedules_workers_and_leaders_are_separate(
    pair: Pair, queue: QueueName
) -> None:
    first, second = pair
    await first.put([spec(queue, "a")])
    await first.put_schedule(
        ScheduleSpec(queue=queue, id="s", template=spec(queue, "s"), every_ms=1000), next_ms=1
    )
    await first.pause(queue)
    await first.beat(
        WorkerRecord(name="bee", host="h", pid=1, queues=(queue,), concurrency=1), ttl_ms=60_000
    )
    assert [
        record.queue for record in await first.queues(queue.tenant) if record.queue == queue
    ] == [queue]
    assert [
        record.queue for record in await second.queues(queue.tenant) if record.queue == queue
    ] == []
    assert await second.list_schedules(queue) == []
    assert await second.workers(queue) == []
    assert not await second.ask_worker("bee", "drain")
    assert await first.lead(queue.queue, who="x", ttl_ms=60_000)
    assert await second.lead(queue.queue, who="y", ttl_ms=60_000)
    await second.put([spec(queue, "b")])
    assert [lease.id for lease in await take(second, queue)] == [
        "b"
    ]  # only the other store is paused


async def test_a_cancel_reaches_only_the_worker_of_its_prefix(pair: Pair, queue: QueueName) -> None:
    for store in pair:
        await store.put([spec(queue, "a")])
        await take(store, queue, worker="bee")
    first, second = pair
    topic = Topic("cancel", None, "bee")
    async with first.listen([topic]) as elsewhere, second.listen([topic]) as signals:
        assert await second.alter([Cancel(job=JobKey(queue, "a"))]) == ["done"]
        async with asyncio.timeout(10):
            assert (await anext(signals)).job == "a"
        assert await first.alter([Cancel(job=JobKey(queue, "a"))]) == ["done"]
        async with asyncio.timeout(10):
            assert (await anext(elsewhere)).job == "a"


async def test_messages_between_queues_stay_under_their_prefix(
    pair: Pair, queue: QueueName
) -> None:
    """Flows over two queues, dead letters and cascades: the messages carry whole keys."""
    beside = QueueName(queue.tenant, f"{queue.queue}-beside")
    _, second = pair
    await second.declare(queue, QueueConfig(dead_letters=f"{queue.queue}-dead"))
    child = JobKey(queue, "child")
    await second.put([spec(queue, "child"), spec(beside, "parent", after=(Edge(child),))], flow="f")
    (lease,) = await take(second, queue)
    await exchange(second, queue, done(lease, b"7"))
    (parent,) = await take(second, beside)
    assert parent.inputs[0].result == b"7"

    await second.put([spec(queue, "lost")])
    (lease,) = await take(second, queue)
    await second.settle([failed(lease)], worker="w1", call="fail")
    await second.tick()
    assert [
        lease.id for lease in await take(second, QueueName(queue.tenant, f"{queue.queue}-dead"))
    ] == [f"{queue.queue}/lost/0"]

    await second.put([spec(queue, "added", delay_ms=60_000)])
    assert await second.alter(
        [child_note(JobKey(beside, "parent"), "0", JobKey(queue, "added"))]
    ) == ["done"]
    assert await second.alter([Cancel(job=JobKey(beside, "parent"), cascade=True)]) == ["done"]
    (record,) = await second.get([JobKey(queue, "added")])
    assert record is not None
    assert record.state.value == "cancelled"


async def test_a_job_wakes_only_a_worker_of_its_prefix(pair: Pair, queue: QueueName) -> None:
    first, second = pair
    for store in pair:
        assert await take(store, queue, worker="bee") == []
    naps = [
        asyncio.create_task(store.sleep([queue], worker="bee", slots=1, timeout_ms=10_000))
        for store in pair
    ]
    await asyncio.sleep(0)
    await second.put([spec(queue, "a")])
    assert await naps[1]
    assert not naps[0].done()
    await first.put([spec(queue, "a")])
    assert await naps[0]


async def test_every_key_and_channel_begins_with_the_prefix(
    server: servers.Server, queue: QueueName
) -> None:
    server.tell("FLUSHALL")
    async with open_store(f"{server.url}?prefix=mine") as store:
        await store.put(
            [spec(queue, "a"), spec(queue, "b", after=(Edge(JobKey(queue, "a")),))], flow="f"
        )
        await store.beat(
            WorkerRecord(name="bee", host="h", pid=1, queues=(queue,), concurrency=1), ttl_ms=60_000
        )
        await store.lead("upkeep", who="bee", ttl_ms=60_000)
        async with store.listen(
            [Topic("cancel", None, "bee"), Topic("ended", queue, "a"), Topic("log", queue, None)]
        ):
            (lease,) = await take(store, queue)
            await exchange(store, queue, done(lease))
            for asked in (("KEYS", "*"), ("PUBSUB", "CHANNELS")):
                names = re.findall(rb"^[^*$\r\n][^\r\n]*", server.tell(*asked), re.MULTILINE)
                assert names
                assert [name for name in names if not name.startswith(b"mine:")] == []


@pytest.mark.parametrize("prefix", ["", "a:b", "{a}", "a b", "a*", "é", "x" * 65, "a/b", "%7B"])
def test_a_prefix_that_could_move_keys_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match=r"for its prefix: use 1 to 64 letters"):
        parse(f"valkey://localhost?prefix={prefix}")


@pytest.mark.parametrize(
    ("scheme", "prefix"), [*product(["valkey", "redis", "valkey+cluster"], ["jq2", "My.App_1-x"])]
)
def test_a_prefix_is_taken_from_the_url(scheme: str, prefix: str) -> None:
    assert parse(f"{scheme}://localhost?prefix={prefix}").prefix == prefix
    assert parse(f"{scheme}://localhost").prefix == "jq"


def test_no_module_of_the_store_spells_the_prefix_itself() -> None:
    folder = Path(parse.__code__.co_filename).parent
    sources = [
        path
        for path in folder.rglob("*")
        if path.suffix in (".py", ".lua") and path.name != "keys.py"
    ]
    assert len(sources) > 30
    assert [path.name for path in sources if "jq:" in path.read_text()] == []
