"""Tasks with middleware and a lifespan, which tests run in child processes and as programs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobq import (
    CallNext,
    CurrentJob,
    Depends,
    EnqueueNext,
    EnqueueRequest,
    Job,
    Permissions,
    Queue,
    Reject,
    Retry,
    Snooze,
    current_job,
)

trace: list[str] = []
"""What the middleware saw, in the worker."""


async def watches(job: CurrentJob, call_next: CallNext) -> object:
    trace.append(f"begins {job.name}")
    try:
        result = await call_next(job)
    except BaseException as error:
        trace.append(f"sees {type(error).__name__}: {error}")
        if job.meta.get("swallow"):
            return "swallowed"
        raise
    trace.append(f"gets {result!r}")
    return f"changed {result}" if job.meta.get("change") else result


async def stamped(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
    await asyncio.sleep(0)
    request.meta["enqueued by"] = str(os.getpid())
    return await call_next(request)


queue = Queue("hooked", "memory://hooked", middleware=[watches], enqueue_middleware=[stamped])


@dataclass
class Resources:
    pid: int
    ticks: int = 0


@asynccontextmanager
async def lifespan() -> AsyncIterator[Resources]:
    resources = Resources(os.getpid())

    async def tick() -> None:
        while True:
            resources.ticks += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(tick())
        yield resources
        task.cancel()
    if (folder := os.environ.get("HOOKED_FOLDER")) is not None:
        Path(folder, f"left-{os.getpid()}").touch()


@contextmanager
def broken_in_children(worker: Any) -> Iterator[None]:
    if worker is None:
        raise OSError("no database here")
    yield


@queue.task(executor="process")
def add(a: int, b: int) -> int:
    return a + b


@queue.task(executor="process", retry=Retry(1, base=0))
async def fails() -> None:
    raise LookupError("gone")


@queue.task(executor="process")
def rejects() -> None:
    raise Reject("never")


@queue.task(executor="process")
async def snoozes() -> str:
    job = current_job()
    if job.saved is None:
        raise Snooze(0.001, saved="kept")
    return str(job.saved)


@queue.task(executor="process", retry=0)
def dies() -> None:
    os._exit(3)


@queue.task(executor="process")
async def waits() -> Any:
    return await current_job().wait_for_signal("go")


@queue.task(executor="process", retry=0)
async def hangs() -> None:
    await asyncio.Event().wait()


@queue.task(executor="process")
def parent() -> list[Any]:
    job = current_job()
    job.sync.add(child)
    return [os.getpid(), *job.sync.wait_for_children().values()]


@queue.task(executor="process")
async def child() -> str:
    return current_job().meta["enqueued by"]


@queue.task(executor="process", retry=0)
async def state() -> list[int]:
    resources = current_job().lifespan(Resources)
    before = resources.ticks
    left = asyncio.create_task(asyncio.Event().wait())  # a job's task ends with the job
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not left.done()
    tasks = [task for task in asyncio.all_tasks() if "Event.wait" in repr(task)]
    return [resources.pid, os.getpid(), resources.ticks - before, len(tasks)]


@queue.task(executor="process", retry=0, permissions=Permissions(read=[sys.prefix]))
def confined() -> None:
    current_job().lifespan(Resources)


async def pid_and_resources() -> AsyncIterator[list[int]]:
    yield [os.getpid(), current_job().lifespan(Resources).pid]


@queue.task(executor="process", retry=0)
def depends(first: int, pids: list[int] = Depends(pid_and_resources)) -> list[int]:
    return [first, os.getpid(), *pids]


@queue.task(executor="process", retry=0)
async def depends_async(first: int, pids: list[int] = Depends(pid_and_resources)) -> list[int]:
    return [first, os.getpid(), *pids]


program = queue.command("program", [sys.executable, "-c", "print(41 + 1)"])
failing_program = queue.command(
    "failing_program", [sys.executable, "-c", "raise SystemExit(4)"], retry=0
)
