"""`meta`: strings that users attach to a job and read in handlers and events."""

from __future__ import annotations

from typing import Any

import pytest

from jobq import ConfigError, Every, InvalidJob, Queue, current_job, group, testing


async def test_a_handler_and_a_reader_see_the_meta_of_a_call(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def work() -> dict[str, str]:
        return dict(current_job().meta)

    job = await work.options(meta={"trace": "t1"}).enqueue()
    bare = await work.enqueue()
    await jobs.drain()
    assert (await job.result(), (await job.info()).meta) == ({"trace": "t1"}, {"trace": "t1"})
    assert (await bare.result(), (await bare.info()).meta) == ({}, {})


async def test_the_meta_of_a_running_job_cannot_be_changed(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task(retry=0)
    async def work() -> str:
        meta: Any = current_job().meta
        with pytest.raises(TypeError):
            meta["trace"] = "other"
        return str(meta["trace"])

    job = await work.options(meta={"trace": "t1"}).enqueue()
    await jobs.drain()
    assert await job.result() == "t1"


async def test_bulk_flow_and_schedule_take_meta(jobs: testing.Sandbox, clocked: Queue) -> None:
    seen: list[tuple[str, str | None]] = []

    @clocked.task
    async def work(name: str) -> None:
        seen.append((name, current_job().meta.get("n")))

    await work.options(meta={"n": "bulk"}).enqueue_many([("a",), ("b",)])
    await clocked.enqueue_many([work.options(meta={"n": "bound"}).bind("c"), work.bind("d")])
    async with clocked.flow() as flow:
        flow.add(work.options(meta={"n": "flow"}), "e")
    await clocked.schedule("s", Every(60), work.options(meta={"n": "schedule"}), "f")
    await jobs.drain()
    jobs.clock.advance(60)
    await jobs.drain()
    assert dict(seen) == {
        "a": "bulk",
        "b": "bulk",
        "c": "bound",
        "d": None,
        "e": "flow",
        "f": "schedule",
    }


async def test_a_group_gives_its_meta_to_the_job_that_gathers(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def work(n: int) -> int:
        return n

    gathered = await group(work.options(meta={"trace": "t1"}), [(1,), (2,)])
    await jobs.drain()
    assert await gathered.result() == [1, 2]
    assert (await gathered.info()).meta == {"trace": "t1"}


async def test_children_inherit_the_meta_of_their_parent(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def child() -> dict[str, str]:
        return dict(current_job().meta)

    @clocked.task
    async def parent() -> list[Any]:
        me = current_job()
        await me.add(child)
        await me.add(child.options(meta={"b": "own", "c": "new"}))
        return list((await me.wait_for_children()).values())

    job = await parent.options(meta={"a": "1", "b": "1"}).enqueue()
    await jobs.drain()
    assert await job.result() == [{"a": "1", "b": "1"}, {"a": "1", "b": "own", "c": "new"}]


async def test_bad_meta_is_refused_before_anything_is_stored(queue: Queue) -> None:
    work = queue.task_by_name("work")
    with pytest.raises(InvalidJob, match=r"meta\['n'\]=7 is not a string"):
        work.options(meta={"n": 7})  # type: ignore[dict-item]
    with pytest.raises(InvalidJob, match="meta takes"):
        work.options(meta={"n": "x" * 5000})
    assert sum((await queue.counts()).values()) == 0


async def test_events_carry_the_meta_that_the_queue_allows(url: str) -> None:
    async with Queue("traced", url, event_meta=("trace",)) as queue:
        stream = queue.events(after="0")
        await queue.task_by_name("work").options(meta={"trace": "t1", "secret": "s"}).enqueue()
        event = await anext(aiter(stream))
        assert (event.kind, event.meta) == ("accepted", {"trace": "t1"})


def test_the_names_for_events_are_checked() -> None:
    with pytest.raises(ConfigError, match="event_meta='trace' is not a list of names"):
        Queue("q", event_meta="trace")
