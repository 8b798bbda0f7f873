"""A worker that was frozen must not start jobs that other workers have run meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jobq.core.records.jobs import Claim, Complete
from jobq.core.records.states import State
from jobq.engine.handler import BatchSize
from jobq.engine.keeper import Renewer
from jobq.engine.run import Run
from jobq.stores import open_store
from tests.stores.valkey import servers
from tests.waiting import takes

from .kit import Bench, Proxy, eventually, soon


class Frozen:
    """The worker's clock, as the runs see it: `frozen` seconds ahead, as after a freeze."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.frozen = 0.0
        self._offset = time.monotonic() - time.perf_counter()
        patch.setattr("jobq.engine.runner.monotonic", self.monotonic)
        patch.setattr("jobq.engine.run.time", self)

    def monotonic(self) -> float:
        return time.perf_counter() + self._offset + self.frozen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Frozen:
    return Frozen(monkeypatch)


@pytest.mark.parametrize("kind", ["coroutine", "function", "batch"])
async def test_what_was_claimed_before_a_freeze_is_neither_started_nor_settled(
    bench: Bench, line: Proxy, clock: Frozen, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    async def coroutine(n: int) -> None:
        ran.append(n)

    def function(n: int) -> None:
        ran.append(n)

    async def batch(items: list[int]) -> list[int]:
        ran.extend(items)
        return items

    bench.task(coroutine)
    bench.task(function)
    bench.task(batch, batch=BatchSize(10))
    froze = asyncio.Event()

    async def freeze(method: str, found: Any) -> None:
        """Freeze when the leases have arrived, before a handler is called."""
        if method == "settle" and found.leases and not froze.is_set():
            froze.set()
            asyncio.get_running_loop().call_soon(setattr, clock, "frozen", 100.0)

    line.after = freeze
    ids = await bench.add_many(kind, 3)
    async with bench.through(line).worker(concurrency=10, lease=60) as worker:
        await soon(froze)
        await eventually(lambda: worker._stations[0].runner.open == 0)
        assert ran == []
        assert worker._stations[0].runner.held == set()
        assert [(await bench.get(id)).state for id in ids] == [
            State.ACTIVE
        ] * 3  # until another worker finds that they expired
        await eventually(
            lambda: worker._stations[0].runner._slots.free == 10
        )  # none of their slots is lost
    assert not [outcomes for outcomes, _ in line.settles() if outcomes]
    assert caplog.text.count("was not started: its lease ended before its handler was called") == 3


async def test_a_function_is_checked_again_in_its_thread(
    bench: Bench, clock: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    check = Run.check

    def freeze_first(run: Run) -> None:
        assert threading.current_thread() is not threading.main_thread()
        clock.frozen = 100.0
        check(run)

    @bench.task
    def function(n: int) -> None:
        ran.append(n)

    monkeypatch.setattr(Run, "check", freeze_first)
    id = await bench.add("function", 1)
    async with bench.worker(concurrency=10, lease=60) as worker:
        await eventually(lambda: clock.frozen and worker._stations[0].runner.open == 0)
        assert (ran, (await bench.get(id)).state) == ([], State.ACTIVE)


async def test_a_lease_that_was_renewed_meanwhile_is_started(bench: Bench, line: Proxy) -> None:
    """A job waits in its batch for longer than a lease, and was renewed: the batch starts."""
    calls: list[list[int]] = []

    async def work(items: list[int]) -> list[int]:
        calls.append(items)
        return items

    bench.task(work, batch=BatchSize(2, 60_000))
    old = await bench.add("work", 1)
    async with bench.through(line).worker(concurrency=10, lease=60) as worker:
        held = worker._stations[0].runner.held
        (run,) = await eventually(lambda: set(held))
        run.since -= 61
        renewer = Renewer(
            await bench.store(), held, lease_ms=60_000, report=lambda run, state: None
        )
        await renewer.renew(older_than_s=60)
        young = await bench.add("work", 2)
        records = [await bench.ended(id) for id in (old, young)]
    assert [(each.state, each.attempt) for each in records] == [(State.COMPLETED, 1)] * 2
    assert calls == [[1, 2]]


async def test_a_batch_whose_keeper_was_cut_off_starts_only_those_that_are_in_time(
    bench: Bench, line: Proxy
) -> None:
    calls: list[list[int]] = []

    async def work(items: list[int]) -> list[int]:
        calls.append(items)
        return items

    bench.task(work, batch=BatchSize(2, 60_000))
    line.lose = lambda method: method == "extend"
    old = await bench.add("work", 1)
    async with bench.through(line).worker(concurrency=10, lease=60) as worker:
        await bench.all_in(State.ACTIVE, 1)
        (run,) = await eventually(lambda: set(worker._stations[0].runner.held))
        run.since -= 61
        run.renewed = 0.0
        young = await bench.add("work", 2)
        assert (await bench.ended(young)).state is State.COMPLETED
        assert (await bench.get(old)).state is State.ACTIVE
    assert calls == [[2]]


_APP = """
import asyncio, json, os, signal, sys, time
from jobq import Queue, Worker, current_job

queue = Queue("work", sys.argv[1], tenant=sys.argv[2])
started = open(sys.argv[3], "a", buffering=1)

@queue.task
async def freezes() -> None:
    # Behind this one stand tasks that were claimed with it and have not had their first step.
    started.write("freezes\\n")
    os.kill(os.getpid(), signal.SIGSTOP)

@queue.task
async def work(n: int) -> None:
    started.write(json.dumps([n, current_job().attempt, time.time()]) + "\\n")

async def main():
    async with queue:
        await Worker(queue, concurrency=20, lease=1).run()

asyncio.run(main())
"""


async def test_a_worker_that_wakes_from_a_freeze_starts_nothing_that_others_have_completed(
    tmp_path: Path,
) -> None:
    app, started = tmp_path / "app.py", tmp_path / "started"
    app.write_text(_APP)
    # On a server: a process frozen inside a transaction of SQLite holds the file's lock.
    with servers.running(servers.valkey_or_skip(), tmp_path) as server:
        await _wakes(server.url, app, started)


async def _wakes(url: str, app: Path, started: Path) -> None:
    async with open_store(url) as store:
        bench = Bench(store)
        await bench.add("freezes")
        await bench.add_many("work", 10)
        command = (sys.executable, str(app), bench.url, bench.qname.tenant, str(started))
        process = await asyncio.create_subprocess_exec(*command)
        try:
            await bench.all_in(State.ACTIVE, 11)
            await eventually(lambda: started.exists() and "freezes" in started.read_text())
            completed = 0
            while completed < 11:  # as another worker does, once the leases have expired
                claim = Claim(queues=(bench.qname,), limit=20, lease_ms=60_000)
                leases = (
                    await store.settle(
                        [], worker="other", call=f"c{time.monotonic_ns()}", then=claim
                    )
                ).leases
                outcomes = [
                    Complete(queue=bench.qname, id=lease.id, token=lease.token) for lease in leases
                ]
                await store.settle(outcomes, worker="other", call=f"s{time.monotonic_ns()}")
                completed += len(leases)
                await takes(0.02)
            process.send_signal(signal.SIGCONT)
            last = await bench.add("work", 99)
            assert (await bench.ended(last)).state is State.COMPLETED
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 20) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    lines = [json.loads(line)[0] for line in started.read_text().splitlines() if line != "freezes"]
    assert lines == [99]
