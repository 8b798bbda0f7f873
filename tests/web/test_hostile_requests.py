"""Requests that nobody sends by accident: they are refused, and cost the dashboard little."""

from __future__ import annotations

import time

from jobq.core.records import Claim, Fail, Failure, JobSpec, QueueName
from jobq.stores.base import Store
from tests.web.conftest import Make

MAIL = {"tenant": "acme", "queue": "mail"}


async def test_a_pattern_with_many_stars_does_not_stop_the_dashboard(
    memory: Store, browse: Make
) -> None:
    queue = QueueName("acme", "slow")
    await memory.put([JobSpec(queue=queue, id="x", name="send", payload=b"[[],{}]")])
    claim = Claim(queues=(queue,), limit=1, lease_ms=60_000)
    (lease,) = (await memory.settle([], worker="v", call="1", then=claim)).leases
    failure = Failure(reason="error", type="ValueError", message="a" * 400)
    failed = Fail(queue=queue, id="x", token=lease.token, failure=failure)
    await memory.settle([failed], worker="v", call="2")
    began = time.monotonic()
    found = await browse(memory).read("jobs", tenant="acme", queue="slow", error="*a*a*a*b")
    assert found["jobs"] == []
    assert time.monotonic() - began < 1.0, "a regular expression takes 1.5 s, and 40 s with a star"
