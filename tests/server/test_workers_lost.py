"""Pushes, streams, workers and servers get lost. Jobs do not, and no job is counted twice."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobq.client.connection import Session
from jobq.core.records.jobs import Settled
from jobq.errors import StoreUnavailable
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.server.config import ServerSettings
from jobq.server.context import Proof, ServerContext
from jobq.server.handlers import Caller
from jobq.server.workers import WorkerService
from jobq.testing import FakeWorker
from tests.server.worker_kit import SHORT_MS, Place, ids, serving
from tests.waiting import nothing_happens, until

UNCHANGED = ("waiting", 0, 0)
"""State, failures and stalls of a job that was released."""


async def standing(place: Place, id: str) -> tuple[str, int, int]:
    """The state, failures and stalls of a job."""
    record = await place.get(id)
    return record.state.value, record.failures, record.stalls


async def test_a_broken_stream_releases_nothing_by_itself() -> None:
    async with (
        serving() as place,
        FakeWorker(place.address, ["mail"], confirms=False) as worker,
    ):
        await place.put("a")
        await worker.job()
        await worker.break_stream()
        await nothing_happens(0.3, "the job would be waiting")
        assert await place.states("a") == ["active"]


async def test_a_worker_that_reconnects_keeps_the_job_it_names() -> None:
    async with (
        serving() as place,
        FakeWorker(place.address, ["mail"], confirms=False) as worker,
    ):
        await place.put("a")
        job = await worker.job()
        await worker.break_stream()
        await worker.open_stream(running=[job])
        await nothing_happens(0.2, "the job would be waiting")
        assert await worker.complete(job)
        assert await place.kinds("a") == ["accepted", "started", "completed"]


async def test_a_job_that_its_worker_does_not_name_is_released_and_pushed_again() -> None:
    async with (
        serving() as place,
        FakeWorker(place.address, ["mail"], confirms=False) as worker,
    ):
        await place.put("a")
        await worker.job()
        await worker.break_stream()
        await worker.open_stream(running=[])
        again = await worker.job()
        assert (again.id, again.attempt, again.failures, again.stalls) == ("a", 2, 0, 0)
        assert await place.kinds("a") == ["accepted", "started", "released", "started"]


async def test_a_confirmed_job_that_is_not_named_waits_for_the_end_of_its_lease() -> None:
    async with (
        serving(lease_ms=SHORT_MS, upkeep=True) as place,
        FakeWorker(place.address, ["mail"], heartbeats=False) as worker,
    ):
        await place.put("a")
        await worker.job()
        await nothing_happens(0.1, "the confirmation arrives")
        await worker.break_stream()
        await worker.open_stream(running=[])
        again = await worker.job()
        assert (again.attempt, again.stalls) == (2, 1)


async def test_a_job_that_nobody_confirms_is_released_when_its_lease_ends() -> None:
    async with serving(lease_ms=SHORT_MS, upkeep=True) as place:
        worker = FakeWorker(place.address, ["mail"], confirms=False, heartbeats=False)
        async with worker:
            await place.put("a")
            await worker.job()
            await worker.vanish()
            await until(lambda: _is(place, "a", UNCHANGED), "the job without a stall", seconds=5)
            assert await place.kinds("a") == ["accepted", "started", "released"]


async def _is(place: Place, id: str, wanted: tuple[str, int, int]) -> bool:
    return await standing(place, id) == wanted


async def test_a_job_that_kills_its_worker_stalls_although_it_ran_for_a_moment_only() -> None:
    async with serving(lease_ms=SHORT_MS, upkeep=True) as place:
        worker = FakeWorker(place.address, ["mail"], heartbeats=False)
        async with worker:
            await place.put("a")
            await worker.job()
            await nothing_happens(0.1, "the confirmation arrives")
            await worker.vanish()
            await until(lambda: _is(place, "a", ("waiting", 0, 1)), "the stall", seconds=10)


async def test_heartbeats_at_another_server_keep_a_job_whose_confirmation_was_lost() -> None:
    async with serving(lease_ms=SHORT_MS, upkeep=True) as place, second(place) as other:
        worker = FakeWorker(place.address, ["mail"], confirms=False, heartbeats=False)
        async with worker:
            await place.put("a")
            job = await worker.job()
            await worker.break_stream()
            elsewhere = FakeWorker(other, ["mail"], name=worker.name)
            elsewhere.session = worker.session
            elsewhere.running = {job.id: job}
            for _ in range(6):
                await elsewhere.heartbeat()
                await nothing_happens(SHORT_MS / 3000, "the first server would release the job")
            assert await place.kinds("a") == ["accepted", "started"]
            assert await elsewhere.complete(job)


@asynccontextmanager
async def second(place: Place) -> AsyncIterator[str]:
    """The address of another server on the same store."""
    from jobq.server.context import ServerContext
    from jobq.server.host import Host
    from jobq.server.workers import WorkerService

    context = ServerContext(place.store, place.host.context.settings)
    async with Host(context, [WorkerService]) as host:
        yield f"127.0.0.1:{host.port}"


async def test_a_worker_uses_two_servers_as_one() -> None:
    async with serving(lease_ms=SHORT_MS) as place, second(place) as other:
        async with FakeWorker(place.address, ["mail"], heartbeats=False) as worker:
            elsewhere = FakeWorker(other, ["mail"], name=worker.name)
            elsewhere.session = worker.session
            for id in ("a", "b", "c"):
                await place.put(id)
                job = await worker.job()
                elsewhere.running = {job.id: job}
                assert list((await elsewhere.heartbeat()).changed) == []
                assert await elsewhere.complete(job)
                worker.running.clear()
                worker.grant()
            await place.store.ask_worker(worker.name, "drain")
            await worker.changed()
            assert worker.requests == ["drain"]
        assert await place.states("a", "b", "c") == ["completed"] * 3


async def test_a_worker_moves_to_another_server_with_its_jobs() -> None:
    async with (
        serving() as place,
        second(place) as other,
        FakeWorker(place.address, ["mail"], heartbeats=False) as worker,
    ):
        await place.put("a", "b")
        job = await worker.job()
        await worker.vanish()
        elsewhere = FakeWorker(other, ["mail"], name=worker.name, heartbeats=False)
        elsewhere.session = worker.session
        await elsewhere.open_stream(running=[job])
        assert await elsewhere.complete(job)
        assert (await elsewhere.job()).id == "b"
        await elsewhere.vanish()


async def test_a_late_report_is_refused() -> None:
    async with serving(lease_ms=SHORT_MS, upkeep=True) as place:
        async with (
            FakeWorker(place.address, ["mail"], heartbeats=False) as slow,
        ):
            await place.put("a")
            late = await slow.job()
            async with FakeWorker(place.address, ["mail"]) as fast:
                job = await fast.job()
                assert (job.id, job.stalls) == ("a", 1)
                assert not await slow.complete(late, "late")
                assert await fast.complete(job, "in time")
        assert (await place.get("a")).result == b'"in time"'


async def test_a_job_on_its_last_chance_comes_alone() -> None:
    async with serving() as place:
        await place.put("bad", max_stalls=1)
        await place.stall("bad", 1)
        await place.put("a", "b", priority=1)
        await place.put("c")
        async with FakeWorker(place.address, ["mail"], concurrency=3) as worker:
            a, b = await worker.job(), await worker.job()
            assert ids([a, b]) == ["a", "b"]
            await nothing_happens(0.2, "the job on its last chance would arrive")
            assert worker.arrived() == 0
            await worker.complete(a)
            await nothing_happens(0.2, "the job on its last chance would arrive")
            assert worker.arrived() == 0
            await worker.complete(b)
            bad = await worker.job()
            assert (bad.id, bad.last_chance) == ("bad", True)
            await nothing_happens(0.2, "another job would arrive beside it")
            assert worker.arrived() == 0
            await worker.complete(bad)
            assert (await worker.job()).id == "c"


async def test_a_server_that_stops_ends_its_streams_and_keeps_running_jobs() -> None:
    async with (
        serving() as place,
        FakeWorker(place.address, ["mail"], heartbeats=False) as worker,
    ):
        await place.put("a")
        job = await worker.job()
        stopping = asyncio.create_task(place.host.stop())
        with pytest.raises(StoreUnavailable, match="the server stops"):
            await worker.job()
        await asyncio.wait_for(stopping, 10)
        assert await place.states("a") == ["active"]
        async with second(place) as other:
            elsewhere = FakeWorker(other, ["mail"], name=worker.name)
            assert await elsewhere.complete(job)
        await worker.vanish()


async def test_jobs_that_were_claimed_and_not_sent_are_released_at_once() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        (service,) = place.host.services
        stream = next(iter(service._streams.values()))  # type: ignore[attr-defined]
        settle, claimed = stream._store.settle, asyncio.Event()
        gate = asyncio.Event()

        async def slow(*args: object, **kwargs: object) -> object:
            settled = await settle(*args, **kwargs)
            if settled.leases:
                claimed.set()
                await gate.wait()
            return settled

        stream._store.settle = slow
        try:
            await place.put("a")
            await asyncio.wait_for(claimed.wait(), 10)
            await worker.break_stream()
            await until(lambda: not service._streams, "the end of the stream")  # type: ignore[attr-defined]
            gate.set()
            await until(lambda: _is(place, "a", UNCHANGED), "the job without a stall", seconds=5)
        finally:
            del stream._store.settle


SERVER = """
import asyncio, sys
from jobq.server.context import ServerContext
from jobq.server.host import Host
from jobq.server.config import ServerSettings
from jobq.server.workers import WorkerService
from jobq.stores import open_store

async def main(url, port, lease_ms):
    async with open_store(url) as store:
        settings = ServerSettings(grpc_port=int(port), lease_ms=int(lease_ms))
        async with Host(ServerContext(store, settings), [WorkerService]) as host:
            print(host.port, flush=True)
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


def started(url: str, lease_ms: int = SHORT_MS) -> tuple[subprocess.Popen[str], int]:
    """A server in a process of its own, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, url, "0", str(lease_ms)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


async def test_a_server_that_is_killed_costs_its_workers_nothing_but_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    first, port = started(url, lease_ms=15_000)
    try:
        async with serving(url=url) as place:
            worker = FakeWorker(f"127.0.0.1:{port}", ["mail"], concurrency=2, heartbeats=False)
            await worker.register()
            await worker.open_stream()
            await place.put("a", "b", "c")
            a, b = await worker.job(), await worker.job()
            first.send_signal(signal.SIGKILL)
            with pytest.raises(StoreUnavailable):
                await worker.job()
            elsewhere = FakeWorker(place.address, ["mail"], name=worker.name, concurrency=2)
            elsewhere.session = worker.session
            await elsewhere.open_stream(running=[a, b])
            assert await elsewhere.report(
                *(pb.Result(lease=_ref(job), completed=pb.Completed()) for job in (a, b))
            )
            await elsewhere.complete(await elsewhere.job())
            assert await place.states("a", "b", "c") == ["completed"] * 3
            assert [(await place.get(id)).stalls for id in ("a", "b", "c")] == [0, 0, 0]
            await elsewhere.vanish()
            await worker.vanish()
    finally:
        first.kill()
        first.communicate()


def _ref(job: pb.Lease) -> pb.LeaseRef:
    return pb.LeaseRef(queue=job.queue, id=job.id, token=job.token)


@pytest.mark.parametrize(("call", "state"), [("", "waiting"), ("mine", "active")])
async def test_a_job_is_released_if_its_caller_goes_and_cannot_repeat_the_claim(
    call: str, state: str
) -> None:
    claimed, go_on = asyncio.Event(), asyncio.Event()
    async with serving() as place:
        await place.put("a")
        settle = place.store.settle

        async def slow(*args: Any, **options: Any) -> Settled:
            found = await settle(*args, **options)
            claimed.set()
            await go_on.wait()
            return found

        context = ServerContext(place.store, ServerSettings())
        service, store = WorkerService(context), context.guarded_by(Proof())
        rpc = SimpleNamespace(time_remaining=lambda: None, invocation_metadata=lambda: ())
        caller = Caller(Session(store), store, rpc, Proof())  # type: ignore[arg-type]
        request = pb.ClaimRequest(queues=["mail"], lease_ms=60_000, call=call)
        place.store.settle = slow  # type: ignore[method-assign]
        claim = asyncio.create_task(service.Claim(request, caller))
        await claimed.wait()
        place.store.settle = settle  # type: ignore[method-assign]
        claim.cancel()
        await asyncio.wait([claim])
        go_on.set()
        await asyncio.gather(*service._tasks.running)
        assert await place.states("a") == [state]
        assert (await place.get("a")).stalls == 0
