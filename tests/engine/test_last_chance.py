"""A job whose next stall would fail it runs alone: a worker with one store."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from jobq import executors
from jobq.core.records.jobs import Claim
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq.engine.handler import BatchSize
from jobq.stores.base import Store

from .frail import Scene, frail, left
from .kit import Bench, Proxy, eventually, soon, steal

LONG = 3_600_000


async def test_nothing_is_claimed_while_it_runs_and_all_is_afterwards(
    bench: Bench, scene: Scene, line: Proxy
) -> None:
    id = await frail(bench, "alone")
    others = [await bench.add("other") for _ in range(3)]
    async with bench.through(line).worker(concurrency=10, lease=0.3):
        await soon(scene.alone)
        others.append(await bench.add("other"))
        seen = len(line.of("extend"))
        await eventually(
            lambda: len(line.of("extend")) > seen + 2
        )  # for longer than a lease, which is renewed
        assert (await bench.count(State.ACTIVE), await bench.count(State.WAITING)) == (1, 4)
        scene.end_other.set()
        scene.end_alone.set()
        for each in (id, *others):
            assert (await bench.ended(each)).state is State.COMPLETED
    assert scene.beside == [set()]


async def test_it_waits_in_its_queue_for_other_runs_to_end_and_to_be_settled(
    bench: Bench, scene: Scene, line: Proxy
) -> None:
    id = await frail(bench, "alone")
    other = await bench.add("other", priority=1)
    async with bench.through(line).worker(concurrency=10) as worker:
        await soon(scene.other)
        await left(worker)  # if `other` kills the worker now, that is no stall of this job
        assert (await bench.get(id)).state is State.WAITING
        settling, settle = asyncio.Event(), asyncio.Event()

        async def slowly(method: str, args: tuple[Any, ...]) -> None:
            if method == "settle" and args[0]:
                settling.set()
                await settle.wait()

        line.before = slowly
        scene.end_other.set()
        await soon(settling)
        await asyncio.sleep(0)
        assert not scene.alone.is_set()
        settle.set()
        await soon(scene.alone)
        assert (await bench.get(other)).state is State.COMPLETED
        scene.end_alone.set()
        assert (await bench.ended(id)).state is State.COMPLETED
    assert scene.beside == [set()]
    assert (await bench.kinds())["released"] == 0


async def test_another_worker_that_is_alone_runs_it_meanwhile(bench: Bench, scene: Scene) -> None:
    id = await frail(bench, "alone")
    await bench.add("other", priority=1)
    async with bench.worker(concurrency=10) as worker:
        await soon(scene.other)
        await left(worker)
        async with bench.worker(concurrency=10):
            await soon(scene.alone)
            scene.end_alone.set()
            assert (await bench.ended(id)).state is State.COMPLETED
        scene.end_other.set()
        after = await bench.add("other")
        assert (await bench.ended(after)).state is State.COMPLETED


async def test_after_one_lease_it_starts_beside_those_left_and_its_own_lease_is_kept(
    bench: Bench, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    id = await frail(bench, "alone")
    other = await bench.add("other", priority=1)
    async with bench.worker(concurrency=10, lease=0.4):
        await soon(scene.alone)
        assert scene.beside == [{"other"}]
        scene.end_alone.set()
        scene.end_other.set()
        records = [await bench.ended(each) for each in (id, other)]
    assert [(record.state, record.stalls) for record in records] == [
        (State.COMPLETED, 1),
        (State.COMPLETED, 0),
    ]
    assert "starts beside other jobs" in caplog.text


async def test_after_its_time_the_worker_claims_again_beside_it(bench: Bench, scene: Scene) -> None:
    id = await frail(bench, "alone")
    other = await bench.add("other")
    async with bench.worker(concurrency=10, last_chance=0.1):
        await soon(scene.alone)
        await soon(scene.other)
        scene.end_other.set()
        await bench.ended(other)
        assert scene.running == {"alone"}
        scene.end_alone.set()
        assert (await bench.ended(id)).state is State.COMPLETED


async def test_last_chances_run_one_after_the_other(bench: Bench) -> None:
    inside, most = 0, 0

    @bench.task
    async def work(n: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    bench.tasks["work"].max_stalls = 1
    store = await bench.store()
    await bench.add_many("work", 20)
    await store.declare(bench.qname, QueueConfig(max_stalls={"work": 1}))
    claim = Claim(queues=(bench.qname,), limit=20, lease_ms=1)
    assert len((await store.settle([], worker="dies", call="c", then=claim)).leases) == 20
    async with bench.worker(concurrency=10):
        await bench.all_in(State.COMPLETED, 20)
    assert most == 1
    assert (await bench.kinds())["started"] == 40


async def test_a_batch_task_gets_it_as_a_batch_of_one(bench: Bench) -> None:
    calls: list[list[int]] = []

    async def work(items: list[int]) -> list[int]:
        calls.append(items)
        return items

    bench.task(work, batch=BatchSize(10, LONG))
    id = await frail(bench, "work", 0)
    rest = [await bench.add("work", n) for n in range(1, 11)]
    async with bench.worker(concurrency=20):
        for each in (id, *rest):
            assert (await bench.ended(each)).state is State.COMPLETED
    assert sorted(calls, key=len) == [[0], list(range(1, 11))]


async def test_a_batch_that_gathers_starts_so_that_it_can_end(bench: Bench, scene: Scene) -> None:
    calls: list[list[int]] = []

    async def gather(items: list[int]) -> list[int]:
        calls.append(items)
        return items

    bench.task(gather, batch=BatchSize(10, LONG))
    await frail(bench, "alone")
    gathered = await bench.add("gather", 1, priority=1)
    scene.end_alone.set()
    async with bench.worker(concurrency=20):
        await bench.ended(gathered)
        await soon(scene.alone)
    assert (calls, scene.beside) == ([[1]], [set()])


async def test_plain_functions_wait_for_their_turn_as_well(bench: Bench, scene: Scene) -> None:
    seen: list[set[str]] = []

    @bench.task
    def plain() -> str:
        seen.append(set(scene.running))
        return threading.current_thread().name

    id = await frail(bench, "plain")
    await bench.add("other", priority=1)
    async with bench.worker(concurrency=10) as worker:
        await soon(scene.other)
        await left(worker)
        scene.end_other.set()
        assert (await bench.ended(id)).state is State.COMPLETED
    assert seen == [set()]


@pytest.mark.parametrize("executor", ["process", "command"])
async def test_a_worker_whose_jobs_all_have_their_own_process_takes_it_beside_others(
    bench: Bench, scene: Scene, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(executors._MODULES, executor, "jobq.executors.inline")
    await frail(bench, "alone")
    await bench.add("other", priority=1)
    for task in bench.tasks.values():
        task.executor = executor
        # What makes the task of a program. The inline executor does not look at it.
        monkeypatch.setattr(task, "programs", (), raising=False)
    async with bench.worker(concurrency=10, lease=600):
        await soon(scene.other)
        await soon(scene.alone)
        assert scene.running == {"alone", "other"}
        scene.end_alone.set()
        scene.end_other.set()
        await bench.all_in(State.COMPLETED, 2)


async def test_a_job_with_its_own_process_waits_where_other_tasks_could_kill_the_worker(
    bench: Bench, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(executors._MODULES, "process", "jobq.executors.inline")
    await frail(bench, "alone")
    await bench.add("other", priority=1)
    bench.tasks["alone"].executor = "process"
    async with bench.worker(concurrency=10) as worker:
        await soon(scene.other)
        await left(worker)
        scene.end_other.set()
        await soon(scene.alone)
        assert scene.beside == [set()]
        after = await bench.add("other")  # the worker claims beside it: it cannot be killed by it
        await bench.ended(after)
        scene.end_alone.set()
        await bench.all_in(State.COMPLETED, 3)


async def test_a_worker_with_no_free_slot_takes_it_when_one_comes_free(
    bench: Bench, scene: Scene
) -> None:
    id = await frail(bench, "alone")
    await bench.add("other", priority=1)
    scene.end_alone.set()
    async with bench.worker(concurrency=1, lease=0.3):
        await soon(scene.other)
        scene.end_other.set()
        assert (await bench.ended(id)).state is State.COMPLETED
    assert scene.beside == [set()]


async def test_a_job_taken_by_another_worker_meanwhile_does_not_stop_the_claims(
    bench: Bench, scene: Scene, store: Store
) -> None:
    id = await frail(bench, "alone")
    await bench.add("other", priority=1)
    async with bench.worker(concurrency=10) as worker:
        await soon(scene.other)
        await left(worker)
        found = await steal(store, bench.qname)
        assert [lease.id for lease in found.leases] == [id]
        scene.end_other.set()
        after = await bench.add("other")
        assert (await bench.ended(after)).state is State.COMPLETED
        assert not worker._stations[0].fetcher._chance.closed
    assert scene.beside == []


async def test_a_worker_that_stops_while_others_run_leaves_it_unstarted(
    bench: Bench, scene: Scene
) -> None:
    id = await frail(bench, "alone")
    await bench.add("other", priority=1)
    async with bench.worker(concurrency=10) as worker:
        await soon(scene.other)
        await left(worker)
        stopping = asyncio.create_task(worker.stop())
        scene.end_other.set()
        await stopping
    record = await bench.get(id)
    assert (record.state, record.stalls, scene.beside) == (State.WAITING, 1, [])
