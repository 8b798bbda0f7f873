"""Uniform jobs are put by a function of their own, with the same results as other jobs."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from jobq.core.records.commands import Remove
from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobKey, JobSpec, QueueName
from jobq.core.records.states import State
from jobq.stores.valkey import jobs
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import spec, take


def numbered(queue: QueueName, first: int, last: int) -> list[JobSpec]:
    return [spec(queue, f"j{n:04d}", payload=b"%d" % n * (n % 7)) for n in range(first, last)]


async def drained(store: ValkeyStore, queue: QueueName) -> list[tuple[str, bytes]]:
    """Id and payload of all waiting jobs, in the order they are claimed."""
    found: list[tuple[str, bytes]] = []
    while leases := await take(store, queue, 300):
        found += [(lease.id, lease.payload) for lease in leases]
    return found


async def test_jobs_of_several_commands_keep_their_order_and_payloads(
    store: ValkeyStore, queue: QueueName
) -> None:
    specs = numbered(queue, 0, 1203)
    assert jobs.uniform(specs) is not None
    results = await store.put(specs)
    assert [(r.id, r.life, r.state, r.duplicate) for r in results] == [
        (s.id, 0, State.WAITING, False) for s in specs
    ]
    assert await drained(store, queue) == [(s.id, s.payload) for s in specs]


async def test_ids_that_exist_are_duplicates_and_the_others_are_new(
    store: ValkeyStore, queue: QueueName
) -> None:
    first, both = numbered(queue, 0, 10), numbered(queue, 5, 15)
    await store.put(first)
    results = await store.put(both)
    assert [r.duplicate for r in results] == [True] * 5 + [False] * 5
    assert [r.found.payload for r in results[:5] if r.found] == [s.payload for s in first[5:]]
    assert await drained(store, queue) == [(s.id, s.payload) for s in (*first, *both[5:])]


async def test_one_id_twice_in_a_call_is_one_job(store: ValkeyStore, queue: QueueName) -> None:
    once, again = spec(queue, "same", payload=b"1"), spec(queue, "same", payload=b"2")
    results = await store.put([once, again])
    assert [r.duplicate for r in results] == [False, True]
    assert await drained(store, queue) == [("same", b"1")]


async def test_ids_with_multibyte_characters_are_kept_whole(
    store: ValkeyStore, queue: QueueName
) -> None:
    specs = [spec(queue, id, payload=b"7") for id in ("aé", "bc", "ñü")]
    await store.put(specs)
    assert await drained(store, queue) == [(s.id, b"7") for s in specs]


async def test_a_stale_entry_does_not_start_the_next_job_of_its_id(
    store: ValkeyStore, queue: QueueName
) -> None:
    specs = numbered(queue, 0, 3)
    await store.put(specs)
    await store.alter([Remove(job=JobKey(queue, specs[0].id))])
    await store.put(specs[:1])
    assert await drained(store, queue) == [(s.id, s.payload) for s in (*specs[1:], specs[0])]


async def test_events_of_uniform_jobs_equal_those_of_other_jobs(
    store: ValkeyStore, queue: QueueName
) -> None:
    uniform, other = spec(queue, "a1"), spec(queue, "a2", given_id=True)
    assert jobs.uniform([uniform]) is not None
    assert jobs.uniform([other]) is None
    await store.put([uniform])
    await store.put([other])
    one, two = (await store.read_events(queue, after="0")).events

    def comparable(event: EventRecord) -> EventRecord:
        at = event.at_ms
        assert (event.created_ms, event.due_ms) == (at, at)
        return msgspec.structs.replace(
            event, id="", number=0, position="", job="", at_ms=0, created_ms=0, due_ms=0
        )

    assert comparable(one) == comparable(two)
    assert (one.job, two.job) == ("a1", "a2")


async def test_a_name_too_long_for_the_short_head_is_kept_whole(
    store: ValkeyStore, queue: QueueName
) -> None:
    long = spec(queue, "l1", name="ü" * 128)
    assert jobs.uniform([long]) is None
    await store.put([long])
    (lease,) = await take(store, queue)
    assert lease.name == "ü" * 128


async def test_large_payloads_are_split_over_several_calls(
    store: ValkeyStore, queue: QueueName
) -> None:
    specs = [spec(queue, f"big{n}", payload=b"x" * 6_000_000) for n in range(7)]
    others = [replace(s, id=f"{s.id}p", priority=1) for s in specs]
    for batch in (specs, others):
        assert [r.id for r in await store.put(batch)] == [s.id for s in batch]
    calls = {
        event.job: event.position for event in (await store.read_events(queue, after="0")).events
    }
    assert len(calls) == 14
    for batch in (specs, others):
        assert len({calls[s.id] for s in batch}) == 4  # of at most 16 MB each
