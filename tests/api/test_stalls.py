"""`max_stalls`: set on a task, it lives in worker code; set per call, it is stored with the job."""

from __future__ import annotations

import pytest

from jobq import InvalidJob, Queue, Worker


async def stored(queue: Queue) -> dict[str, int]:
    """What the store knows of the queue's tasks."""
    (record,) = [
        r
        for r in await (await queue._context.store()).queues(queue.tenant)
        if r.queue == queue.qname
    ]
    return record.max_stalls


async def test_max_stalls_of_a_task_stays_in_worker_code_and_that_of_a_call_is_stored(
    queue: Queue,
) -> None:
    @queue.task(max_stalls=1)
    async def brittle() -> None: ...

    assert brittle.bind()._spec.max_stalls is None
    assert brittle.options(max_stalls=5).bind()._spec.max_stalls == 5
    assert queue.task_by_name("brittle").bind()._spec.max_stalls is None
    assert queue.task_by_name("brittle", max_stalls=0).bind()._spec.max_stalls == 0


async def test_a_worker_declares_max_stalls_of_tasks_that_differ_from_the_default(
    queue: Queue,
) -> None:
    @queue.task(max_stalls=1)
    async def brittle() -> None: ...

    @queue.task
    async def usual() -> None: ...

    @queue.batch_task(size=10, max_stalls=0)
    async def never(items: list[int]) -> list[int]:
        return items

    async with Worker(queue):
        assert await stored(queue) == {"brittle": 1, "never": 0}


async def test_a_task_that_is_back_at_the_default_has_no_max_stalls_stored(
    queue: Queue, url: str
) -> None:
    @queue.task(name="work", max_stalls=1)
    async def before() -> None: ...

    async with Worker(queue):
        pass
    async with Queue("api", url) as deployed:

        @deployed.task(name="work")
        async def after() -> None: ...

        @deployed.task(max_stalls=7)
        async def another() -> None: ...

        async with Worker(deployed):
            assert await stored(queue) == {"another": 7}


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, None])
async def test_an_invalid_max_stalls_is_refused(queue: Queue, value: object) -> None:
    with pytest.raises(InvalidJob, match="max_stalls"):
        queue.task(max_stalls=value)(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(InvalidJob, match="max_stalls"):
        queue.task_by_name("any", max_stalls=value)  # type: ignore[arg-type]
