"""One live worker per name, and operators' requests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import msgspec
import pytest

from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.engine.identity import Identity, is_gone
from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.base import Store

from .kit import Bench, eventually, worker_on


async def listed(store: Store, bench: Bench) -> WorkerRecord:
    (record,) = await store.workers(bench.qname)
    return record


async def test_a_second_live_worker_of_a_name_is_refused(bench: Bench, store: Store) -> None:
    async with bench.worker(name="w"):
        before = await listed(store, bench)
        with pytest.raises(
            ConfigError, match=rf"a worker named 'w' is alive \(process {os.getpid()} on"
        ):
            await bench.worker(name="w").run()
        assert (await listed(store, bench)).incarnation == before.incarnation
    async with bench.worker(name="w"):  # it has signed off
        assert (await listed(store, bench)).incarnation != before.incarnation


async def test_a_worker_that_does_not_start_leaves_its_name_nowhere(
    bench: Bench, store: Store
) -> None:
    async with open_store("memory://elsewhere") as elsewhere:
        beside = Bench(elsewhere)
        async with bench.worker(name="w"):
            with pytest.raises(ConfigError, match="is alive"):
                await worker_on(beside, bench, name="w").run()
            assert await elsewhere.workers() == []


async def test_a_displaced_worker_learns_it_at_its_next_beat_and_stops(
    bench: Bench, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @bench.task
    async def work() -> None:
        begun.set()
        await go.wait()

    id = await bench.add("work")
    running = asyncio.ensure_future(bench.worker(name="w", settings={"beat_ms": 20}).run())
    await asyncio.wait_for(begun.wait(), 20)
    other = msgspec.structs.replace(await listed(store, bench), incarnation="another")
    await store.beat(other, ttl_ms=60_000, displace=True)
    await eventually(lambda: "another worker took its name" in caplog.text)
    go.set()  # its job may finish: its lease is still valid
    await asyncio.wait_for(running, 20)
    assert (await bench.get(id)).state is State.COMPLETED
    assert (await listed(store, bench)).incarnation == "another"


async def test_a_drained_worker_finishes_what_it_runs_and_stays_until_it_is_resumed(
    bench: Bench, store: Store
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @bench.task
    async def work() -> None:
        begun.set()
        await go.wait()

    async def shown(draining: bool) -> bool:
        return (await listed(store, bench)).draining is draining

    first = await bench.add("work")
    async with bench.worker(name="w", settings={"beat_ms": 20}) as worker:
        await asyncio.wait_for(begun.wait(), 20)
        assert await store.ask_worker("w", "drain")
        await eventually(lambda: shown(True))
        go.set()
        await bench.ended(first)
        second = await bench.add("work")
        worker.pause()
        worker.resume()  # the program's own pause is another matter
        seen = (await listed(store, bench)).seen_ms

        async def beaten() -> bool:
            return (await listed(store, bench)).seen_ms > seen

        await eventually(beaten)
        assert (await bench.get(second)).state is State.WAITING
        assert await store.ask_worker("w", "resume")
        await bench.ended(second)
        await eventually(lambda: shown(False))


# ── whose process is gone ──


def test_a_process_that_has_ended_is_gone_and_one_that_lives_is_not() -> None:
    record = Identity("w").record((), 1)
    assert not is_gone(record)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = msgspec.structs.replace(record, pid=child.pid)
    assert not is_gone(theirs)
    child.kill()
    child.communicate()
    assert is_gone(theirs)


def test_an_earlier_process_with_this_ones_number_is_gone() -> None:
    machine, _, token = Identity("w").incarnation.split(".")
    record = msgspec.structs.replace(
        Identity("w").record((), 1), incarnation=f"{machine}.00000000.{token}"
    )
    assert is_gone(record)


def test_of_another_machine_nobody_knows() -> None:
    record = msgspec.structs.replace(
        Identity("w").record((), 1), incarnation="ffffffff.00000000.1", pid=2**22 + 1
    )
    assert not is_gone(record)
