"""Job handles: reading and changing a job."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobq import InvalidJob, JobCancelled, JobNotFound, Queue, Reject, State, Worker, current_job


async def test_a_waiting_job_is_cancelled_at_once_and_only_once(queue: Queue) -> None:
    job = await queue.task_by_name("nobody").enqueue()
    assert await job.cancel()
    assert not await job.cancel()
    info = await job.info()
    assert (info.state, info.reason) == (State.CANCELLED, "cancelled")


async def test_a_running_job_is_asked_to_stop(queue: Queue) -> None:
    started = asyncio.Event()

    @queue.task
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async with Worker(queue):
        job = await endless.enqueue()
        await asyncio.wait_for(started.wait(), 10)
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)


async def test_a_delayed_job_can_be_promoted(queue: Queue) -> None:
    job = await queue.task_by_name("nobody").options(delay=3600).enqueue()
    assert await job.promote()
    assert await job.state() is State.WAITING
    assert not await job.promote()


async def test_a_job_can_be_given_another_priority_time_and_arguments(queue: Queue) -> None:
    @queue.task
    async def charge(tenant: str, invoice: int) -> None: ...

    job = await charge.enqueue("acme", 7)
    assert await job.reprioritise(9)
    later = datetime(2100, 1, 1, tzinfo=UTC)
    assert await job.reschedule(at=later)
    assert await job.update("acme", invoice=8)
    info = await job.info()
    assert (info.priority, info.due_at, info.args, info.kwargs) == (
        9,
        later,
        ("acme",),
        {"invoice": 8},
    )
    assert await job.reschedule(delay=timedelta(minutes=1))
    assert (await job.info()).due_at != later


async def test_bad_changes_are_refused(queue: Queue) -> None:
    @queue.task
    async def charge(tenant: str, invoice: int) -> None: ...

    job = await charge.enqueue("acme", 7)
    with pytest.raises(InvalidJob, match="invoice"):
        await job.update("acme")
    with pytest.raises(InvalidJob, match="priority"):
        await job.reprioritise(-1)
    with pytest.raises(InvalidJob, match="give one"):
        await job.reschedule()
    with pytest.raises(InvalidJob, match="give one"):
        await job.reschedule(delay=1, at=datetime(2100, 1, 1, tzinfo=UTC))
    assert (await job.info()).kwargs == {}


async def test_remove_deletes_an_ended_job_and_cancels_a_waiting_one(queue: Queue) -> None:
    job = await queue.task_by_name("nobody").enqueue()
    assert await job.remove()
    info = await job.info()
    assert (info.state, info.reason) == (State.CANCELLED, "removed")
    assert await job.remove()
    with pytest.raises(JobNotFound):
        await job.info()


async def test_progress_and_log_lines_can_be_read(queue: Queue) -> None:
    @queue.task
    async def steps() -> str:
        await current_job().log("one")
        await current_job().progress({"done": 1})
        await current_job().log("two")
        return "done"

    async with Worker(queue):
        job = await steps.enqueue()
        await job.result(timeout=10)
    assert await job.logs() == ["one", "two"]
    assert (await job.logs(-1), await job.logs(0, 1), await job.logs(5)) == (["two"], ["one"], [])
    assert (await job.info()).progress == {"done": 1}


async def test_a_signal_to_an_ended_job_returns_false(queue: Queue) -> None:
    job = await queue.task_by_name("nobody").enqueue()
    assert await job.signal("go", {"n": 1})
    await job.cancel()
    assert not await job.signal("go")


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("cancel", {}),
        ("rerun", {}),
        ("promote", {}),
        ("reprioritise", {"priority": 1}),
        ("reschedule", {"delay": 1}),
        ("update", {"n": 1}),
        ("remove", {}),
        ("signal", {"name": "go"}),
    ],
)
async def test_an_operation_on_an_unknown_job_raises_and_one_that_comes_too_late_returns_false(
    queue: Queue, operation: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(JobNotFound, match="no job 'nobody' in queue 'api'"):
        await getattr(queue.job("nobody"), operation)(**arguments)

    late = "running" if operation in ("rerun", "remove") else "ended"
    started, go_on = asyncio.Event(), asyncio.Event()

    @queue.task
    async def steps() -> None:
        started.set()
        await go_on.wait()

    job = await steps.enqueue()
    handle = queue.job(job.id)
    async with Worker(queue):
        await started.wait()
        if late == "running":
            assert await getattr(handle, operation)(**arguments) is False
        go_on.set()
        await job.wait(timeout=10)
    if late == "ended":
        assert await getattr(handle, operation)(**arguments) is False
    assert await job.state() is State.COMPLETED


@pytest.mark.parametrize("operation", ["rerun", "remove"])
async def test_an_unknown_id_among_others_changes_none_of_them(
    queue: Queue, operation: str
) -> None:
    @queue.task
    async def breaks() -> None:
        raise Reject("no")

    jobs = await breaks.enqueue_many([(), ()])
    async with Worker(queue):
        for job in jobs:
            await job.wait(timeout=10)
    with pytest.raises(JobNotFound, match="no job 'nobody' in queue 'api'; no job was changed"):
        await getattr(queue, operation)(jobs[0].id, "nobody", jobs[1].id)
    assert [await job.state() for job in jobs] == [State.FAILED, State.FAILED]
    assert await getattr(queue, operation)(jobs[0].id, jobs[0].id) == 1


async def test_a_handle_can_be_made_from_an_id(queue: Queue) -> None:
    job = await queue.task_by_name("nobody").options(id="known").enqueue()
    again = queue.job("known")
    assert (again.id, again.queue, again.duplicate) == ("known", "api", False)
    assert (await again.info()).id == job.id
    assert "known" in repr(again)
    with pytest.raises(InvalidJob, match="braces"):
        queue.job("{}")


async def test_a_handle_made_from_an_id_follows_the_job_into_any_life(queue: Queue) -> None:
    named = queue.task_by_name("nobody").options(id="x")
    await (await named.enqueue()).cancel()
    await named.enqueue()
    assert await queue.job("x").state() is State.WAITING
