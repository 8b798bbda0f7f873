"""Signals: new work wakes sleeping workers, and listeners hear of ends, notes, cancels and log
entries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobq.core.records.commands import Cancel, Promote, Rerun
from jobq.core.records.jobs import Note, Signal, Topic
from jobq_conformance.kit import (
    DAY,
    SECOND,
    Desk,
    complete,
    ref,
    release,
    retry,
    sleepers_are_asleep,
)
from jobq_conformance.roles import needs

pytestmark = needs("signals")

PATIENCE_MS = 10_000
GLANCE_MS = 400


async def nothing_found(q: Desk, worker: str, slots: int = 1) -> None:
    """The worker looks, finds nothing, and counts as asleep from here on."""
    assert await q.claim(slots, worker=worker) == []


async def sleep(
    q: Desk, worker: str = "w1", *, slots: int = 1, timeout_ms: int = PATIENCE_MS
) -> bool:
    return await q.store.sleep([q.queue], worker=worker, slots=slots, timeout_ms=timeout_ms)


async def heard(signals: AsyncIterator[Signal]) -> Signal:
    async with asyncio.timeout(PATIENCE_MS / 1000):
        return await anext(signals)


# ── sleep ─────────────────────────────────────────────────────────────────────────────────────────


async def test_without_work_a_sleep_ends_by_its_timeout(q: Desk) -> None:
    await nothing_found(q, "w1")
    assert not await sleep(q, timeout_ms=30)


async def test_work_put_between_the_last_look_and_the_sleep_is_not_missed(q: Desk) -> None:
    await nothing_found(q, "w1")
    await q.put("a")
    assert await sleep(q)
    assert await q.claim_ids() == ["a"]


async def test_work_wakes_a_sleeper(q: Desk) -> None:
    await nothing_found(q, "w1")
    sleeping = asyncio.create_task(sleep(q))
    await asyncio.sleep(0)
    await q.put("a")
    assert await sleeping


async def test_work_put_through_another_handle_wakes_a_sleeper(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await nothing_found(first, "w1")
    sleeping = asyncio.create_task(sleep(first))
    await asyncio.sleep(0)
    await second.put("a")
    assert await sleeping


async def test_work_in_any_of_its_queues_wakes_a_sleeper(q: Desk) -> None:
    beside = q.beside("other")
    await q.exchange(then=q.claiming(queues=(q.queue, beside.queue)))
    sleeping = asyncio.create_task(
        q.store.sleep([q.queue, beside.queue], worker="w1", slots=1, timeout_ms=PATIENCE_MS)
    )
    await asyncio.sleep(0)
    await beside.put("a")
    assert await sleeping


async def test_work_wakes_a_sleeper_whichever_order_it_names_its_queues_in(q: Desk) -> None:
    beside = q.beside("other")
    for n, queues in enumerate([(q.queue, beside.queue), (beside.queue, q.queue)]):
        await q.exchange(then=q.claiming(queues=queues))
        assert not await q.store.sleep(queues, worker="w1", slots=1, timeout_ms=20)
        await q.exchange(then=q.claiming(queues=queues[::-1]))
        sleeping = asyncio.create_task(
            q.store.sleep(queues[::-1], worker="w1", slots=1, timeout_ms=PATIENCE_MS)
        )
        await sleepers_are_asleep()
        await q.put(f"j{n}")
        assert await sleeping
        assert await q.claim_ids() == [f"j{n}"]


async def test_work_in_another_queue_wakes_no_worker(q: Desk) -> None:
    beside = q.beside("other")
    await nothing_found(q, "w1")
    sleeping = asyncio.create_task(sleep(q, timeout_ms=GLANCE_MS))
    await asyncio.sleep(0)
    await beside.put("a")
    assert not await sleeping


async def test_a_sleeper_learns_of_a_job_that_is_due_before_all_others(q: Desk) -> None:
    await q.put("later", delay_ms=DAY)
    await nothing_found(q, "w1")
    sleeping = asyncio.create_task(sleep(q))
    await asyncio.sleep(0)
    await q.put("sooner", delay_ms=SECOND)
    assert await sleeping
    settled = await q.exchange(then=q.claiming(1), worker="w1")
    assert (settled.leases, settled.next_due_ms) == ((), SECOND)


async def test_when_the_sleeper_that_knew_what_is_due_gets_work_another_learns_of_it(
    q: Desk,
) -> None:
    naps: dict[str, asyncio.Task[bool]] = {}
    for worker in ("w1", "w2"):
        await nothing_found(q, worker)
        naps[worker] = asyncio.create_task(sleep(q, worker))
    await asyncio.sleep(0)
    await q.put("due", delay_ms=SECOND)
    await asyncio.wait(naps.values(), return_when=asyncio.FIRST_COMPLETED)
    for woken in [worker for worker, nap in naps.items() if nap.done()]:
        await nothing_found(q, woken)
        naps[woken] = asyncio.create_task(sleep(q, woken))
    await asyncio.sleep(0)
    await q.put("now")
    assert await asyncio.gather(*naps.values()) == [True, True]


async def test_a_delayed_job_behind_others_wakes_no_worker(q: Desk) -> None:
    await q.put("sooner", delay_ms=SECOND)
    await nothing_found(q, "w1")
    sleeping = asyncio.create_task(sleep(q, timeout_ms=GLANCE_MS))
    await asyncio.sleep(0)
    await q.put("later", delay_ms=DAY)
    assert not await sleeping


async def woken_by(q: Desk, *jobs: str, slots: int) -> int:
    """How many of six sleeping workers wake until one of them has claimed these jobs."""
    claimed, woken = asyncio.Event(), list[str]()

    async def work(name: str) -> None:
        if await sleep(q, name, slots=slots):
            woken.append(name)
            if await q.claim(slots, worker=name):
                claimed.set()

    names = [f"w{n}" for n in range(6)]
    for name in names:
        await nothing_found(q, name, slots)
    async with asyncio.TaskGroup() as group:
        sleeping = [group.create_task(work(name)) for name in names]
        await sleepers_are_asleep()
        await q.put(*jobs)
        async with asyncio.timeout(PATIENCE_MS / 1000):
            await claimed.wait()
        for each in sleeping:
            each.cancel()
    return len(woken)


async def test_one_job_wakes_one_of_many_sleepers(q: Desk) -> None:
    assert await woken_by(q, "a", slots=1) <= 2


async def test_jobs_wake_sleepers_by_their_free_slots(q: Desk) -> None:
    assert await woken_by(q, *(f"j{n}" for n in range(10)), slots=10) <= 2


@pytest.mark.parametrize("how", ["paused", "retired"])
async def test_a_worker_that_looks_no_more_leaves_work_to_a_sleeper(q: Desk, how: str) -> None:
    beside = q.beside("other")
    await nothing_found(q, "a")
    sleeping = asyncio.create_task(sleep(q, "a"))
    await asyncio.sleep(0)
    for worker in ("b", "c"):  # they would be woken first
        await q.exchange(worker=worker, then=q.claiming(queues=(beside.queue, q.queue)))
        if how == "retired":
            await q.store.retire(worker)
        else:
            await q.exchange(worker=worker)
    await q.put("a")
    assert await sleeping


async def test_a_worker_busy_with_one_queue_is_not_woken_for_another_in_place_of_a_sleeper(
    q: Desk,
) -> None:
    beside = q.beside("other")
    both = (q.queue, beside.queue)
    await nothing_found(beside, "idle")
    await q.exchange(
        worker="busy", then=q.claiming(queues=both)
    )  # fell asleep last: the first to be woken
    await q.put("a")
    settled = await q.exchange(worker="busy", then=q.claiming(queues=both))
    assert [lease.id for lease in settled.leases] == ["a"]
    sleeping = asyncio.create_task(sleep(beside, "idle"))
    await beside.put("b")
    assert await sleeping


async def test_enough_jobs_wake_every_sleeper(q: Desk) -> None:
    names = [f"w{n}" for n in range(3)]
    for name in names:
        await nothing_found(q, name)
    sleeping = [asyncio.create_task(sleep(q, name, slots=1)) for name in names]
    await sleepers_are_asleep()
    await q.put(*(f"j{n}" for n in range(30)))
    assert all(await asyncio.gather(*sleeping))


async def test_every_way_back_to_waiting_wakes_a_sleeper(q: Desk) -> None:
    async def wakes(way: str) -> None:
        await nothing_found(q, "sleeper")
        sleeping = asyncio.create_task(sleep(q, "sleeper"))
        await asyncio.sleep(0)
        if way == "release":
            await q.settle(release(held))
        elif way == "retry":
            await q.settle(retry(held))
        elif way == "promote":
            await q.alter(Promote(job=q.key("later")))
        elif way == "rerun":
            await q.alter(Rerun(job=q.key("done")))
        elif way == "tick":
            q.clock.advance(2 * SECOND)
            await q.tick()
        assert await sleeping, f"{way} woke nobody"

    await q.run("done")
    await q.put("a")
    held = await q.take()
    await wakes("release")
    held = await q.take()
    await wakes("retry")
    held = await q.take()
    await q.put_one("later", delay_ms=DAY)
    await wakes("promote")
    await q.settle(complete(await q.take()))
    await wakes("rerun")
    await q.settle(complete(await q.take()))
    await q.put_one("soon", delay_ms=SECOND)
    await wakes("tick")


async def test_resuming_a_queue_wakes_a_sleeper(q: Desk) -> None:
    await q.put("a")
    await q.store.pause(q.queue)
    await nothing_found(q, "w1")
    sleeping = asyncio.create_task(sleep(q))
    await asyncio.sleep(0)
    await q.store.resume(q.queue)
    assert await sleeping


# ── listen ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_listener_hears_of_the_end_of_a_job(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a", "b")
    a, b = await second.claim(2)
    async with first.store.listen([Topic("ended", first.queue, "b")]) as signals:
        await second.settle(complete(a), complete(b))
        assert await heard(signals) == Signal("ended", first.queue, "b")


async def test_a_listener_hears_of_every_kind_of_end(q: Desk) -> None:
    await q.put("a", "b", "c")
    await q.put_one("d", ttl_ms=SECOND)
    a, b = await q.claim(2, lease_ms=DAY)
    async with q.store.listen([Topic("ended", q.queue, id) for id in "abcd"]) as signals:
        await q.settle(complete(a))
        assert (await heard(signals)).job == "a"
        await q.alter(Cancel(job=q.key("b")))
        await q.settle(retry(b))
        assert (await heard(signals)).job == "b"
        await q.alter(Cancel(job=q.key("c")))
        assert (await heard(signals)).job == "c"
        q.clock.advance(2 * SECOND)
        await q.tick()
        assert (await heard(signals)).job == "d"


async def test_a_retry_is_not_an_end(q: Desk) -> None:
    await q.put("a")
    async with q.store.listen([Topic("ended", q.queue, "a")]) as signals:
        await q.settle(retry(await q.take()))
        await q.settle(complete(await q.take(), b"1"))
        assert (await heard(signals)).job == "a"
        assert (await q.get("a")).state.ended


async def test_a_worker_hears_that_its_job_is_asked_to_stop(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a")
    await first.take("bee")
    async with first.store.listen([Topic("cancel", None, "bee")]) as signals:
        await second.alter(Cancel(job=second.key("a")))
        assert await heard(signals) == Signal("cancel", first.queue, "a")


async def test_a_reader_hears_that_events_were_written(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    written = ("log", first.queue)
    async with first.store.listen([Topic("log", first.queue, None)]) as signals:
        await second.put("a")
        assert (await heard(signals))[:2] == written
        lease = await second.take()
        assert (await heard(signals))[:2] == written
        await second.settle(complete(lease))
        assert (await heard(signals))[:2] == written


@needs("notes")
async def test_a_listener_hears_that_a_run_stores_notes(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a", "b", "c")
    topic = Topic("noted", first.queue, "b")
    async with first.store.listen([topic]) as signals:
        a, b, c = await second.claim(3)
        for lease in (a, b, c):
            await second.store.note([Note(lease=ref(lease), progress=b"1")])
        assert await heard(signals) == Signal("noted", first.queue, "b")
        await second.store.note([Note(lease=ref(b), lines=("one", "two"))])
        assert await heard(signals) == Signal("noted", first.queue, "b")
        await second.settle(complete(a), retry(b), complete(c))
        await second.store.note([Note(lease=ref(b), progress=b"too late")])
        again = await second.take()
        await second.store.note([Note(lease=ref(again), progress=b"2")])
        assert await heard(signals) == Signal("noted", first.queue, "b")
        assert (await first.get("b")).progress == b"2"


async def test_two_listeners_of_one_job_both_hear(q: Desk) -> None:
    await q.put("a")
    topic = Topic("ended", q.queue, "a")
    async with q.store.listen([topic]) as one, q.store.listen([topic]) as other:
        await q.settle(complete(await q.take()))
        assert await heard(one) == await heard(other) == Signal("ended", q.queue, "a")


async def test_listening_ends_with_its_context(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    async with q.store.listen([Topic("ended", q.queue, "a")]):
        pass
    async with q.store.listen([Topic("ended", q.queue, "b")]) as signals:
        await q.settle(complete(a), complete(b))
        assert (await heard(signals)).job == "b"


@needs("events")
async def test_a_listener_that_leaves_does_not_deafen_another_of_its_handle(q: Desk) -> None:
    topics = [Topic("ended", q.queue, "a"), Topic("log", q.queue, None)]
    await q.put("a")
    async with q.store.listen(topics) as signals:
        async with q.store.listen(topics):
            pass
        await q.settle(complete(await q.take()))
        found = {(await heard(signals)).kind, (await heard(signals)).kind}
        while "ended" not in found:
            found.add((await heard(signals)).kind)
        assert found == {"ended", "log"}
