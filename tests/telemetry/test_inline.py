"""Telemetry in tests of users: jobs that run inline, one after the other in one context."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from jobq import Queue, testing
from jobq.otel import Telemetry
from jobq.prometheus import Metrics
from jobq.sentry import Sentry


async def test_each_job_that_runs_inline_is_counted(url: str) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    queue = Queue("mail", url, middleware=[Telemetry().run, Sentry().run, metrics.run])

    @queue.task(retry=0)
    async def send(to: str) -> None:
        if not to:
            raise ValueError("no address")

    async with testing.use(queue) as jobs:
        for to in ("ann", "bob"):
            await send.enqueue(to)
        await jobs.drain(inline=True)
        await send.enqueue("")
        with pytest.raises(ValueError, match="no address"):
            await jobs.drain(inline=True)
    labels = {"tenant": "default", "queue": "mail", "task": "send"}
    found = {
        outcome: registry.get_sample_value("jobq_runs_total", {**labels, "outcome": outcome})
        for outcome in ("completed", "failed")
    }
    assert found == {"completed": 2, "failed": 1}
