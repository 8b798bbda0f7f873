"""Keys: all keys of a queue are in one slot, whatever its name."""

from __future__ import annotations

import pytest

from jobq.core.records.jobs import QueueName
from jobq.core.values.checks import MAX_NAME_LENGTH
from jobq.stores.valkey import keys
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import spec, take
from tests.stores.valkey.servers import Server

NASTY = ["{", "}", "a}b{c", "{}", ":", "a:b", "%7b", "%", "a\nb", "ünï ☃", "q" * 200]


@pytest.mark.parametrize("name", NASTY)
def test_a_prefix_contains_the_names_of_its_queue(name: str) -> None:
    for queue in (QueueName(name, "q"), QueueName("t", name), QueueName(name, name)):
        assert keys.queue_of(keys.Space().prefix(queue)) == queue
        assert keys.queue_of(keys.Space().partition_prefix(queue, 3)) == queue


def test_different_queues_have_different_prefixes() -> None:
    queues = [QueueName(t, q) for t in NASTY for q in NASTY]
    assert len({keys.Space().prefix(queue) for queue in queues}) == len(queues)
    assert keys.Space().prefix(QueueName("a", "b:1")) != keys.Space().partition_prefix(
        QueueName("a", "b"), 1
    )


@pytest.mark.parametrize("name", NASTY)
async def test_the_server_computes_the_same_slot(name: str, server: Server) -> None:
    prefix = keys.Space().prefix(QueueName(name, name))
    for key in (prefix, prefix + "j:some}{id", keys.wake_key(prefix, "worker{1}")):
        assert (
            server.tell("CLUSTER", "KEYSLOT", key) == f":{keys.hash_slot_of(prefix)}\r\n".encode()
        )


def test_known_slots() -> None:
    assert [
        keys.hash_slot_of(key)
        for key in ("123456789", "foo", "{user1000}.following", "foo{}{bar}", "foo{{bar}}zap")
    ] == [
        12739,
        12182,
        keys.hash_slot_of("user1000"),
        keys.hash_slot_of("foo{}{bar}"),
        keys.hash_slot_of("{bar"),
    ]


@pytest.mark.parametrize(
    ("tenant", "name"),
    [
        ("%7b", "%7b"),
        ("%", "%"),
        ("ünï ☃", "ünï ☃"),
        ("q" * MAX_NAME_LENGTH, "q" * MAX_NAME_LENGTH),
        ("☃" * MAX_NAME_LENGTH, "☃" * MAX_NAME_LENGTH),
        ("t", ":"),
        ("t", "a:b"),
        ("%3a", "b:1"),
    ],
)
async def test_a_queue_may_have_any_name_that_is_allowed(
    store: ValkeyStore, tenant: str, name: str
) -> None:
    queue = QueueName(tenant, name)
    await store.put([spec(queue, "a")])
    assert [lease.queue for lease in await take(store, queue)] == [queue]
    assert [record.queue for record in await store.queues(tenant)] == [queue]


def test_jobs_of_one_key_share_a_partition() -> None:
    found = {keys.partition_of("acme", f"id{n}", 16) for n in range(100)}
    assert len(found) == 1
    assert len({keys.partition_of(None, f"id{n}", 16) for n in range(200)}) == 16
