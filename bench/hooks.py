"""What hooks cost: processor time per job without hooks, and with one of each kind.

    python -m bench.hooks [--jobs 5000] [--rounds 10]

All variants run in turn in one process on memory://, several rounds, and the best round of each
counts. So the figures can be compared with each other even on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

from jobq import CallNext, CurrentJob, Depends, EnqueueNext, EnqueueRequest, Job, Queue, Worker

CONCURRENCY = 100


async def passes(job: CurrentJob, call_next: CallNext) -> object:
    """A middleware that does nothing."""
    return await call_next(job)


async def passes_on(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
    """An enqueue middleware that does nothing."""
    return await call_next(request)


def number() -> int:
    """A plain dependency."""
    return 1


async def opened() -> AsyncIterator[int]:
    """A dependency that cleans up."""
    yield 1


async def run_jobs(jobs: int, *, depends: Callable[[], Any] | None = None, **hooks: Any) -> float:
    """Enqueue jobs, then run all of them. Returns microseconds per run."""
    done = asyncio.Event()
    left = jobs
    async with Queue("bench", f"memory://{uuid4().hex}", middleware=hooks.get("queue")) as queue:

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        if depends is None:

            @queue.task(name="work")
            async def work() -> None:
                count()

        else:

            @queue.task(name="work")
            async def depending(value: int = Depends(depends)) -> None:
                count()

        await queue.task_by_name("work").enqueue_many([()] * jobs)
        gc.collect()
        async with Worker(queue, concurrency=CONCURRENCY, middleware=hooks.get("worker")):
            start = time.process_time()
            await done.wait()
            took = time.process_time() - start
    return took / jobs * 1e6


async def enqueue_jobs(jobs: int, *, middleware: Any = None) -> float:
    """Enqueue jobs one after the other. Returns microseconds per job."""
    url = f"memory://{uuid4().hex}"
    async with Queue("bench", url, enqueue_middleware=middleware) as queue:

        @queue.task
        async def work() -> None: ...

        gc.collect()
        start = time.process_time()
        for _ in range(jobs):
            await work.enqueue()
        return (time.process_time() - start) / jobs * 1e6


VARIANTS: dict[str, Callable[[int], Any]] = {
    "run, no hooks": run_jobs,
    "run, no hooks (again)": run_jobs,
    "run, one middleware of the queue": lambda n: run_jobs(n, queue=[passes]),
    "run, one middleware of the worker": lambda n: run_jobs(n, worker=[passes]),
    "run, three middleware": lambda n: run_jobs(n, worker=[passes], queue=[passes, passes]),
    "run, one plain dependency": lambda n: run_jobs(n, depends=number),
    "run, one dependency with clean-up": lambda n: run_jobs(n, depends=opened),
    "enqueue, no hooks": enqueue_jobs,
    "enqueue, one middleware": lambda n: enqueue_jobs(n, middleware=[passes_on]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    best = dict.fromkeys(VARIANTS, float("inf"))
    for _ in range(options.rounds):
        for name, variant in VARIANTS.items():
            best[name] = min(best[name], asyncio.run(variant(options.jobs)))
    for name, took in best.items():
        base = best["run, no hooks" if name.startswith("run") else "enqueue, no hooks"]
        print(f"{name:36} {took:7.2f} µs per job  {took - base:+6.2f} µs  x{took / base:.3f}")


if __name__ == "__main__":
    main()
