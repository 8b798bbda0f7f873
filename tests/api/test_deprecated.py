"""Old names still work. Each use warns once per call site, and names the caller's line."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from jobq import Cron, Every, InvalidJob, Queue, Rate, State, Unique, Worker


@contextmanager
def deprecated(*said: str) -> Iterator[None]:
    """The block warns of each of these, from a line of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    found = [str(one.message) for one in caught]
    assert len(found) == len(said), found
    for words, message, one in zip(said, found, caught, strict=True):
        assert words in message
        assert "removed in jobq 0.3" in message
        assert one.category is DeprecationWarning
        assert one.filename == __file__


def old(thing: object) -> Any:
    """The same object, for calls that type checkers rightly refuse."""
    return thing


POLICIES: list[tuple[Callable[[], Any], Callable[[], Any], str]] = [
    (lambda: old(Rate)(limit=5, per=1), lambda: Rate(5, per=1), "Rate(limit=…)"),
    (lambda: old(Cron)("@daily", limit=3), lambda: Cron("@daily", times=3), "Cron(limit=…)"),
    (lambda: old(Every)(60, limit=3), lambda: Every(60, times=3), "Every(limit=…)"),
    (lambda: old(Unique)("n", ttl=5), lambda: Unique("n", period=5), "Unique(ttl=…)"),
]


@pytest.mark.parametrize(("make", "same", "said"), POLICIES)
def test_a_policy_takes_its_old_argument(
    make: Callable[[], Any], same: Callable[[], Any], said: str
) -> None:
    with deprecated(said):
        made = make()
    assert made == same()


def test_a_call_site_is_warned_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            old(Rate)(limit=5, per=1)
        old(Rate)(limit=5, per=1)
    lines = [one.lineno for one in caught]
    assert len(lines) == len(set(lines)) == 2


def test_the_old_and_the_new_argument_together_are_refused() -> None:
    with pytest.raises(TypeError, match="both count= and its old name limit="):
        old(Rate)(count=5, limit=5, per=1)
    with pytest.raises(InvalidJob, match="call_timeout= and its old name wait="):
        old(Queue("q", "memory://").task_by_name)("work", wait=1, call_timeout=1)


def test_signatures_show_the_new_names_only() -> None:
    assert list(inspect.signature(Rate).parameters) == ["count", "per"]
    assert list(inspect.signature(Worker.run).parameters) == ["self", "store_timeout"]


def test_a_policy_has_its_old_attribute() -> None:
    with deprecated("Rate.limit", "Cron.limit", "Every.limit", "Unique.ttl_ms"):
        read = (
            old(Rate(5, per=1)).limit,
            old(Cron("@daily", times=3)).limit,
            old(Every(60, times=4)).limit,
            old(Unique(period=5)).ttl_ms,
        )
    assert read == (5, 3, 4, 5000)


async def test_records_have_their_old_attributes(queue: Queue) -> None:
    task = queue.task_by_name("work", unique=Unique(period=60))
    await queue.schedule("s", Every(60, times=7), queue.task_by_name("work"))
    (schedule,) = await queue.schedules()
    unique = (await (await task.enqueue()).info()).options.unique
    minute = (await queue.metrics())[0]
    with deprecated("ScheduleInfo.limit", "UniqueLock.ttl", "MinuteMetrics.wait"):
        read = (old(schedule).limit, old(unique).ttl, old(minute).wait)
    assert read == (7, timedelta(seconds=60), minute.latency)


async def test_encoded_records_keep_their_field_names(queue: Queue) -> None:
    job = await queue.task_by_name("work", unique=Unique(period=60)).enqueue()
    await queue.schedule("s", Every(60, times=7), queue.task_by_name("work"))
    (schedule,) = msgspec.to_builtins(await queue.schedules())
    options = msgspec.to_builtins((await job.info()).options.unique)
    minute = msgspec.to_builtins((await queue.metrics())[0])
    assert schedule["limit"] == 7
    assert options["ttl"] == "PT60S"
    assert "wait" in minute


async def test_call_waits_as_long_as_its_old_option_says(queue: Queue) -> None:
    @queue.task
    async def work() -> int:
        return 7

    with deprecated("wait="):
        asked = old(work).options(wait=20)
    assert asked._options.call_timeout_ms == 20_000
    async with Worker(queue):
        assert await asked.call() == 7


def test_a_task_takes_the_old_option_in_every_place_that_takes_options() -> None:
    queue = Queue("q", "memory://")

    def work() -> None: ...

    with deprecated("wait=", "wait=", "wait=", "wait="):
        tasks = [
            old(queue).task(wait=9)(work),
            old(queue).task_by_name("work", wait=9),
            old(queue.task_by_name("work")).options(wait=9),
            old(queue.task_by_name("work").sync).options(wait=9)._task,
        ]
    assert [task._options.call_timeout_ms for task in tasks] == [9000] * 4


async def test_a_worker_takes_the_old_name_of_its_store_timeout(url: str) -> None:
    queue = Queue("q", url)

    @queue.task
    async def work() -> None:
        stopping.append(asyncio.ensure_future(worker.stop()))

    stopping: list[asyncio.Future[Any]] = []
    worker = Worker(queue)
    async with queue:
        await work.enqueue()
        with deprecated("Worker.run(wait=…)"):
            running = asyncio.ensure_future(old(worker).run(wait=5))
            await asyncio.wait_for(running, 20)
        await asyncio.gather(*stopping)


def test_a_batch_task_takes_its_old_linger() -> None:
    queue = Queue("q", "memory://")
    with deprecated("Queue.batch_task(linger=…)"):

        @old(queue).batch_task(size=5, linger=2)  # type: ignore[untyped-decorator]
        async def index(items: list[int]) -> list[int]:
            return items

    with warnings.catch_warnings():

        @queue.batch_task(size=5, window=2)
        async def again(items: list[int]) -> list[int]:
            return items

    assert queue.tasks["index"].batch == queue.tasks["again"].batch


async def test_a_task_by_name_has_its_old_method(queue: Queue) -> None:
    with deprecated("queue.named()"):
        task = old(queue).named("work", priority=3)
    assert (await (await task.enqueue()).info()).priority == 3


async def test_find_and_flow_tree_take_their_old_limit(queue: Queue) -> None:
    jobs = await queue.task_by_name("work").enqueue_many([()] * 3)
    with deprecated("Queue.find(limit=…)", "Queue.flow_tree(limit=…)"):
        listing = old(queue).find(limit=2)
        tree = old(queue).flow_tree(jobs[0].id, limit=1)
    assert len([job async for job in listing]) == 2
    assert len((await tree).nodes) == 1


async def test_clear_and_clean_purge(queue: Queue) -> None:
    await queue.task_by_name("work").enqueue_many([()] * 3)
    await queue.task_by_name("work").options(delay=60).enqueue_many([()] * 2)
    with deprecated("purge('waiting')"):
        assert await old(queue).clear() == 3
    with deprecated("purge('waiting', 'delayed', 'blocked')"):
        assert await old(queue).clear(delayed=True) == 2
    with deprecated("queue.clean(state)", "queue.clean(state)"):
        assert await old(queue).clean("cancelled", older_than=60) == 0
        assert await old(queue).clean(State.CANCELLED, limit=4) == 4
    with (
        deprecated("queue.clean(state)"),
        pytest.raises(InvalidJob, match="purge also removes waiting"),
    ):
        await old(queue).clean("waiting")


async def test_purge_removes_failed_jobs_by_id(jobs: Any) -> None:
    queue: Queue = jobs.queues[0]

    @queue.task(retry=0)
    async def broken() -> None:
        raise ValueError

    failed = await broken.enqueue_many([()] * 2)
    await jobs.drain()
    waiting = await queue.task_by_name("nobody").enqueue()
    with deprecated("queue.purge(*ids)"):
        assert await queue.purge(failed[0].id, waiting.id) == 1
    assert (await queue.counts())[State.FAILED] == 1
    assert await waiting.state() is State.WAITING


async def test_purge_by_id_refuses_the_options_that_choose_among_states(queue: Queue) -> None:
    job = await queue.task_by_name("work").enqueue()
    for options in ({"older_than": 60}, {"max_jobs": 0}):
        with deprecated("queue.purge(*ids)"), pytest.raises(InvalidJob, match="not a state"):
            await old(queue).purge(job.id, **options)
    assert await job.state() is State.WAITING


def test_the_blocking_queue_has_the_old_names_too(url: str) -> None:
    queue = Queue("q", url)
    with queue.sync as blocking:
        with deprecated("queue.named()"):
            task = old(blocking).named("work")
        jobs = task.enqueue_many([()] * 4)
        with deprecated("find(limit=…)", "flow_tree(limit=…)"):
            assert len(list(old(blocking).find(limit=2))) == 2
            assert len(old(blocking).flow_tree(jobs[0].id, limit=1).nodes) == 1
        with deprecated("queue.clear()", "queue.clean(state)", "queue.purge(*ids)"):
            assert old(blocking).clear() == 4
            assert old(blocking).clean("cancelled", limit=3) == 3
            assert blocking.purge(jobs[3].id) == 0


async def test_a_tasks_queue_is_a_name_that_still_finds_the_queue(queue: Queue) -> None:
    task = queue.task_by_name("work")
    job = await task.enqueue()
    assert (task.queue, job.queue) == ("api", "api")
    assert isinstance(task.queue, str)
    assert f"{task.queue:>5}" == "  api"
    assert task.queue.find("p") == 1
    with deprecated("task.queue.tenant", "task.queue.counts", "task.queue.find"):
        assert old(task.queue).tenant == "default"
        counts = await old(task.queue).counts()
        found = [info.id async for info in old(task.queue).find(state="waiting")]
    assert counts[State.WAITING] == 1
    assert found == [job.id]
    with pytest.raises(AttributeError, match="nonsense"):
        _ = old(task.queue).nonsense


async def test_a_copy_of_a_tasks_queue_is_its_name(queue: Queue) -> None:
    @queue.task
    async def work() -> None: ...

    for made in (
        pickle.loads(pickle.dumps(work.queue)),  # noqa: S301  # our own bytes
        copy.copy(work.queue),
        copy.deepcopy({"queue": work.queue})["queue"],
    ):
        assert (type(made), made) == (str, "api")


async def test_the_queue_of_a_task_still_opens_the_queue(url: str) -> None:
    queue = Queue("q", url)
    task = queue.task_by_name("work")
    with deprecated("async with task.queue"):
        async with old(task.queue) as opened:
            assert opened is queue
            assert queue._context.connection.session_here() is not None
    assert queue._context.connection.session_here() is None


async def test_the_queue_of_a_task_is_an_argument_like_any_text(queue: Queue) -> None:
    task = queue.task_by_name("work")
    info = await (await task.options(id=task.queue).enqueue(task.queue, to=[task.queue])).info()
    assert (info.id, info.args, info.kwargs) == ("api", ("api",), {"to": ["api"]})


async def test_a_worker_and_a_broadcast_take_the_queue_of_a_task(queue: Queue) -> None:
    @queue.task
    async def work() -> int:
        return 7

    with deprecated("task.queue as a Queue"):
        worker = Worker(old(work.queue))
    with deprecated("task.queue as a Queue"):
        (job,) = await work.broadcast([old(work.queue)])
    async with worker:
        assert await job.result(timeout=20) == 7
