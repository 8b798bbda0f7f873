"""Jobs in steps: snoozing with saved state, and waiting for signals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from jobq import (
    InvalidJob,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    Queue,
    Retry,
    Snooze,
    State,
    WaitTimeout,
    Worker,
    current_job,
)
from jobq.testing import Sandbox

# ── snooze ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_in_steps_continues_from_its_saved_value_and_uses_no_retry(
    jobs: Sandbox, clocked: Queue
) -> None:
    seen: list[Any] = []

    @clocked.task(retry=0)
    async def import_pages(pages: int) -> int:
        done = current_job().saved or 0
        seen.append(done)
        if done < pages:
            raise Snooze(60, saved=done + 1)
        return done

    job = await import_pages.enqueue(3)
    assert await jobs.drain(delayed=True) == 4
    assert await job.result() == 3
    assert seen == [0, 1, 2, 3]
    info = await job.info()
    assert (info.attempt, info.failures, info.stalls) == (4, 0, 0)


async def test_a_saved_value_survives_a_failure_and_can_be_cleared(
    jobs: Sandbox, clocked: Queue
) -> None:
    seen: list[Any] = []

    @clocked.task(retry=Retry(1, base=0))
    async def step() -> None:
        saved = current_job().saved
        seen.append(saved)
        if len(seen) == 1:
            raise Snooze(1, saved={"cursor": "x"})
        if len(seen) == 2:
            raise ValueError("again")
        if len(seen) == 3:
            raise Snooze(1)

    await step.enqueue()
    await jobs.drain(delayed=True)
    assert seen == [None, {"cursor": "x"}, {"cursor": "x"}, None]


async def test_a_value_that_cannot_be_encoded_fails_the_run(queue: Queue) -> None:
    @queue.task(retry=0)
    async def step() -> None:
        raise Snooze(1, saved=object())

    async with Worker(queue):
        with pytest.raises(JobFailed, match="a value of type object cannot be encoded"):
            await step.call()


# ── signals ───────────────────────────────────────────────────────────────────────────────────────


class Approval:
    """A task that waits for two signals, and how often it was started."""

    def __init__(self, queue: Queue) -> None:
        self.starts = 0

        @queue.task(retry=0)
        async def order(item: str) -> list[Any]:
            self.starts += 1
            job = current_job()
            first = await job.wait_for_signal("approve")
            second = await job.wait_for_signal("approve", timeout=3600)
            return [item, first, second]

        self.order = order


async def test_a_job_waits_for_signals_and_continues_with_their_values(
    jobs: Sandbox, clocked: Queue
) -> None:
    approval = Approval(clocked)
    job = await approval.order.enqueue("desk")
    assert await jobs.drain() == 1
    assert await job.state() is State.BLOCKED
    await job.signal("approve", {"by": "ada"})
    assert await jobs.drain() == 1
    assert await job.state() is State.BLOCKED
    await job.signal("approve", {"by": "bob"})
    assert await jobs.drain() == 1
    assert await job.result() == ["desk", {"by": "ada"}, {"by": "bob"}]
    info = await job.info()
    assert (approval.starts, info.failures, info.stalls) == (3, 0, 0)


async def test_signals_sent_before_the_job_starts_are_kept(jobs: Sandbox, clocked: Queue) -> None:
    approval = Approval(clocked)
    job = await approval.order.options(delay=60).enqueue("desk")
    for by in ("ada", "bob"):
        await job.signal("approve", by)
    assert await jobs.drain(delayed=True) == 1
    assert await job.result() == ["desk", "ada", "bob"]
    assert approval.starts == 1


async def test_a_signal_larger_than_the_queue_allows_is_refused_and_not_kept(url: str) -> None:
    async with Queue("small", url, max_payload=100) as queue:

        @queue.task
        async def approve() -> str:
            return str(await current_job().wait_for_signal("approve"))

        job = await approve.enqueue()
        with pytest.raises(
            PayloadTooLarge,
            match="the value of signal 'approve' takes 202 bytes encoded, more than the 100",
        ):
            await job.signal("approve", "x" * 200)
        await job.signal("approve", "yes")
        async with Worker(queue):
            assert await job.result(timeout=10) == "yes"


async def test_signals_of_other_names_do_not_wake_it(jobs: Sandbox, clocked: Queue) -> None:
    approval = Approval(clocked)
    job = await approval.order.enqueue("desk")
    await jobs.drain()
    await job.signal("reject")
    assert await jobs.drain() == 0
    assert await job.state() is State.BLOCKED


async def test_a_wait_that_takes_too_long_raises_in_the_handler(
    jobs: Sandbox, clocked: Queue
) -> None:
    waited: list[str] = []

    @clocked.task(retry=0)
    async def order() -> str:
        job = current_job()
        try:
            return str(await job.wait_for_signal("approve", timeout=60))
        except WaitTimeout as error:
            waited.append(str(error))
            return f"reminded, then {await job.wait_for_signal('approve')}"

    job = await order.enqueue()
    await jobs.drain()
    jobs.clock.advance(60)
    assert await jobs.drain() == 1
    await job.signal("approve", "yes")
    assert await jobs.drain() == 1
    assert await job.result() == "reminded, then yes"
    assert len(waited) == 2  # the second pass finds the same, at once
    assert "signal 'approve'" in waited[0]


async def test_a_timeout_that_is_not_caught_is_a_failure_like_any_other(
    jobs: Sandbox, clocked: Queue
) -> None:
    @clocked.task(retry=0)
    async def order() -> None:
        await current_job().wait_for_signal("approve", timeout=60)

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    with pytest.raises(JobFailed, match="did not receive the signal"):
        await job.result()


async def test_a_worker_of_another_queue_ends_a_wait_at_its_timeout(
    jobs: Sandbox, clocked: Queue, url: str
) -> None:
    @clocked.task
    async def order() -> None:
        await current_job().wait_for_signal("approve", timeout=60)

    job = await order.enqueue()
    await jobs.drain()
    assert await job.state() is State.BLOCKED
    jobs.clock.advance(60)
    other = Queue("other", url)
    other._context.connection.move(url, jobs.clock)
    worker = Worker(other)
    worker.settings = replace(worker.settings, tick_ms=10)
    async with clocked.events(after="0") as events, worker, asyncio.timeout(20):
        async for event in events:
            if event.kind == "unblocked":
                break
    assert await job.state() is State.WAITING


async def test_plain_functions_wait_for_signals_too(queue: Queue) -> None:
    @queue.task
    def order() -> str:
        return str(current_job().sync.wait_for_signal("approve"))

    job = await order.enqueue()
    async with Worker(queue):
        await job.signal("approve", "yes")
        assert await job.result(timeout=10) == "yes"


async def test_signals_are_read_in_the_codec_of_their_job(url: str) -> None:
    async with Queue("q", url, codec="msgpack") as packed, Queue("q", url) as plain:

        @packed.task
        async def order() -> bytes:
            return bytes(await current_job().wait_for_signal("blob"))

        job = await order.enqueue()
        await packed.job(job.id).signal("blob", b"\xff")
        async with Worker(packed):
            assert await job.result(timeout=10) == b"\xff"
        other = await order.enqueue()
        await plain.job(other.id).signal("blob", b"\xfe")  # through a queue of another codec
        async with Worker(packed):
            assert await other.result(timeout=10) == b"\xfe"


async def test_a_job_that_has_ended_or_is_not_there_takes_no_signal(queue: Queue) -> None:
    @queue.task
    async def quick() -> None: ...

    job = await quick.enqueue()
    async with Worker(queue):
        await job.wait(timeout=10)
    assert not await job.signal("approve")
    with pytest.raises(JobNotFound):
        await queue.job("nobody").signal("approve")
    with pytest.raises(InvalidJob, match="signal=''"):
        await job.signal("")


async def test_a_job_that_waits_for_a_signal_can_be_cancelled(queue: Queue) -> None:
    approval = Approval(queue)
    job = await approval.order.enqueue("desk")
    async with Worker(queue):
        async for event in queue.events(after="0"):
            if event.kind == "blocked":
                break
    assert await job.cancel()
    assert await job.state() is State.CANCELLED


async def test_a_rerun_waits_for_new_signals(jobs: Sandbox, clocked: Queue) -> None:
    @clocked.task(retry=0)
    async def order() -> None:
        await current_job().wait_for_signal("approve", timeout=60)

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    assert await job.rerun()
    await jobs.drain()
    assert await job.state() is State.BLOCKED
    await job.signal("approve")
    await jobs.drain()
    assert await job.state() is State.COMPLETED


async def test_except_exception_does_not_catch_a_wait(jobs: Sandbox, clocked: Queue) -> None:
    @clocked.task(retry=0)
    async def careful() -> str:
        try:
            return str(await current_job().wait_for_signal("go"))
        except Exception:
            return "caught"

    job = await careful.enqueue()
    await jobs.drain()
    await job.signal("go", "gone")
    await jobs.drain()
    assert await job.result() == "gone"
