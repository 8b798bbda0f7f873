"""Fuzzed steps of a running handler: each is recorded or refused, and what is recorded stays."""

from __future__ import annotations

from random import Random
from typing import Any

from jobq import JobqError, Queue, Reject, Retry, Worker, current_job
from tests.fuzz.strange import anything, mostly
from tests.fuzz.test_calls import CALLS, SEED

STEPS = min(CALLS // 10, 900)


async def test_a_fuzzed_step_is_recorded_or_refused_and_harms_no_other(url: str) -> None:
    random = Random(SEED)
    queue = Queue("stepped", url)
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}

    async def strange_step(n: int) -> None:
        """Whatever this raises but an error of jobq or Reject is a bug."""
        job, value = current_job(), anything(random)
        try:
            name = mostly(f"step {n}", f"☃ {n}", "twice")(random)
            result = await job.step(name, mostly(lambda: value)(random))
            first[str(name)] = result
        except (JobqError, Reject):
            pass
        try:
            await job.save(value)
        except JobqError:
            pass

    @queue.task(retry=Retry(1, base=0))
    async def order() -> None:
        job = current_job()
        if job.attempt == 1:
            for n in range(STEPS):
                await strange_step(n)
            await job.save("done")
            raise ValueError("again")
        assert job.saved == "done"
        for name in first:
            second[name] = await job.step(name, lambda: "executed again")

    async with queue, Worker(queue):
        job = await order.enqueue()
        info = await job.wait(timeout=60)
    assert info.state == "completed", info.failure
    assert len(first) > STEPS // 10
    assert repr(second) == repr(first)
