"""`max_waiting`: QueueFull has the accepted jobs and says what to do."""

from __future__ import annotations

import asyncio
import copy

import pytest

from jobq import (
    ConfigError,
    Every,
    Queue,
    QueueFull,
    RetryAfter,
    State,
    SyncJob,
    Unique,
    Worker,
    current_job,
    sync,
    testing,
)
from jobq.core.rules.limits import share
from jobq.testing import FakeClock, Sandbox


async def test_a_full_queue_refuses_jobs_and_says_what_to_do(url: str) -> None:
    async with Queue("q", url, max_waiting=1) as queue:
        task = queue.task_by_name("work")
        await task.enqueue()
        with pytest.raises(QueueFull) as error:
            await task.enqueue()
        assert str(error.value) == (
            "queue 'q' is full: max_waiting=1 limits how many jobs may be waiting, delayed or "
            "blocked. Enqueue again when workers have caught up, or raise the limit with "
            "queue.set_limits(max_waiting=…)"
        )
        assert (
            error.value.queue,
            error.value.max_waiting,
            error.value.accepted,
            error.value.refused,
        ) == ("q", 1, [], 1)
        assert str(copy.copy(error.value)) == str(error.value)


async def test_each_job_of_a_bulk_is_accepted_or_refused_on_its_own(url: str) -> None:
    async with Queue("q", url, max_waiting=2_500) as queue:
        task = queue.task_by_name("work")
        with pytest.raises(
            QueueFull, match=r"Accepted: 2,500 jobs \(see `error.accepted`\), refused: 701\."
        ) as error:
            await task.enqueue_many((n,) for n in range(3_201))
        accepted = error.value.accepted
        assert (len(accepted), error.value.refused) == (2_500, 701)
        assert [(await job.info()).args for job in accepted[::500]] == [
            (0,),
            (500,),
            (1_000,),
            (1_500,),
            (2_000,),
        ]
        assert (await queue.counts())[State.WAITING] == 2_500


async def test_a_bulk_continues_after_a_refused_job(url: str) -> None:
    async with Queue("q", url, max_waiting=2) as queue:
        task = queue.task_by_name("work")
        first = await task.options(id="a").enqueue()
        with pytest.raises(QueueFull) as error:
            await queue.enqueue_many([task.options(id=id).bind() for id in ("b", "c", "a", "d")])
        assert [(job.id, job.duplicate) for job in error.value.accepted] == [
            ("b", False),
            ("a", True),
        ]
        assert error.value.refused == 2
        assert (await first.state()) is State.WAITING


async def test_callers_in_one_batch_are_refused_one_by_one(url: str) -> None:
    async with Queue("small", url, max_waiting=3) as small, Queue("large", url) as large:
        tasks = [small.task_by_name("work"), large.task_by_name("work")]
        results = await asyncio.gather(
            *(tasks[n % 2].enqueue(n) for n in range(20)), return_exceptions=True
        )
        assert [type(result) for result in results[::2]].count(QueueFull) == 7
        assert not any(isinstance(result, BaseException) for result in results[1::2])
        assert (await small.counts())[State.WAITING] == 3
        assert (await large.counts())[State.WAITING] == 10


async def test_a_call_is_refused_before_it_waits(url: str) -> None:
    async with Queue("q", url, max_waiting=1) as queue:
        await queue.task_by_name("work").enqueue()
        with pytest.raises(QueueFull):
            await queue.task_by_name("work", call_timeout=60).call()


async def test_a_flow_is_refused_whole(url: str) -> None:
    async with Queue("q", url, max_waiting=3) as queue:
        task = queue.task_by_name("work")
        flow = queue.flow()
        first = flow.add(task)
        for _ in range(3):
            flow.add(task, first.ref)
        with pytest.raises(QueueFull) as error:
            await flow.submit()
        assert (error.value.accepted, error.value.refused) == ([], 4)
        assert sum((await queue.counts()).values()) == 0
        await queue.set_limits(max_waiting=4)
        await flow.submit()
        assert (await queue.counts())[State.BLOCKED] == 3


async def test_a_large_flow_that_is_refused_in_a_later_call_frees_its_room(url: str) -> None:
    async with Queue("q", url, max_waiting=2_100) as queue:
        task = queue.task_by_name("work")
        flow = queue.flow()
        for n in range(2_101):
            flow.add(task, n)
        with pytest.raises(QueueFull):
            await flow.submit()
        assert len(await task.enqueue_many([(n,) for n in range(2_100)])) == 2_100


async def test_a_broadcast_names_what_the_queues_before_have_accepted(url: str) -> None:
    async with Queue("a", url) as a, Queue("b", url, max_waiting=1) as b:
        task = a.task_by_name("work")
        await b.task_by_name("work").enqueue()
        with pytest.raises(QueueFull, match="'b' is full") as error:
            await task.broadcast([a, b])
        assert [job.queue for job in error.value.accepted] == ["a"]


async def test_a_unique_duplicate_is_not_refused(url: str) -> None:
    async with Queue("q", url, max_waiting=1) as queue:

        @queue.task(unique=Unique())
        async def work(n: int) -> None: ...

        job = await work.enqueue(1)
        assert (await work.enqueue(1)).id == job.id
        with pytest.raises(QueueFull):
            await work.enqueue(2)


async def test_a_handler_whose_child_is_refused_tries_again(jobs: Sandbox, clocked: Queue) -> None:
    @clocked.task
    async def child() -> int:
        return 7

    @clocked.task(retry=5)
    async def parent() -> int:
        try:
            added = await current_job().add(child)
        except QueueFull:
            raise RetryAfter(60) from None
        results = await current_job().wait_for_children()
        return int(results[added.id])

    await clocked.set_limits(max_waiting=1)
    job = await parent.enqueue()
    store = await clocked._context.store()
    await store.pause(clocked.qname)
    await clocked.set_limits(max_waiting=2)
    await child.enqueue()
    await clocked.set_limits(max_waiting=1)
    await store.resume(clocked.qname)
    await jobs.drain(delayed=True)
    info = await job.info()
    assert (info.state, info.result, info.failures) == (State.COMPLETED, 7, 1)


async def test_a_schedule_made_to_run_now_is_refused_like_a_call(url: str) -> None:
    async with Queue("q", url, max_waiting=1) as queue:
        task = queue.task_by_name("work")
        await queue.schedule("hourly", Every(3600), task)
        await task.enqueue()
        with pytest.raises(QueueFull):
            await queue.run_schedule("hourly")


async def test_max_waiting_is_declared_and_changed_like_other_limits(url: str) -> None:
    async with Queue("q", url, max_waiting=5, limit=2) as queue:
        assert (await queue.limits()).max_waiting == 5
        await queue.set_limits(max_waiting=7)
        limits = await queue.limits()
        assert (limits.max_waiting, limits.limit, limits.changed) == (7, 2, True)
        await queue.set_limits(max_waiting=None)
        assert (await queue.limits()).max_waiting is None
        await queue.reset_limits()
        assert (await queue.limits()).max_waiting == 5
        with pytest.raises(ConfigError, match="max_waiting=0 is out of range"):
            await queue.set_limits(max_waiting=0)
        with pytest.raises(ConfigError, match="max_waiting is a limit of the whole queue"):
            await queue.set_limits(max_waiting=5, key="k")
        with pytest.raises(ConfigError, match="raise limits_version"):
            await Queue("q", url, max_waiting=6, limit=2).limits()
    with pytest.raises(ConfigError, match="max_waiting='many'"):
        Queue("q", url, max_waiting="many")  # type: ignore[arg-type]


async def test_workers_make_room(url: str) -> None:
    async with Queue("q", url, max_waiting=3) as queue:
        ran = 0

        @queue.task
        async def work() -> None:
            nonlocal ran
            ran += 1

        async with Worker(queue):
            left = 30
            while left:
                try:
                    job = await work.enqueue()
                except QueueFull:
                    await job.wait(timeout=10)
                else:
                    left -= 1
            await job.wait(timeout=10)
            async for info in queue.find(state="waiting"):
                await queue.job(info.id).wait(timeout=10)
        assert ran == 30


def test_the_blocking_api_raises_the_same_errors() -> None:
    with testing.use(Queue("q", "memory://nowhere"), clock=FakeClock()) as jobs:
        queue = jobs.queues[0]
        queue.sync.set_limits(max_waiting=1_500)
        task = queue.task_by_name("work")
        with pytest.raises(QueueFull) as error:
            task.sync.enqueue_many((n,) for n in range(2_700))
        assert (len(error.value.accepted), error.value.refused) == (1_500, 1_200)
        assert isinstance(error.value.accepted[0].sync, SyncJob)
        assert error.value.accepted[-1].sync.info().args == (1_499,)
        with pytest.raises(QueueFull):
            task.sync.enqueue()
        with pytest.raises(QueueFull):
            sync.chain(task, task)
        assert queue.sync.limits().max_waiting == 1_500


@pytest.mark.parametrize(
    ("whole", "partitions", "each"), [(10, 1, 10), (10, 4, 3), (8, 4, 2), (1, 16, 1), (17, 16, 2)]
)
def test_partitions_share_the_number_evenly(whole: int, partitions: int, each: int) -> None:
    assert share(whole, partitions) == each
    assert share(whole, partitions) * partitions >= whole
