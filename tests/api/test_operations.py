"""What operators do with a queue: read, pause, rerun, remove, purge."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobq import ConfigError, InvalidJob, JobNotFound, Queue, Reject, State, Worker
from jobq.testing import FakeClock


async def _finish(queue: Queue, *, good: int = 0, bad: int = 0, worse: int = 0) -> None:
    """Jobs that have ended: completed ones, and failed ones of two tasks."""

    @queue.task
    async def fine(n: int) -> int:
        return n

    @queue.task
    async def broken(n: int) -> None:
        raise Reject("no")

    @queue.task
    async def worst(n: int) -> None:
        raise Reject("never")

    jobs = await queue.enqueue_many(
        [fine.bind(n) for n in range(good)]
        + [broken.bind(n) for n in range(bad)]
        + [worst.bind(n) for n in range(worse)]
    )
    async with Worker(queue):
        for job in jobs:
            await job.wait(timeout=30)


async def test_counts_name_every_state(queue: Queue) -> None:
    await queue.task_by_name("nobody").enqueue_many([()] * 3)
    await queue.task_by_name("nobody").options(delay=60).enqueue()
    counts = await queue.counts()
    assert set(counts) == set(State)
    assert (counts[State.WAITING], counts[State.DELAYED], counts[State.FAILED]) == (3, 1, 0)


async def test_jobs_are_found_by_state_name_and_key_over_many_pages(queue: Queue) -> None:
    await queue.task_by_name("a").options(key="k").enqueue_many([(n,) for n in range(250)])
    await queue.task_by_name("b").options(key="other").enqueue_many([(n,) for n in range(30)])
    assert len([job async for job in queue.find()]) == 280
    assert len([job async for job in queue.find(name="a")]) == 250
    assert len([job async for job in queue.find(key="other", state="waiting")]) == 30
    assert len([job async for job in queue.find(max_jobs=120)]) == 120
    assert [job async for job in queue.find(state=State.FAILED)] == []
    assert [job async for job in queue.find(max_jobs=0)] == []
    with pytest.raises(InvalidJob, match="did you mean 'waiting'"):
        [job async for job in queue.find(state="wating")]


async def test_a_page_shows_arguments_and_results(queue: Queue) -> None:
    await _finish(queue, good=1)
    [job] = [job async for job in queue.find(state="completed")]
    assert (job.args, job.result, job.attempt) == ((0,), 0, 1)
    assert job.started_at is not None
    assert job.finished_at is not None
    assert job.created_at <= job.started_at <= job.finished_at


async def test_stats_show_counts_settings_and_the_oldest_job(queue: Queue) -> None:
    await queue.task_by_name("nobody").enqueue()
    await queue.task_by_name("nobody").options(delay=60).enqueue()
    await queue.pause()
    stats = await queue.stats()
    assert (stats.queue, stats.paused, stats.counts[State.WAITING]) == ("api", True, 1)
    assert stats.next_due is not None
    assert timedelta(0) < stats.next_due <= timedelta(seconds=60)
    await queue.resume()
    assert not (await queue.stats()).paused


async def test_metrics_add_up_what_happened(queue: Queue) -> None:
    await _finish(queue, good=3, bad=2)
    minutes = await queue.metrics()
    assert sum(minute.accepted for minute in minutes) == 5
    assert sum(minute.completed for minute in minutes) == 3
    assert sum(minute.failed for minute in minutes) == 2
    assert all(minute.minute.second == 0 for minute in minutes)
    with pytest.raises(InvalidJob, match="minutes=0"):
        await queue.metrics(minutes=0)


async def test_workers_are_listed_while_they_work(queue: Queue) -> None:
    @queue.task
    async def ping() -> None: ...

    async with Worker(queue, name="w1", concurrency=7):
        await ping.call()
        while not (workers := await queue.workers()):
            pass
        assert [(w.name, w.concurrency, w.queues) for w in workers] == [("w1", 7, ("api",))]
    assert await queue.workers() == []


async def test_a_paused_queue_starts_nothing(queue: Queue) -> None:
    @queue.task
    async def ping() -> str:
        return "pong"

    @queue.task
    async def other() -> None: ...

    await queue.pause()
    job = await ping.enqueue()
    async with Queue("second", queue.url) as second:

        @second.task
        async def beside() -> None: ...

        async with Worker(queue, second):
            await beside.call()  # the worker works, and leaves the paused queue alone
            assert await job.state() is State.WAITING
            await queue.resume()
            assert await job.result(timeout=10) == "pong"


async def test_a_purge_cancels_jobs_that_have_not_started(queue: Queue) -> None:
    await queue.task_by_name("nobody").enqueue_many([()] * 2100)
    await queue.task_by_name("nobody").options(delay=60).enqueue_many([()] * 5)
    assert await queue.purge("waiting") == 2100
    assert (await queue.counts())[State.DELAYED] == 5
    assert await queue.purge("waiting", "delayed", "blocked") == 5
    assert (await queue.counts())[State.CANCELLED] == 2105


async def test_a_purge_removes_ended_jobs_by_state_age_and_number(queue: Queue) -> None:
    await _finish(queue, good=5, bad=2)
    assert await queue.purge("completed", older_than=3600) == 0
    assert await queue.purge(State.COMPLETED, max_jobs=2) == 2
    assert await queue.purge("completed") == 3
    counts = await queue.counts()
    assert (counts[State.COMPLETED], counts[State.FAILED]) == (0, 2)


@pytest.mark.parametrize(
    ("states", "options", "said"),
    [
        (["active"], {}, "cancel them"),
        (["waiting"], {"older_than": 5}, "a waiting job has not ended"),
        (["failed", "blocked"], {"older_than": 5}, "a blocked job has not ended"),
        (["failed", "job-7"], {}, "state='job-7'"),
        ([], {"max_jobs": -1}, "max_jobs=-1"),
        ([], {"name": ""}, "name=''"),
    ],
)
async def test_an_invalid_purge_is_refused_and_removes_nothing(
    queue: Queue, states: list[str], options: dict[str, Any], said: str
) -> None:
    await _finish(queue, bad=1)
    with pytest.raises(InvalidJob, match=said):
        await queue.purge(*states, **options)
    assert (await queue.counts())[State.FAILED] == 1


async def test_a_purge_removes_the_jobs_of_one_task_in_any_states(queue: Queue) -> None:
    await _finish(queue, good=2, bad=2, worse=1)
    for name, delay in (("broken", 60), ("worst", 60), ("worst", 0)):
        await queue.task_by_name(name).options(delay=delay).enqueue()
    assert await queue.purge("failed", "delayed", name="broken") == 3
    assert await queue.purge("delayed") == 1
    counts = await queue.counts()
    left = (counts[State.COMPLETED], counts[State.FAILED], counts[State.WAITING])
    assert left == (2, 1, 1)


async def test_a_purge_by_name_counts_the_age_from_the_end_of_a_job(clocked: Queue) -> None:
    clock = clocked.clock
    assert isinstance(clock, FakeClock)
    await _finish(clocked, bad=2)
    clock.advance(100)
    await _finish(clocked, bad=1)
    assert await clocked.purge(name="broken", older_than=100) == 2
    assert await clocked.purge(name="broken", older_than=1) == 0


async def test_a_purge_stops_at_its_number_of_jobs(queue: Queue) -> None:
    await _finish(queue, good=3, bad=3)
    await queue.task_by_name("nobody").enqueue_many([()] * 4)
    assert await queue.purge("waiting", "completed", "failed", max_jobs=5) == 5
    assert await queue.purge("failed", name="broken", max_jobs=2) == 2
    assert await queue.purge("waiting", "completed", "failed", max_jobs=0) == 0
    assert await queue.purge("waiting", "completed", "failed") == 3


async def test_failed_jobs_run_again_by_id_by_name_or_all(queue: Queue) -> None:
    await _finish(queue, good=1, bad=3, worse=2)
    failed = [job.id async for job in queue.find(state="failed", name="broken")]
    done = [job.id async for job in queue.find(state="completed")]
    assert await queue.rerun(failed[0], *done) == 1
    assert await queue.rerun(name="worst") == 2
    assert (await queue.counts())[State.FAILED] == 2
    assert await queue.rerun() == 2
    counts = await queue.counts()
    assert (counts[State.FAILED], counts[State.WAITING], counts[State.COMPLETED]) == (0, 5, 1)


async def test_jobs_are_removed_by_id(queue: Queue) -> None:
    await _finish(queue, good=1, bad=2)
    ended = [job.id async for job in queue.find()]
    waiting = await queue.task_by_name("nobody").enqueue()
    with pytest.raises(JobNotFound, match=r"'unknown'.*no job was changed"):
        await queue.remove(waiting.id, "unknown")
    assert await queue.remove(*ended, ended[0], waiting.id) == 4
    assert await waiting.state() is State.CANCELLED
    assert sum((await queue.counts()).values()) == 1


async def test_failed_jobs_are_purged_by_name_or_all(queue: Queue) -> None:
    await _finish(queue, good=1, bad=3, worse=2)
    assert await queue.purge(name="worst") == 2
    assert await queue.purge() == 3
    counts = await queue.counts()
    assert (counts[State.FAILED], counts[State.COMPLETED]) == (0, 1)


async def test_obliterate_leaves_nothing(queue: Queue) -> None:
    await _finish(queue, good=2, bad=1)
    await queue.task_by_name("nobody").enqueue_many([()] * 1500)
    await queue.obliterate()
    assert sum((await queue.counts()).values()) == 0


async def test_a_queue_with_running_jobs_is_obliterated_only_by_force(queue: Queue) -> None:
    from jobq.core.records.jobs import Claim

    await queue.task_by_name("nobody").enqueue()
    store = await queue._context.store()
    await store.settle(
        [], worker="w", call="1", then=Claim(queues=(queue.qname,), limit=1, lease_ms=60_000)
    )
    with pytest.raises(ConfigError):
        await queue.obliterate()
    await queue.obliterate(force=True)
    assert sum((await queue.counts()).values()) == 0
