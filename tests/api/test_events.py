"""Events replay from any position, then arrive live. A position inside a batch loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from jobq import Event, EventStream, InvalidJob, Queue, State, Worker


async def _take(stream: EventStream, count: int) -> list[Event]:
    async with asyncio.timeout(20):
        return [await anext(stream) for _ in range(count)]


async def test_events_show_everything_that_happens_to_a_job(queue: Queue) -> None:
    @queue.task
    async def ping() -> None: ...

    async with queue.events() as stream:
        async with Worker(queue):
            job = await ping.enqueue()
            await job.wait(timeout=10)
        events = await _take(stream, 3)
    assert [event.kind for event in events] == ["accepted", "started", "completed"]
    assert {event.job for event in events} == {job.id}
    assert [event.previous for event in events] == [None, State.WAITING, State.ACTIVE]
    assert events[-1].finished_at is not None
    assert (events[-1].tenant, events[-1].queue, events[-1].name) == ("default", "api", "ping")


async def test_all_that_is_kept_can_be_replayed(queue: Queue) -> None:
    jobs = await queue.task_by_name("nobody").enqueue_many([()] * 1200)
    events = await _take(queue.events(after="0"), 1200)
    assert [event.job for event in events] == [job.id for job in jobs]


async def test_a_waiting_reader_gets_new_events(queue: Queue) -> None:
    stream = queue.events(after="0")
    waiter = asyncio.create_task(_take(stream, 2))
    await asyncio.sleep(0)
    first = await queue.task_by_name("nobody").enqueue()
    second = await queue.task_by_name("nobody").enqueue()
    assert [event.job for event in await waiter] == [first.id, second.id]


async def test_without_a_position_a_stream_begins_now(queue: Queue) -> None:
    await queue.task_by_name("nobody").enqueue()
    async with queue.events() as stream:
        job = await queue.task_by_name("nobody").enqueue()
        assert (await anext(stream)).job == job.id


async def test_every_position_continues_right_behind_its_event(queue: Queue) -> None:
    await queue.task_by_name("nobody").enqueue_many([()] * 3)
    await queue.task_by_name("nobody").enqueue()
    await queue.task_by_name("nobody").enqueue_many([()] * 3)
    events = await _take(queue.events(after="0"), 7)
    for n, event in enumerate(events[:-1]):
        rest = await _take(queue.events(after=event.position), 6 - n)
        assert [e.id for e in rest] == [e.id for e in events[n + 1 :]]


async def test_a_cancelled_wait_loses_no_event(queue: Queue) -> None:
    async with queue.events() as stream:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
        job = await queue.task_by_name("nobody").enqueue()
        assert [event.job for event in await _take(stream, 1)] == [job.id]


@pytest.mark.parametrize("after", ["", "a~b", "a~b~c", 7])
async def test_an_invalid_position_is_refused(queue: Queue, after: str) -> None:
    with pytest.raises(InvalidJob, match="is not a position"):
        queue.events(after=after)
