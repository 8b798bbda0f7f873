"""find and count: listing jobs, and counters that always agree with the records."""

from __future__ import annotations

from msgspec.structs import replace

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Filter, QueueName
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq.stores.base import Store
from jobq_conformance.kit import (
    DAY,
    SECOND,
    Desk,
    complete,
    fail,
    read_all,
    release,
    retry,
    tally,
)
from jobq_conformance.roles import needs

pytestmark = needs("reads", "delays")


async def one_of_each(q: Desk) -> None:
    """A job in every state but blocked."""
    await q.run("completed")
    await q.put("failed", "cancelled", "active", "waiting")
    await q.alter(Cancel(job=q.key("cancelled")))
    await q.settle(fail(await q.take()))
    assert (await q.take()).id == "active"
    await q.put_one("delayed", delay_ms=DAY)


async def test_every_state_can_be_listed(q: Desk) -> None:
    await one_of_each(q)
    for state in ("completed", "failed", "cancelled", "active", "waiting", "delayed"):
        records = await read_all(q.store, q.queue, State(state))
        assert [(r.id, r.state) for r in records] == [(state, State(state))]
    assert await read_all(q.store, q.queue, State.BLOCKED) == []


async def test_without_a_state_all_jobs_are_listed_once(q: Desk) -> None:
    await one_of_each(q)
    records = await read_all(q.store, q.queue)
    assert sorted(r.id for r in records) == [
        "active",
        "cancelled",
        "completed",
        "delayed",
        "failed",
        "waiting",
    ]


async def test_a_listing_shows_what_get_shows_but_for_errors(q: Desk) -> None:
    await one_of_each(q)
    records = await read_all(q.store, q.queue)
    got = await q.store.get([q.key(r.id) for r in records])
    assert [r and replace(r, errors=()) for r in got] == records


async def test_newest_come_first_within_a_state(q: Desk) -> None:
    for n in range(5):
        await q.run(f"done{n}")
        q.clock.advance(SECOND)
    for n in range(5):
        await q.put(f"job{n}")
        q.clock.advance(SECOND)
    assert [r.id for r in await read_all(q.store, q.queue, State.COMPLETED)] == [
        f"done{n}" for n in (4, 3, 2, 1, 0)
    ]
    assert [r.id for r in await read_all(q.store, q.queue, State.WAITING)] == [
        f"job{n}" for n in (4, 3, 2, 1, 0)
    ]


async def test_waiting_jobs_of_a_key_are_listed_from_the_back(q: Desk) -> None:
    for n in range(3):
        for key in "ab":
            await q.put_one(f"{key}{n}", key=key)
    for limit in (1, 2, 100):
        ids = [r.id for r in await read_all(q.store, q.queue, State.WAITING, limit=limit)]
        assert sorted(ids) == ["a0", "a1", "a2", "b0", "b1", "b2"]
        for key in "ab":
            assert [id for id in ids if id[0] == key] == [f"{key}{n}" for n in (2, 1, 0)]


async def test_pages_follow_each_other_without_gap_or_repeat(q: Desk) -> None:
    ids = [f"j{n:03}" for n in range(95)]
    await q.put(*ids)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await q.store.find(
            Filter(queue=q.queue, state=State.WAITING), cursor=cursor, limit=10
        )
        assert len(page.records) <= 10
        seen += [r.id for r in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids[::-1]


async def test_paging_over_all_states_has_no_gap_or_repeat(q: Desk) -> None:
    await one_of_each(q)
    await q.put(*(f"j{n}" for n in range(20)))
    records = await read_all(q.store, q.queue, limit=4)
    ids = [r.id for r in records]
    assert len(ids) == len(set(ids)) == 26


async def test_a_page_holds_no_more_than_its_limit(q: Desk) -> None:
    await q.put("a", "b", "c")
    page = await q.store.find(Filter(queue=q.queue), limit=2)
    assert len(page.records) <= 2
    assert page.cursor is not None


async def test_jobs_that_stay_are_listed_though_others_come_and_go(q: Desk) -> None:
    ids = [f"j{n:02}" for n in range(30)]
    await q.put(*ids)
    first = await q.store.find(Filter(queue=q.queue, state=State.WAITING), limit=10)
    gone = {first.records[-1].id, ids[0]}
    await q.store.alter([Cancel(job=q.key(id)) for id in sorted(gone)])
    await q.put("new1", "new2")
    seen = [r.id for r in first.records]
    cursor = first.cursor
    while cursor is not None:
        page = await q.store.find(
            Filter(queue=q.queue, state=State.WAITING), cursor=cursor, limit=10
        )
        seen += [r.id for r in page.records]
        cursor = page.cursor
    assert len(seen) == len(set(seen))
    assert set(ids) - gone <= set(seen)


async def test_a_listing_can_begin_with_the_oldest_jobs(q: Desk) -> None:
    for n in range(7):
        await q.run(f"done{n}")
        q.clock.advance(SECOND)
    for n in range(3):
        await q.put_one(f"later{n}", delay_ms=DAY + n)
    for limit in (1, 3, 100):
        found = {
            state: [
                r.id
                for r in await read_all(q.store, q.queue, state, limit=limit, oldest_first=True)
            ]
            for state in (State.COMPLETED, State.DELAYED)
        }
        assert found[State.COMPLETED] == [f"done{n}" for n in range(7)]
        assert found[State.DELAYED] == ["later0", "later1", "later2"]


async def test_oldest_first_lists_waiting_jobs_in_the_order_of_their_claims(q: Desk) -> None:
    await q.put("front", "a", "b")
    await q.put("x", "y", "z", priority=3)
    await q.put("urgent", priority=7)
    await q.put_one("first of its priority", priority=3, lifo=True)
    for limit in (1, 2, 3, 100):
        listed = await read_all(q.store, q.queue, State.WAITING, limit=limit, oldest_first=True)
        assert [r.id for r in listed] == [
            "urgent",
            "first of its priority",
            "x",
            "y",
            "z",
            "front",
            "a",
            "b",
        ]
    assert [lease.id for lease in await q.claim(8)] == [r.id for r in listed]


async def test_oldest_first_lists_waiting_jobs_of_a_key_from_the_front(q: Desk) -> None:
    for n in range(3):
        for key in "ab":
            await q.put_one(f"{key}{n}", key=key)
    for limit in (1, 2, 100):
        listed = await read_all(q.store, q.queue, State.WAITING, limit=limit, oldest_first=True)
        for key in "ab":
            assert [r.id for r in listed if r.key == key] == [f"{key}{n}" for n in range(3)]
        assert len(listed) == 6


async def test_oldest_first_misses_no_job_while_others_start(q: Desk) -> None:
    for priority in (0, 2):
        await q.put(*(f"p{priority}-{n:02}" for n in range(20)), priority=priority)
    filter = Filter(queue=q.queue, state=State.WAITING, oldest_first=True)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await q.store.find(filter, cursor=cursor, limit=5)
        seen += [r.id for r in page.records]
        cursor = page.cursor
        if cursor is None:
            break
        if len(seen) in (5, 25):  # in the middle of each priority
            await q.claim(3)
        await q.put(f"new{len(seen)}")
    assert len(seen) == len(set(seen))
    started = {r.id for r in await read_all(q.store, q.queue, State.ACTIVE)}
    assert {f"p{p}-{n:02}" for p in (0, 2) for n in range(20)} - started <= set(seen)


async def test_jobs_are_found_by_name(q: Desk) -> None:
    await q.put("a", "b", name="mail")
    await q.put("c", name="charge")
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await q.store.find(Filter(queue=q.queue, name="mail"), cursor=cursor)
        found += [r.id for r in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(found) == ["a", "b"]


async def test_jobs_are_found_by_name_and_state(q: Desk) -> None:
    await q.put("a", name="mail")
    await q.put("b", name="charge")
    await q.settle(*(complete(lease) for lease in await q.claim(2)))
    await q.put("c", name="mail")
    page = await q.store.find(Filter(queue=q.queue, name="mail", state=State.COMPLETED))
    assert [r.id for r in page.records] == ["a"]


async def test_an_unknown_queue_lists_and_counts_nothing(store: Store) -> None:
    nowhere = QueueName("nobody", "nothing")
    page = await store.find(Filter(queue=nowhere))
    assert (page.records, page.cursor) == ((), None)
    assert not any((await store.count(nowhere)).values())
    stats = await store.stats(nowhere)
    assert (stats.paused, stats.mode, stats.workers) == (False, None, 0)


# ── counts ────────────────────────────────────────────────────────────────────────────────────────


async def test_counts_have_every_state(q: Desk) -> None:
    await q.put("a")
    assert set(await q.store.count(q.queue)) == set(State)


async def test_counts_agree_with_states_after_every_step(q: Desk) -> None:
    async def agree() -> None:
        assert {s: n for s, n in (await q.store.count(q.queue)).items() if n} == tally(
            await read_all(q.store, q.queue)
        )

    await q.put("a", "b", "c", "d", "e", "f")
    await q.put("x", "y", delay_ms=SECOND)
    await agree()
    a, b, c, d, _ = await q.claim(5, lease_ms=SECOND)
    await agree()
    await q.settle(complete(a), retry(b, SECOND), fail(c), release(d))
    await agree()
    await q.alter(Cancel(job=q.key("x")))
    await agree()
    q.clock.advance(2 * SECOND)
    await q.tick()
    await agree()
    await q.put("x", "a")
    await agree()
    await q.settle(*(complete(lease) for lease in await q.claim(100)))
    await agree()


async def test_stats_are_the_queue_at_a_glance(q: Desk) -> None:
    await one_of_each(q)
    stats = await q.store.stats(q.queue)
    assert stats.queue == q.queue
    assert {s.value: n for s, n in stats.counts.items() if n} == await q.counts()
    assert (stats.next_due_ms, stats.mode) == (DAY, "plain")


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


async def test_queues_are_listed_per_tenant(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await q.store.declare(beside.queue, QueueConfig(dead_letters="graves"))
    records = {r.queue: r for r in await q.store.queues(q.queue.tenant)}
    assert set(records) == {q.queue, beside.queue}
    assert records[beside.queue].dead_letters == "graves"
    assert {q.queue, beside.queue} <= {r.queue for r in await q.store.queues()}
    assert await q.store.queues("nobody") == []
