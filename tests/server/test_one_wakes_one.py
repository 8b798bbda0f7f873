"""One job wakes one idle worker of a fleet behind a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.core.records.jobs import Claim, JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.server.processes import server_process
from tests.stores.valkey import servers
from tests.waiting import nothing_happens

QUEUE = QueueName("default", "mail")
DEPUTIES_S = 1.2
"""Seconds after which the last deputy has looked (stores/relational/signals.py)."""


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a server on this kind of store."""
    with contextlib.ExitStack() as stack:
        store = f"sqlite:///{tmp_path}/jobs.db"
        if request.param == "valkey":
            store = stack.enter_context(servers.running(servers.valkey_or_skip(), tmp_path)).url
        yield stack.enter_context(server_process(store)).url


async def asleep(store: Store, worker: str) -> asyncio.Task[bool]:
    wanted = Claim(queues=(QUEUE,), limit=1, lease_ms=60_000)
    settled = await store.settle([], worker=worker, call="1", then=wanted)
    assert settled.asleep

    async def sleep() -> bool:
        return await store.sleep([QUEUE], worker=worker, slots=1, timeout_ms=10_000)

    return asyncio.create_task(sleep(), name=worker)


async def put(store: Store, id: str) -> None:
    await store.put([JobSpec(queue=QUEUE, id=id, name="n", payload=b"[[],{}]")])


async def test_a_job_that_is_claimed_at_once_wakes_nobody_else(url: str) -> None:
    async with open_store(url) as store:
        naps = [await asleep(store, f"w{n}") for n in range(6)]
        await put(store, "1")
        done, rest = await asyncio.wait(naps, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        (woken,) = done
        wanted = Claim(queues=(QUEUE,), limit=1, lease_ms=60_000)
        settled = await store.settle([], worker=woken.get_name(), call="2", then=wanted)
        assert [lease.id for lease in settled.leases] == ["1"]
        await nothing_happens(DEPUTIES_S, "a deputy wakes")
        assert not any(nap.done() for nap in rest)

        await put(store, "2")  # nobody claims it: others look for it
        async with asyncio.timeout(5):
            # The one that was woken, and two deputies.
            for _, nap in zip(range(3), asyncio.as_completed(rest), strict=False):
                assert await nap
        for nap in rest:
            nap.cancel()
