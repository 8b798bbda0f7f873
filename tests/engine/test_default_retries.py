"""Which retry policy applies: the call's, the task's, the queue's default, or Retry's own."""

from __future__ import annotations

import pytest

from jobq import Job, JobFailed, Queue, Retry, Worker
from jobq.api.options import JobOptions, TaskOptions
from jobq.core.records.queues import JobDefaults, QueueConfig
from jobq.stores.base import Store


async def runs(queue: Queue, job: Job[None]) -> int:
    """How often the job runs until it has failed for good."""
    async with Worker(queue):
        with pytest.raises(JobFailed):
            await job.result(timeout=30)
    return (await job.info()).attempt


@pytest.mark.parametrize(
    ("of_task", "of_call", "expected"),
    [({}, {}, 2), ({"retry": Retry(0)}, {}, 1), ({}, {"retry": Retry(2, base=0)}, 3)],
    ids=["the queue's", "the task's", "the call's"],
)
async def test_the_default_of_a_queue_is_behind_task_and_call(
    store: Store, of_task: TaskOptions, of_call: JobOptions, expected: int
) -> None:
    queue = Queue("defaults", store.url)

    @queue.task(**of_task)
    async def breaks() -> None:
        raise ValueError("boom")

    async with queue:
        await store.declare(queue.qname, QueueConfig(defaults=JobDefaults(max_retries=1)))
        job = await breaks.options(**of_call).enqueue()
        assert await runs(queue, job) == expected
