"""`job.follow()`: the state, progress and log lines of a job as they change, until it has ended."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest

from jobq import (
    InvalidJob,
    Job,
    JobNotFound,
    JobUpdate,
    Queue,
    QueueClosed,
    Retry,
    Snooze,
    State,
    WaitTimeout,
    Worker,
    current_job,
    testing,
)
from jobq.client import deadlines, following, waiting
from jobq.client.following import new_lines
from jobq.core.records.defaults import LOG_LINES
from jobq.core.records.jobs import JobKey
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def only_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a signal, nobody looks at a job again for as long as a test lasts."""
    monkeypatch.setattr(deadlines, "CHECK_AGAIN_S", 10 * PATIENCE_S)
    monkeypatch.setattr(following, "CHECK_AGAIN_S", 10 * PATIENCE_S)


@pytest.fixture
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """All signals are lost, and a follower looks again soon."""

    async def deaf(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(following._Ears, "_listen", deaf)
    monkeypatch.setattr(deadlines, "CHECK_AGAIN_S", 0.05)
    monkeypatch.setattr(following, "CHECK_AGAIN_S", 0.05)


async def followed(job: Job[Any], **how: Any) -> list[JobUpdate]:
    async with asyncio.timeout(PATIENCE_S):
        return [update async for update in job.follow(**how)]


def lines(updates: list[JobUpdate]) -> list[str]:
    return [line for update in updates for line in update.lines]


class Talk:
    """A task that goes one step further each time the test says so."""

    def __init__(self, queue: Queue) -> None:
        self.steps: asyncio.Queue[Any] = asyncio.Queue()

        @queue.task
        async def talk() -> str:
            while (step := await self.steps.get()) is not None:
                if isinstance(step, str):
                    await current_job().log(step)
                else:
                    await current_job().progress(step)
            return "done"

        self.task = talk


@pytest.mark.usefixtures("only_signals")
async def test_every_change_comes_by_a_signal_and_the_end_ends_the_stream(queue: Queue) -> None:
    talk = Talk(queue)
    job = await talk.task.enqueue()
    async with asyncio.timeout(PATIENCE_S), aclosing(job.follow()) as updates:
        first = await anext(updates)
        assert (first.state, first.progress, first.lines) == (State.WAITING, None, ())
        async with Worker(queue):
            assert (await anext(updates)).state is State.ACTIVE
            for step in (10, 20):
                talk.steps.put_nowait(step)
                assert (await anext(updates)).progress == step
            for line in ("one", "two"):
                talk.steps.put_nowait(line)
                update = await anext(updates)
                assert (update.lines, update.progress, update.ended) == ((line,), 20, False)
            talk.steps.put_nowait(None)
            last = await anext(updates)
            assert (last.state, last.ended, last.info.result) == (State.COMPLETED, True, "done")
            assert [update async for update in updates] == []


@pytest.mark.usefixtures("no_signals")
async def test_without_signals_the_follower_finds_out_by_itself(queue: Queue) -> None:
    talk = Talk(queue)
    job = await talk.task.enqueue()
    async with Worker(queue), asyncio.timeout(PATIENCE_S), aclosing(job.follow()) as updates:
        for step in (1, "one", 2, "two"):
            talk.steps.put_nowait(step)
            async for update in updates:
                if step in (update.progress, *update.lines):
                    break
        talk.steps.put_nowait(None)
        assert [update.state async for update in updates] == [State.COMPLETED]


@pytest.mark.usefixtures("only_signals")
async def test_a_retry_and_a_failure_are_seen(queue: Queue) -> None:
    @queue.task(retry=Retry(1, base=0.01))
    async def fails() -> None:
        await current_job().log(f"attempt {current_job().attempt}")
        raise RuntimeError("no luck")

    job = await fails.enqueue()
    async with Worker(queue):
        updates = await followed(job)
    assert lines(updates) == ["attempt 1", "attempt 2"]
    assert updates[-1].state is State.FAILED
    failure = updates[-1].info.failure
    assert failure is not None
    assert failure.message == "no luck"


async def test_a_job_that_has_ended_is_one_update_with_all_its_lines(queue: Queue) -> None:
    talk = Talk(queue)
    for step in ("one", "two", 3, None):
        talk.steps.put_nowait(step)
    job = await talk.task.enqueue()
    async with Worker(queue):
        await job.wait(timeout=PATIENCE_S)
    (update,) = await followed(queue.job(job.id))
    assert (update.state, update.lines, update.progress) == (State.COMPLETED, ("one", "two"), 3)


@pytest.mark.usefixtures("only_signals")
async def test_a_cancel_ends_the_stream(queue: Queue) -> None:
    job = await Talk(queue).task.enqueue()
    async with asyncio.timeout(PATIENCE_S), aclosing(job.follow()) as updates:
        assert (await anext(updates)).state is State.WAITING
        await job.cancel()
        assert [update.state async for update in updates] == [State.CANCELLED]


async def test_a_job_that_does_not_exist_is_not_found(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match="nobody"):
        await followed(queue.job("nobody"))


async def test_a_timeout_ends_the_stream_and_not_the_job(queue: Queue) -> None:
    job = await Talk(queue).task.enqueue()
    with pytest.raises(WaitTimeout, match="the job continues"):
        await followed(job, timeout=0.05)
    assert await job.state() is State.WAITING


async def test_closing_the_queue_ends_the_stream(url: str) -> None:
    queue = Queue("api", url)
    job = await Talk(queue).task.enqueue()
    updates = job.follow()
    await anext(updates)
    next_one = asyncio.create_task(anext(updates))
    await asyncio.sleep(0)
    await queue.aclose()
    with pytest.raises(QueueClosed):
        await asyncio.wait_for(next_one, PATIENCE_S)


async def test_without_changes_the_update_is_repeated_as_often_as_asked(queue: Queue) -> None:
    job = await Talk(queue).task.enqueue()
    async with asyncio.timeout(PATIENCE_S), aclosing(job.follow(repeat_after=0.01)) as updates:
        found = [await anext(updates) for _ in range(4)]
    assert {update.state for update in found} == {State.WAITING}


@pytest.mark.parametrize("wrong", [{"timeout": -1}, {"repeat_after": 0}, {"repeat_after": "1"}])
async def test_a_wrong_argument_is_refused_at_once(queue: Queue, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=next(iter(wrong))):
        queue.job("a").follow(**wrong)


async def test_a_follower_that_stops_leaves_no_task_behind(queue: Queue) -> None:
    job = await Talk(queue).task.enqueue()
    async with aclosing(job.follow()) as updates:
        await anext(updates)
        assert "jobq signals" in {task.get_name() for task in asyncio.all_tasks()}
    assert "jobq signals" not in {task.get_name() for task in asyncio.all_tasks()}


@pytest.mark.usefixtures("only_signals")
async def test_a_busy_queue_makes_a_follower_look_ten_times_a_second_at_most(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PACE_S", 5.0)
    looks = []
    read = waiting.read_job

    async def counted(session: Any, job: JobKey, *which: int | None) -> Any:
        looks.append(job)
        return await read(session, job, *which)

    monkeypatch.setattr(following, "read_job", counted)
    talk = Talk(queue)
    job = await talk.task.options(id="followed").enqueue()
    async with asyncio.timeout(PATIENCE_S), aclosing(job.follow()) as updates:
        await anext(updates)
        next_one = asyncio.create_task(anext(updates))
        for _ in range(100):
            await talk.task.enqueue()
        assert len(looks) <= 3
        await job.cancel()  # the end is seen at once, however busy the queue is
        assert (await next_one).ended


async def test_a_new_life_is_not_followed(queue: Queue) -> None:
    talk = Talk(queue)
    job = await talk.task.enqueue()
    await job.cancel()
    await queue.job(job.id).rerun()
    with pytest.raises(JobNotFound, match="started over"):
        await followed(job)


async def test_a_new_job_in_the_same_life_is_not_followed(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    """The record of the first was removed, so the new job of its id begins in life 0 as well."""
    task = Talk(clocked).task.options(id="reused")
    job = await task.enqueue()
    async with asyncio.timeout(PATIENCE_S), aclosing(job.follow()) as updates:
        await anext(updates)
        await job.cancel()
        await job.remove()
        jobs.clock.advance(1)
        again = await task.enqueue()
        assert (job._life, again._life, again.duplicate) == (0, 0, False)
        with pytest.raises(JobNotFound, match="it was removed"):
            await anext(updates)


def test_the_blocking_twin_ends_with_the_job(url: str) -> None:
    queue = Queue("api", url)

    @queue.task
    def count(n: int) -> int:
        for step in range(n):
            current_job().sync.progress(step)
            current_job().sync.log(f"step {step}")
        return n

    async def work() -> None:
        async with Worker(queue):
            await until(done.is_set, "the follower")

    done = threading.Event()
    worker = threading.Thread(target=lambda: asyncio.run(work()))
    with queue.sync:
        job = count.sync.enqueue(3)
        worker.start()
        try:
            updates = list(job.follow(timeout=PATIENCE_S))
        finally:
            done.set()
            worker.join()
        assert lines(updates) == ["step 0", "step 1", "step 2"]
        assert (updates[-1].info.result, updates[-1].progress) == (3, 2)
        for update in job.follow():  # leaving the loop closes the subscription
            assert update.ended
            break


KEPT = [str(n) for n in range(LOG_LINES)]


@pytest.mark.parametrize(
    ("seen", "logged", "new"),
    [
        ([], [], []),
        ([], ["a"], ["a"]),
        (["a"], ["a", "a"], ["a"]),
        (["a", "b"], ["a", "b"], []),
        (KEPT, KEPT, []),
        (KEPT, [*KEPT[2:], "x", "y"], ["x", "y"]),
        (KEPT[:10], KEPT, KEPT[10:]),
        (KEPT[:10], [*KEPT[5:], "a", "b", "c", "d", "e"], [*KEPT[10:], *"abcde"]),
        (["old"], KEPT, KEPT),
        (["a"], ["x", "y"], ["x", "y"]),
        (["a", "b"], ["x"], ["x"]),
    ],
)
def test_new_lines_are_those_behind_the_lines_seen(
    seen: list[str], logged: list[str], new: list[str]
) -> None:
    assert list(new_lines(seen, logged)) == new


# ── together with other features ──────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("only_signals")
async def test_a_member_of_a_flow_is_followed_from_blocked_to_its_end(queue: Queue) -> None:
    talk = Talk(queue)

    @queue.task
    async def after(said: str) -> str:
        await current_job().log(said)
        return said.upper()

    async with queue.flow() as flow:
        parent = flow.add(after, flow.add(talk.task).ref)
    async with asyncio.timeout(PATIENCE_S), aclosing(parent.follow()) as updates:
        assert (await anext(updates)).state is State.BLOCKED
        talk.steps.put_nowait(None)
        async with Worker(queue):
            found = [update async for update in updates]
    assert (found[-1].info.result, lines(found)) == ("DONE", ["done"])


@pytest.mark.usefixtures("only_signals")
async def test_a_snoozed_job_and_one_that_waits_for_a_signal_are_followed(queue: Queue) -> None:
    @queue.task
    async def patient() -> Any:
        if current_job().attempt == 1:
            raise Snooze(0.01)
        return await current_job().wait_for_signal("go")

    job = await patient.enqueue()
    async with Worker(queue), asyncio.timeout(PATIENCE_S):
        async for update in job.follow():
            if update.state is State.BLOCKED:
                await job.signal("go", 7)
    assert update.info.result == 7


@pytest.mark.usefixtures("only_signals")
async def test_each_job_of_a_batch_has_its_own_followers(queue: Queue) -> None:
    @queue.batch_task(size=3)
    async def together(items: list[int]) -> list[int]:
        return [10 * item for item in items]

    jobs = await together.enqueue_many([(n,) for n in range(3)])
    followers = [asyncio.create_task(followed(job)) for job in jobs for _ in range(2)]
    async with Worker(queue):
        ends = [(await follower)[-1].info.result for follower in followers]
    assert ends == [0, 0, 10, 10, 20, 20]


@pytest.mark.usefixtures("only_signals")
async def test_the_jobs_of_a_keyed_queue_are_followed_in_all_its_partitions(
    url: str, kind: str
) -> None:
    partitions = 4 if kind == "valkey" else None  # the other stores have one
    async with Queue("parts", url, mode="keyed", partitions=partitions) as queue:
        talk = Talk(queue)
        jobs = [await talk.task.options(key=str(n)).enqueue() for n in range(4)]
        followers = [asyncio.create_task(followed(job)) for job in jobs]
        for step in ("a line", None) * 4:
            talk.steps.put_nowait(step)
        async with Worker(queue, concurrency=1):
            ends = [(await follower)[-1] for follower in followers]
    assert {end.state for end in ends} == {State.COMPLETED}
    assert [line for follower in followers for line in lines(follower.result())] == ["a line"] * 4
