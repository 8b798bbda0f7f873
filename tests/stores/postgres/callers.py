"""What tests of callers' transactions share: a task, and looks at what a queue contains."""

from __future__ import annotations

from typing import Any

from jobq import Job, Queue


def add_to(queue: Queue, **options: Any) -> Any:
    """A task that adds two numbers."""

    @queue.task(**options)
    async def add(a: int, b: int = 1) -> int:
        return a + b

    return add


async def ids(queue: Queue) -> set[str]:
    """The ids of all jobs of a queue."""
    return {info.id async for info in queue.find()}


async def events(queue: Queue) -> list[str]:
    """The kinds of all events of a queue's jobs, in order."""
    return [str(e.kind) async for e in queue.events(after="0", follow=False) if e.job]


async def active(*jobs: Job[Any]) -> bool:
    """Whether all these jobs are running."""
    return all([(await job.info()).state == "active" for job in jobs])
