"""A small result is published with the end of its job, so the caller does not read the job."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from jobq.core.records.jobs import JobKey, QueueName
from jobq.stores.valkey.library import function
from jobq.stores.valkey.store import ValkeyStore

from .jobs import done, exchange, spec, take
from .servers import Server


@pytest.mark.parametrize(
    ("result", "published"), [(b"42", True), (b"x" * 10_000, False)], ids=["small", "large"]
)
async def test_a_small_result_is_published_with_the_end_of_its_job(
    store: ValkeyStore, queue: QueueName, result: bytes, published: bool
) -> None:
    async with store.expect(JobKey(queue, "a")) as ends:
        await store.put([spec(queue, "a")])
        (lease,) = await take(store, queue)
        await exchange(store, queue, done(lease, result))
        async with asyncio.timeout(10):
            record = await anext(ends)
    assert (record is not None) is published
    if record is not None:
        assert record.result == result


async def test_enqueueing_and_waiting_for_the_result_takes_one_call(
    store: ValkeyStore, queue: QueueName, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store.expect(JobKey(queue, "before")):  # subscribes, and makes the queue known
        await store.put([spec(queue, "before")])
    called: list[bytes] = []
    fcall = store.servers.fcall

    def counted(name: bytes, *args: Any, **options: Any) -> Any:
        called.append(name)
        return fcall(name, *args, **options)

    monkeypatch.setattr(store.servers, "fcall", counted)
    monkeypatch.setattr(store.servers, "command", None)
    async with store.expect(JobKey(queue, "a")) as ends:
        await store.put([spec(queue, "a")])
        producer = called.copy()
        for lease in await take(store, queue, 2):
            await exchange(store, queue, done(lease, b"7"))
        async with asyncio.timeout(10):
            record = await anext(ends)
    assert (record is not None and record.result, producer) == (b"7", [function("put")])


@pytest.mark.parametrize("junk", [b"", b"hello", b"\xff\xfe", b"ended\nno prefix\na", b"\x01\x02"])
async def test_a_message_of_another_program_costs_no_signal(
    store: ValkeyStore, queue: QueueName, server: Server, junk: bytes
) -> None:
    async with store.expect(JobKey(queue, "a")) as ends:
        await store.put([spec(queue, "a")])
        channels = server.tell("PUBSUB", "CHANNELS", "jq:handle:*").split(b"\r\n")[2::2]
        before = subscribed(server)
        for channel in channels:
            await store.servers.command("", "PUBLISH", channel, junk)
        (lease,) = await take(store, queue)
        await exchange(store, queue, done(lease))
        async with asyncio.timeout(10):
            assert await anext(ends) is not None
    assert subscribed(server) == before


def subscribed(server: Server) -> list[bytes]:
    """The ids of connections that subscribe."""
    return re.findall(rb"id=(\d+) ", server.tell("CLIENT", "LIST", "TYPE", "pubsub"))
