"""WorkerService on every kind of store, with two servers that have a handle each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobKey
from jobq.stores import open_store
from jobq.testing import FakeWorker
from tests.server.worker_kit import QUEUE, Place, serving
from tests.stores.valkey import servers
from tests.waiting import nothing_happens, until


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of the test's store."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
    else:
        with servers.running(servers.valkey_or_skip(), tmp_path) as server:
            yield server.url


async def test_a_worker_uses_two_servers_on_one_store(url: str) -> None:
    async with (
        serving(url=url, lease_ms=6_000) as first,
        serving(url=url, lease_ms=6_000) as second,
        open_store(url) as outside,
        FakeWorker(first.address, ["mail"], name="w1", heartbeats=False) as worker,
    ):
        producer = Place(outside, first.host)
        elsewhere = FakeWorker(second.address, ["mail"], name="w1")
        elsewhere.session = worker.session

        await nothing_happens(0.2, "the stream falls asleep")
        await producer.put("woken")
        job = await worker.job(timeout=3)  # a stream looks by itself after 5 s
        elsewhere.running = {job.id: job}
        assert list((await elsewhere.heartbeat()).changed) == []
        assert await elsewhere.complete(job, 7)
        worker.running.clear()
        worker.grant()
        assert (await producer.get("woken")).result == b"7"

        worker.confirms = False
        await producer.put("lost")
        await worker.job()
        await worker.break_stream()
        worker.confirms = True
        await worker.open_stream(running=[])
        again = await worker.job()
        assert (again.id, again.attempt, again.stalls, again.failures) == ("lost", 2, 0, 0)

        await outside.alter([Cancel(job=JobKey(QUEUE, "lost"))])
        await worker.changed(timeout=3)
        assert worker.cancelled == ["lost"]
        await worker.fail(again)
        assert await producer.states("lost") == ["cancelled"]

        await outside.ask_worker("w1", "drain")
        await worker.heartbeat()
        await producer.put("later")
        await nothing_happens(0.3, "the job would be active")
        assert await producer.states("later") == ["waiting"]
        await outside.ask_worker("w1", "resume")
        await worker.heartbeat()
        assert await worker.complete(await worker.job())
        await until(lambda: _completed(producer, "later"), "the last job")


async def _completed(place: Place, id: str) -> bool:
    return (await place.get(id)).state == "completed"
