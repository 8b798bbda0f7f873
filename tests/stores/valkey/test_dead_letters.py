"""Copies of failed jobs are messages: they may arrive twice and must find their partition."""

from __future__ import annotations

import msgspec
import pytest

from jobq.core.records.commands import Remove
from jobq.core.records.jobs import JobKey, QueueName
from jobq.core.records.queues import QueueConfig
from jobq.core.rules.ended import letter_id, second_letter_id
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from jobq_conformance.kit import read_all
from tests.stores.valkey.jobs import failed, spec, take


def letter(number: int, payload: str) -> bytes:
    """The message that brings a copy of job `a` of queue `source`."""
    return msgspec.msgpack.encode(
        {
            "type": "letter",
            "id": letter_id("source", "a", 0),
            "name": "task",
            "from": "source",
            "origin": "source/a",
            "payload": payload,
            "life": 0,
            "number": number,
        }
    )


async def copies(store: ValkeyStore, queue: QueueName) -> list[str]:
    return sorted(record.id for record in await read_all(store, queue))


async def test_a_copy_whose_message_arrives_twice_is_put_once(
    store: ValkeyStore, queue: QueueName
) -> None:
    prefix = keys.Space().prefix(queue)
    first, second = letter(3, "one"), letter(6, "two")
    for message in (first, first, second, first, second):
        await store.calls.fcall("deliver", prefix, store.calls.now(), message)
    assert await copies(store, queue) == ["source/a/0", "source/a/0/6"]


@pytest.mark.parametrize("mode", ["plain", "keyed"])
async def test_copies_of_a_reused_id_are_found_in_a_partitioned_queue(
    store: ValkeyStore, queue: QueueName, mode: str
) -> None:
    config = QueueConfig(partitions=16, mode=mode)  # type: ignore[arg-type]
    await store.declare(queue, config)
    source = QueueName(queue.tenant, f"{queue.queue}-source")
    await store.declare(source, QueueConfig(dead_letters=queue.queue))
    ids = [f"j{n}" for n in range(20)]
    for call in ("first", "second"):
        await store.put([spec(source, id) for id in ids])
        leases = await take(store, source, 20)
        await store.settle([failed(lease) for lease in leases], worker="w1", call=call)
        await store.alter([Remove(job=JobKey(source, id)) for id in ids])
    await store.tick()
    page = await store.read_events(source, after="0")
    last = {event.job: event.number for event in page.events if event.kind == "failed"}
    expected = [letter_id(source.queue, id, 0) for id in ids]
    expected += [second_letter_id(source.queue, id, 0, last[id]) for id in ids]
    assert await copies(store, queue) == sorted(expected)
    # A put looks for an id only in the partition where it belongs.
    key = source.queue if mode == "keyed" else None
    results = await store.put([spec(queue, id, key=key) for id in expected])
    assert all(result.duplicate for result in results)
