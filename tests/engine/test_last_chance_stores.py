"""A job whose next stall would fail it runs alone: a worker with two stores."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from jobq.api.worker import Worker
from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import Claim, JobKey, Release
from jobq.core.records.states import State
from jobq.stores import open_store
from jobq.stores.base import Store

from .frail import Scene, frail, left
from .kit import Bench, Proxy, eventually, soon, steal, worker_on


async def test_a_job_of_another_store_that_kills_the_worker_is_no_stall_of_it(
    bench: Bench, scene: Scene, store: Store
) -> None:
    id = await frail(bench, "alone")
    await store.pause(bench.qname)
    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        second = Bench(elsewhere, "second")
        second.tasks = bench.tasks
        await second.add("other")
        async with worker_on(bench, second, concurrency=10) as worker:
            await soon(scene.other)
            await store.resume(bench.qname)
            await left(worker)
            record = await bench.get(id)
            assert (record.state, record.attempt) == (State.WAITING, 1)  # no claim has taken it
            scene.end_other.set()
            scene.end_alone.set()
            assert (await bench.ended(id)).state is State.COMPLETED
    assert scene.beside == [set()]
    assert (await bench.kinds())["released"] == 0


async def test_a_claim_is_alone_only_while_no_other_claim_of_the_worker_is_under_way(
    bench: Bench, scene: Scene, line: Proxy
) -> None:
    await frail(bench, "alone")
    scene.end_alone.set()
    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        second_line = Proxy(elsewhere)
        under_way, alone_under_way = 0, False
        seen: list[
            tuple[bool, int]
        ] = []  # of each claim: is it alone, and how many others are under way

        async def sent(method: str, then: Claim | None) -> None:
            nonlocal under_way, alone_under_way
            if then is not None:
                seen.append((then.alone or alone_under_way, under_way))
                alone_under_way = alone_under_way or then.alone
                under_way += 1

        async def answered(method: str, found: Any) -> None:
            nonlocal under_way, alone_under_way
            if method == "settle":
                await asyncio.sleep(0)
                under_way -= 1
                alone_under_way = alone_under_way and under_way > 0

        for each in (line, second_line):
            each.on_claim, each.after = sent, answered
        second = Bench(second_line, "second")  # type: ignore[arg-type]
        second.tasks = bench.tasks
        scene.end_other.set()
        async with worker_on(bench.through(line), second, concurrency=4):
            for _ in range(30):
                await second.add("other")
            await second.all_in(State.COMPLETED, 30)
            await bench.all_in(State.COMPLETED, 1)
    assert {others for alone, others in seen if alone} == {0}


async def test_a_queue_in_another_store_is_not_claimed_from_either(
    bench: Bench, scene: Scene
) -> None:
    id = await frail(bench, "alone")
    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        second = Bench(elsewhere, "second")
        second.tasks = bench.tasks
        async with worker_on(bench, second, concurrency=10):
            await soon(scene.alone)
            other = await second.add("other")
            found = await eventually(
                lambda: steal(elsewhere, second.qname)
            )  # it is there for other workers to take
            assert [lease.id for lease in found.leases] == [other]
            await elsewhere.settle(
                [Release(queue=second.qname, id=other, token=found.leases[0].token)],
                worker="thief",
                call="x",
            )
            assert scene.running == {"alone"}
            scene.end_other.set()
            scene.end_alone.set()
            assert (await second.ended(other)).state is State.COMPLETED
            assert (await bench.ended(id)).state is State.COMPLETED


def waits_for_slot(worker: Worker, station: int) -> None:
    """Let the station wait for a slot: until it gets one, the other station takes a share only."""
    fetcher = worker._stations[station].fetcher
    fetcher._slots._hungry.add(fetcher._bell)


async def test_jobs_that_other_claims_bring_meanwhile_run_before_it(
    bench: Bench, scene: Scene, store: Store, line: Proxy
) -> None:
    id = await frail(bench, "alone")
    await store.pause(bench.qname)
    under_way, answer = asyncio.Event(), asyncio.Event()

    async def hold(method: str, found: Any) -> None:
        if method == "settle" and found.leases and found.leases[0].id == "late":
            under_way.set()
            await answer.wait()

    async def after_the_second(method: str, args: tuple[Any, ...]) -> None:
        if method == "settle":
            await soon(under_way)

    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        second_line = Proxy(elsewhere)
        second_line.after = hold
        second = Bench(second_line, "second")  # type: ignore[arg-type]
        second.tasks = bench.tasks
        for _ in range(2):
            await second.add("other")
        async with worker_on(bench.through(line), second, concurrency=2) as worker:
            await second.all_in(State.ACTIVE, 2)
            await eventually(lambda: worker._stations[0].fetcher._asleep)
            line.before = after_the_second
            await store.resume(bench.qname)
            waits_for_slot(worker, 0)  # so the stations share the slots that come free
            await elsewhere.put([second.spec("other", id="late")])
            scene.end_other.set()
            await soon(under_way)
            await left(worker)
            scene.other.clear()
            scene.end_other.clear()
            answer.set()
            await soon(scene.other)
            assert not scene.alone.is_set()
            scene.end_other.set()
            await soon(scene.alone)
            (late,) = await elsewhere.get([JobKey(second.qname, "late")])
            assert late is not None
            assert (late.state, late.attempt) == (State.COMPLETED, 1)
            scene.end_alone.set()
            await bench.ended(id)
    assert scene.beside == [set()]


@pytest.mark.parametrize("ends", ["returns", "raises"])
async def test_no_other_job_starts_before_its_outcome_is_settled(
    bench: Bench, scene: Scene, line: Proxy, ends: str
) -> None:
    @bench.task
    async def raises() -> None:
        scene.alone.set()
        await scene.end_alone.wait()
        raise ValueError

    id = await frail(bench, "alone" if ends == "returns" else "raises")
    settling, settle = asyncio.Event(), asyncio.Event()

    async def slowly(method: str, args: tuple[Any, ...]) -> None:
        if method == "settle" and args[0]:
            settling.set()
            await settle.wait()

    line.before = slowly
    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        second = Bench(elsewhere, "second")
        second.tasks = bench.tasks
        async with worker_on(bench.through(line), second, concurrency=10):
            await soon(scene.alone)
            other = await second.add("other")
            scene.end_alone.set()
            await soon(settling)
            found = await eventually(lambda: steal(elsewhere, second.qname))
            assert [lease.id for lease in found.leases] == [other]  # nobody has claimed it
            lease = found.leases[0]
            await elsewhere.settle(
                [Release(queue=second.qname, id=other, token=lease.token)], worker="thief", call="x"
            )
            assert not scene.other.is_set()
            settle.set()
            scene.end_other.set()
            assert (await second.ended(other)).state is State.COMPLETED
            assert (await bench.ended(id)).stalls == 1


class Two:
    """A worker on two stores, whose first store answers late.

    The answer with the job on its last chance takes longer than a lease, so the worker claims from
    the second store. The job arrives while that claim is under way. Its answer, with the job
    `late`, comes when `answer` is set.
    """

    def __init__(
        self, bench: Bench, scene: Scene, line: Proxy, elsewhere: Store, **options: Any
    ) -> None:
        self.store, self.bench, self.scene = elsewhere, bench, scene
        self.second_line = Proxy(elsewhere)
        self.second = Bench(self.second_line, "second")  # type: ignore[arg-type]
        self.second.tasks = bench.tasks
        self.granted, self.under_way, self.answer = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self.second_line.after, line.after = self._hold, self._arrive_second
        self.worker = worker_on(bench.through(line), self.second, concurrency=2, **options)

    async def _hold(self, method: str, found: Any) -> None:
        if method == "settle" and found.leases:
            self.under_way.set()
            await self.answer.wait()

    async def _arrive_second(self, method: str, found: Any) -> None:
        if method == "settle" and found.leases and found.leases[0].last_chance:
            self.granted.set()
            await soon(self.under_way)

    async def play(self) -> None:
        """Until the job waits for its turn."""
        stations = self.worker._stations
        await eventually(lambda: all(station.fetcher._asleep for station in stations))
        waits_for_slot(self.worker, 1)
        await (await self.bench.store()).resume(self.bench.qname)
        await soon(self.granted)
        await self.store.put([self.second.spec("other", id="late")])
        first = self.worker._stations[0]
        first.fetcher._chance._open()  # as after one lease without an answer
        await eventually(lambda: first.fetcher._chance.waiting_in(first.runner))


async def test_what_another_exchange_brings_meanwhile_is_released_before_it_starts(
    bench: Bench, scene: Scene, line: Proxy
) -> None:
    id = await frail(bench, "alone")
    await (await bench.store()).pause(bench.qname)
    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        two = Two(bench, scene, line, elsewhere)
        async with two.worker:
            await two.play()
            assert not scene.alone.is_set()
            two.answer.set()
            await soon(scene.alone)
            (late,) = await elsewhere.get([JobKey(two.second.qname, "late")])
            assert late is not None
            assert (late.state, late.stalls, scene.beside) == (State.WAITING, 0, [set()])
            scene.end_other.set()
            scene.end_alone.set()
            await bench.ended(id)
            await two.second.ended("late")


async def test_a_store_that_does_not_answer_delays_it_by_one_lease_only(
    bench: Bench, scene: Scene, line: Proxy
) -> None:
    await frail(bench, "alone")
    await (await bench.store()).pause(bench.qname)
    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        two = Two(bench, scene, line, elsewhere, lease=0.4)
        async with two.worker:
            await two.play()
            await soon(scene.alone)
            assert scene.beside == [set()]
            two.answer.set()
            scene.end_other.set()
            scene.end_alone.set()
            await two.second.ended("late")


async def test_a_worker_that_stops_releases_it_unstarted(
    bench: Bench, scene: Scene, line: Proxy
) -> None:
    id = await frail(bench, "alone")
    await (await bench.store()).pause(bench.qname)
    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        two = Two(bench, scene, line, elsewhere)
        async with two.worker:
            await two.play()
            stopping = asyncio.create_task(two.worker.stop())
            await bench.all_in(State.WAITING, 1)
            two.answer.set()
            await stopping
    record = await bench.get(id)
    assert (record.state, record.stalls, scene.beside) == (State.WAITING, 1, [])


@pytest.mark.parametrize("how", ["cancelled", "lost"])
async def test_cancelled_or_lost_while_it_waits_it_never_starts_and_the_worker_goes_on(
    bench: Bench, scene: Scene, line: Proxy, store: Store, how: str
) -> None:
    id = await frail(bench, "alone")
    await (await bench.store()).pause(bench.qname)
    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        two = Two(bench, scene, line, elsewhere)
        async with two.worker:
            await two.play()
            runner = two.worker._stations[0].runner
            (run,) = [run for run in runner.held if run.lease.id == id]
            if how == "lost":
                runner.interrupts.lease_reported(run, "lost")
            else:
                await store.alter([Cancel(job=JobKey(bench.qname, id))])
                assert (await bench.ended(id)).state is State.CANCELLED
            await eventually(lambda: run not in runner.held)
            two.answer.set()
            scene.end_other.set()
            await two.second.ended("late")
    assert scene.beside == []
