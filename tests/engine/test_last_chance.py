"""A job whose next stall would fail it: it runs alone, and for a while the worker claims nothing beside it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pytest

from jobq import executors
from jobq.api.worker import Worker
from jobq.core.commands import Cancel
from jobq.core.queues import QueueConfig
from jobq.core.records import Claim, JobKey, Release
from jobq.core.states import State
from jobq.engine.handler import BatchSize
from jobq.stores import open_store
from jobq.stores.base import Store

from .kit import Bench, Proxy, eventually, soon, steal, worker_on

LONG = 3_600_000


async def frail(bench: Bench, name: str, *args: Any) -> str:
    """A job on its last chance; there must be nothing else to claim."""
    id = await bench.add(name, *args, max_stalls=1)
    store = await bench.store()
    (lease,) = (
        await store.settle(
            [],
            worker="dies",
            call=uuid4().hex,
            then=Claim(queues=(bench.qname,), limit=1, lease_ms=1),
        )
    ).leases
    assert lease.id == id

    async def stalled() -> bool:
        await store.tick()
        return (await bench.get(id)).stalls == 1

    await eventually(stalled)
    return id


class Scene:
    """Tasks that say when they run: `alone` is the job on its last chance, `other` any other."""

    def __init__(self, bench: Bench) -> None:
        self.running: set[str] = set()
        self.beside: list[set[str]] = []  # what else ran when `alone` began
        self.alone, self.other = asyncio.Event(), asyncio.Event()  # they have begun
        self.end_alone, self.end_other = asyncio.Event(), asyncio.Event()

        async def alone() -> None:
            self.beside.append(set(self.running))
            await self._run("alone", self.alone, self.end_alone)

        async def other() -> None:
            await self._run("other", self.other, self.end_other)

        for task in (alone, other):
            bench.task(task)

    async def _run(self, name: str, begun: asyncio.Event, end: asyncio.Event) -> None:
        self.running.add(name)
        begun.set()
        try:
            await end.wait()
        finally:
            self.running.discard(name)


@pytest.fixture
def scene(bench: Bench) -> Scene:
    return Scene(bench)


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


async def left(worker: Worker) -> None:
    """The store has told the worker that the job on its last chance is next, and the worker claims nothing."""
    await eventually(lambda: worker._stations and worker._stations[0].fetcher._chance.closed)


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
        under_way = 0
        seen: list[
            tuple[bool, int]
        ] = []  # of each claim: is it alone, and how many others are under way

        async def sent(method: str, then: Claim | None) -> None:
            nonlocal under_way
            if then is not None:
                seen.append((then.alone, under_way))
                under_way += 1

        async def answered(method: str, found: Any) -> None:
            nonlocal under_way
            if method == "settle":
                await asyncio.sleep(0)
                under_way -= 1

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


async def test_jobs_that_other_claims_bring_meanwhile_run_before_it(
    bench: Bench, scene: Scene, store: Store
) -> None:
    id = await frail(bench, "alone")
    await store.pause(bench.qname)
    under_way, answer = asyncio.Event(), asyncio.Event()

    async def hold(method: str, found: Any) -> None:
        if method == "settle" and found.leases and found.leases[0].id == "late":
            under_way.set()
            await answer.wait()

    async with open_store(f"memory://{uuid4().hex}") as elsewhere:
        line = Proxy(elsewhere)
        line.after = hold
        second = Bench(line, "second")  # type: ignore[arg-type]
        second.tasks = bench.tasks
        for _ in range(2):
            await second.add("other")
        async with worker_on(bench, second, concurrency=2) as worker:
            await second.all_in(State.ACTIVE, 2)
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


def waits_for_slot(worker: Worker, station: int) -> None:
    """The station's fetcher has found no free slot: until it gets one, the others take a share of what is free."""
    fetcher = worker._stations[station].fetcher
    fetcher._slots._hungry.add(fetcher._bell)


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
    """A worker on two stores. The first takes longer than a lease to answer the claim of a job on its last chance, so the worker
    claims from the second store. The job arrives while that claim, which brings the job `late`, is under way: it is answered
    when `answer` is set."""

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


async def test_a_store_that_does_not_answer_holds_it_up_for_one_lease_only(
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


async def test_a_batch_that_gathers_begins_so_that_it_can_end(bench: Bench, scene: Scene) -> None:
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
    async with bench.worker(concurrency=10):
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


# ── waiting in vain ───────────────────────────────────────────────────────────────────────────────


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
                runner.lease_reported(run, "lost")
            else:
                await store.alter([Cancel(job=JobKey(bench.qname, id))])
                assert (await bench.ended(id)).state is State.CANCELLED
            await eventually(lambda: run not in runner.held)
            two.answer.set()
            scene.end_other.set()
            await two.second.ended("late")
    assert scene.beside == []
