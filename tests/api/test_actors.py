"""`as_actor` records who did something in the events. `follow=False` reads them up to now."""

from __future__ import annotations

import asyncio

import pytest

from jobq import Every, InvalidJob, Queue
from jobq.api.info import Event
from jobq.core.records.jobs import Claim, Fail, Failure


async def recorded(queue: Queue) -> list[Event]:
    """The log up to now."""
    return [event async for event in queue.events(after="0", follow=False)]


async def kinds_and_actors(queue: Queue) -> list[tuple[str, str | None]]:
    return [(str(event.kind), event.actor) for event in await recorded(queue)]


async def test_operations_on_a_queue_are_recorded_under_the_name(queue: Queue) -> None:
    ann = queue.as_actor("ann")
    await ann.pause()
    await ann.resume()
    await queue.pause()
    await ann.set_limits(limit=3)
    await ann.reset_limits()
    await ann.schedule("nightly", Every(60), queue.task_by_name("work"))
    await ann.pause_schedule("nightly")
    await ann.resume_schedule("nightly")
    await ann.unschedule("nightly")
    await queue.task_by_name("work").enqueue()
    await ann.purge("waiting")
    assert await ann.purge("cancelled") == 1
    await ann.obliterate()
    assert await kinds_and_actors(queue) == [
        ("paused", "ann"),
        ("resumed", "ann"),
        ("paused", None),
        ("limits", "ann"),
        ("limits", "ann"),
        ("schedule", "ann"),
        ("schedule", "ann"),
        ("schedule", "ann"),
        ("schedule", "ann"),
        ("accepted", None),
        ("cancelled", "ann"),
        ("cleared", "ann"),
        ("purged", "ann"),
        ("obliterated", "ann"),
    ]


async def test_commands_on_jobs_are_recorded_under_the_name(queue: Queue) -> None:
    job = await queue.task_by_name("work").options(delay=60).enqueue()
    await job.as_actor("ann").promote()
    await queue.as_actor("bob").job(job.id).reprioritise(3)
    await job.as_actor("cat").cancel()
    await job.cancel()
    bob = job.as_actor("bob")
    assert await bob.rerun()
    assert (await bob.info()).life == 1
    await job.as_actor("dan").remove()
    assert (await kinds_and_actors(queue))[1:] == [
        ("promoted", "ann"),
        ("changed", "bob"),
        ("cancelled", "cat"),
        ("rerun", "bob"),
        ("cancelled", "dan"),
    ]


async def test_an_update_may_have_an_argument_called_actor(queue: Queue) -> None:
    job = await queue.task_by_name("cast").options(delay=60).enqueue(actor="Brando")
    assert await job.as_actor("ann").update(actor="Pacino")
    assert (await job.info()).kwargs == {"actor": "Pacino"}
    assert (await kinds_and_actors(queue))[1:] == [("changed", "ann")]


async def test_reruns_and_removals_of_failed_jobs_are_recorded_under_the_name(queue: Queue) -> None:
    job, store = await queue.task_by_name("work").enqueue(), await queue._context.store()
    why = Failure(reason="error", type="ValueError", message="boom", attempt=1, at_ms=0)
    for call in ("1", "2"):
        claim = Claim(queues=(queue.qname,), limit=1, lease_ms=60_000)
        (lease,) = (await store.settle([], worker="w", call=f"claim {call}", then=claim)).leases
        await store.settle(
            [Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=why)],
            worker="w",
            call=call,
        )
        if call == "1":
            assert await queue.as_actor("ann").rerun(job.id) == 1
    assert await queue.as_actor("bob").remove(job.id) == 1
    operators = [
        (kind, actor) for kind, actor in await kinds_and_actors(queue) if actor is not None
    ]
    assert operators == [("rerun", "ann"), ("purged", "bob")]


async def test_a_view_shares_the_queues_store_also_after_it_moved(
    queue: Queue, tmp_path: object
) -> None:
    ann = queue.as_actor("ann")
    assert (ann.name, ann.url, ann.actor, queue.actor) == (queue.name, queue.url, "ann", None)
    async with queue:
        assert await ann._context.store() is await queue._context.store()
    await queue.aclose()
    queue._context.connection.move(f"sqlite:///{tmp_path}/elsewhere.db")
    assert ann.url == queue.url
    await ann.pause()
    assert await kinds_and_actors(queue) == [("paused", "ann")]
    await queue._context.connection.move_back()
    assert ann.url == queue.url


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", 7, None])
async def test_an_invalid_actor_name_is_refused(queue: Queue, name: object) -> None:
    with pytest.raises(InvalidJob, match="actor="):
        queue.as_actor(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="actor="):
        queue.job("a").as_actor(name)  # type: ignore[arg-type]


async def test_a_log_that_is_not_followed_ends(queue: Queue) -> None:
    assert await recorded(queue) == []
    for _ in range(3):
        await queue.task_by_name("work").enqueue_many([()] * 700)
    events = await recorded(queue)
    assert [event.number for event in events] == list(range(1, 2101))
    rest = [event async for event in queue.events(after=events[1000].position, follow=False)]
    assert rest == events[1001:]
    assert [event async for event in queue.events(after=events[-1].position, follow=False)] == []


async def test_a_log_that_is_not_followed_ends_before_events_written_meanwhile(
    queue: Queue,
) -> None:
    await queue.task_by_name("work").enqueue_many([()] * 1500)
    seen = 0
    async with queue.events(after="0", follow=False) as events:
        async for _ in events:
            seen += 1
            if seen % 500 == 0:
                await queue.task_by_name("work").enqueue_many([()] * 1000)
    assert seen == 1500


async def test_reading_from_now_up_to_now_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidJob, match="follow=False"):
        queue.events(follow=False)


async def test_the_blocking_api_records_actors_too(queue: Queue) -> None:
    def work() -> list[tuple[str, str | None]]:
        job = queue.sync.task_by_name("work").enqueue()
        job.as_actor("ann").cancel()
        queue.sync.as_actor("bob").pause()
        queue.as_actor("cat").sync.resume()
        return [
            (str(event.kind), event.actor) for event in queue.sync.events(after="0", follow=False)
        ]

    assert await asyncio.to_thread(work) == [
        ("accepted", None),
        ("cancelled", "ann"),
        ("paused", "bob"),
        ("resumed", "cat"),
    ]
