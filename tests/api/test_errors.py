"""Failed runs: what `JobInfo` shows of them, and what the error of a waiting caller says."""

from __future__ import annotations

import pytest

from jobq import JobFailed, Queue, Reject, Retry, testing


async def test_a_job_lists_its_failed_runs(jobs: testing.Sandbox, clocked: Queue) -> None:
    @clocked.task(retry=Retry(2, base=60, jitter=0))
    async def charge() -> None:
        raise ValueError("no such card")

    job = await charge.enqueue()
    began = jobs.clock.now()
    for _ in range(3):
        await jobs.drain()
        jobs.clock.advance(120)
    info = await job.info()
    assert [(error.attempt, error.type, error.message) for error in info.errors] == [
        (n, "ValueError", "no such card") for n in (1, 2, 3)
    ]
    assert [(error.at - began).total_seconds() for error in info.errors] == [0, 120, 240]
    assert all(error.worker for error in info.errors)
    assert all("in charge" in (error.traceback or "") for error in info.errors)
    assert [error.exhausted for error in info.errors] == [False, False, True]
    assert info.failure == info.errors[-1]
    (listed,) = [found async for found in clocked.find()]
    assert (listed.failure, listed.errors) == (info.failure, ())


async def test_an_error_says_whether_the_retries_ran_out(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task(retry=0)
    async def tried() -> None:
        raise ValueError("no such card")

    @clocked.task
    async def refused() -> None:
        raise Reject("no such card")

    ran_out, rejected = await tried.enqueue(), await refused.enqueue()
    await jobs.drain()
    with pytest.raises(
        JobFailed,
        match=r"failed \(error\) in attempt 1, with no retry left: ValueError: no such card",
    ) as caught:
        await ran_out.result()
    assert caught.value.failure.exhausted
    with pytest.raises(
        JobFailed, match=r"failed \(rejected\) in attempt 1: .*Reject: no such card"
    ) as caught:
        await rejected.result()
    assert not caught.value.failure.exhausted
