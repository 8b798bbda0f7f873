"""A flow is run again from its failed members, and the finished ones are kept."""

from __future__ import annotations

import pytest

from jobq import JobNotFound, Queue, Reject, State, Worker, current_job


class Shop:
    """Tasks that count their runs, and fail for what is in `broken`."""

    def __init__(self, queue: Queue) -> None:
        self.runs: list[str] = []
        self.broken: set[str] = set()

        @queue.task
        async def part(name: str, *before: str) -> str:
            self.runs.append(name)
            if name in self.broken:
                raise Reject(f"{name} is broken")
            return "+".join((*before, name))

        @queue.task
        async def parent(names: list[str]) -> str:
            job = current_job()
            self.runs.append("parent")
            for name in names:
                await job.add(part, name)
            return ",".join((await job.wait_for_children()).values())

        self.part, self.parent = part, parent


async def test_finished_members_are_kept_and_the_rest_runs_again(queue: Queue) -> None:
    shop = Shop(queue)
    shop.broken = {"b", "x"}
    async with queue.flow(id="f") as flow:
        a, b = flow.add(shop.part, "a"), flow.add(shop.part, "b")
        c = flow.add(shop.part, "c", a.ref, b.ref)
        d = flow.add(shop.part, "d", c.ref)
        x = flow.add(shop.part, "x")
        flow.add(shop.part, "y", x.ref, a.ref)
    async with Worker(queue):
        for job in (a, b, x):
            await job.wait(timeout=10)
        assert (await d.state(), await c.state()) == (State.FAILED, State.FAILED)
        shop.runs.clear()
        shop.broken = set()
        assert await queue.rerun_flow("f") == 5
        assert await queue.job(d.id).result(timeout=10) == "a+b+c+d"
        assert await queue.job("f.5").result(timeout=10) == "x+a+y"
    assert sorted(shop.runs) == ["b", "c", "d", "x", "y"]
    assert (await queue.counts())[State.COMPLETED] == 6
    assert await queue.rerun_flow("f") == 0


async def test_with_the_id_of_a_job_only_what_it_waits_for_runs_again(queue: Queue) -> None:
    shop = Shop(queue)
    shop.broken = {"a", "x"}
    async with queue.flow(id="f") as flow:
        top = flow.add(shop.part, "top", flow.add(shop.part, "a").ref)
        other = flow.add(shop.part, "x")
    async with Worker(queue):
        for job in (top, other):
            await job.wait(timeout=10)
        shop.broken = set()
        assert await queue.rerun_flow(top.id) == 2
        assert await queue.job(top.id).result(timeout=10) == "a+top"
    assert await other.state() is State.FAILED


async def test_a_handler_finds_the_children_that_it_had_added(queue: Queue) -> None:
    shop = Shop(queue)
    shop.broken = {"two"}
    job = await shop.parent.enqueue(["one", "two", "three"])
    async with Worker(queue):
        await job.wait(timeout=10)
        async for info in queue.find(name="part"):
            await queue.job(info.id).wait(timeout=10)
        shop.runs.clear()
        shop.broken = set()
        assert await queue.rerun_flow(job.id) == 2
        assert await queue.job(job.id).result(timeout=10) == "one,two,three"
    assert shop.runs == ["two", "parent"]
    assert (await queue.counts())[State.COMPLETED] == 4


async def test_a_flow_that_fails_again_can_be_run_again(queue: Queue) -> None:
    shop = Shop(queue)
    shop.broken = {"a"}
    async with queue.flow() as flow:
        top = flow.add(shop.part, "top", flow.add(shop.part, "a").ref)
    async with Worker(queue):
        await top.wait(timeout=10)
        assert await queue.rerun_flow(top.id) == 2
        await queue.job(top.id).wait(timeout=10)
        assert await queue.job(top.id).state() is State.FAILED
        shop.broken = set()
        assert await queue.rerun_flow(top.id) == 2
        assert await queue.job(top.id).result(timeout=10) == "a+top"


@pytest.mark.rest("large flows")
async def test_a_large_flow_is_run_again_in_bounded_calls(queue: Queue) -> None:
    shop = Shop(queue)
    shop.broken = {"odd"}
    async with queue.flow() as flow:
        parts = [flow.add(shop.part, "odd" if n % 2 else "even") for n in range(2400)]
        top = flow.add(shop.part, "top", *(p.ref for p in parts[:3]))
        wide = flow.add(shop.part.options(after=parts), "wide")
    async with Worker(queue, concurrency=50):
        for job in (*parts, top, wide):
            await job.wait(timeout=60)
        shop.broken = set()
        assert await queue.rerun_flow(flow.id) == 1202
        assert await queue.job(wide.id).result(timeout=60) == "wide"
        assert await queue.job(top.id).result(timeout=60) == "even+odd+even+top"
    assert shop.runs.count("even") == 1200
    assert (await queue.counts())[State.COMPLETED] == 2402


async def test_an_unknown_flow_is_not_found(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match="no job and no flow 'nothing'"):
        await queue.rerun_flow("nothing")


async def test_the_actor_of_a_rerun_is_on_record(queue: Queue) -> None:
    shop = Shop(queue)
    shop.broken = {"a"}
    async with queue.flow(id="f") as flow:
        job = flow.add(shop.part, "a")
    async with Worker(queue):
        await job.wait(timeout=10)
    assert await queue.as_actor("ann").rerun_flow("f") == 1
    events = [e async for e in queue.events(after="0", follow=False) if e.kind == "rerun"]
    assert [e.actor for e in events] == ["ann"]
