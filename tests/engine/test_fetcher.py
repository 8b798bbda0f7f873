"""The fetcher claims as many jobs as slots are free, and loses none when replies are lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobq.core.records.jobs import Complete
from jobq.core.records.states import State
from jobq.errors import InvalidJob
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.waiting import takes

from .kit import Bench, Gate, Proxy, eventually, soon, steal, worker_on


async def test_never_more_runs_than_the_concurrency(bench: Bench) -> None:
    inside = most = 0

    @bench.task
    async def work(n: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await takes(0.001 * (n % 3))
        inside -= 1

    await bench.add_many("work", 200)
    async with bench.worker(concurrency=7):
        await bench.all_in(State.COMPLETED, 200)
    assert most == 7


async def test_a_job_is_claimed_only_when_it_can_start(bench: Bench) -> None:
    gate = Gate()

    @bench.task
    async def work(n: int) -> None:
        await gate()

    await bench.add_many("work", 10)
    async with bench.worker(concurrency=3):
        await eventually(lambda: gate.inside == 3)
        assert await bench.count(State.ACTIVE) == 3
        assert await bench.count(State.WAITING) == 7
        gate.opened.set()
        await bench.all_in(State.COMPLETED, 10)
    assert gate.most == 3


async def test_jobs_that_end_together_are_settled_together(bench: Bench, line: Proxy) -> None:
    @bench.task
    async def work(n: int) -> int:
        return n

    await bench.add_many("work", 1000)
    async with bench.through(line).worker(concurrency=100):
        await bench.all_in(State.COMPLETED, 1000)
    carried = [outcomes for outcomes, _ in line.settles() if outcomes]
    assert sum(carried) == 1000
    assert carried == [100] * 10


async def test_there_is_never_more_than_one_exchange_in_flight(bench: Bench, line: Proxy) -> None:
    in_flight = most = 0

    async def before(method: str, args: object) -> None:
        nonlocal in_flight, most
        if method == "settle":
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(0)

    async def after(method: str, answer: object) -> None:
        nonlocal in_flight
        in_flight -= method == "settle"

    line.before, line.after = before, after

    @bench.task
    async def work(n: int) -> None:
        await takes(0.001 * (n % 5))

    await bench.add_many("work", 300)
    async with bench.through(line).worker(concurrency=20):
        await bench.all_in(State.COMPLETED, 300)
    assert most == 1


async def test_a_run_that_ends_while_the_worker_sleeps_is_settled_at_once(
    bench: Bench, line: Proxy
) -> None:
    gate = Gate()

    @bench.task
    async def work() -> None:
        await gate()

    id = await bench.add("work")
    async with bench.through(line).worker():
        await eventually(lambda: gate.inside and line.of("sleep"))
        gate.opened.set()
        assert (await bench.ended(id)).state is State.COMPLETED


async def test_a_job_put_while_the_worker_sleeps_is_run(bench: Bench, line: Proxy) -> None:
    @bench.task
    async def work() -> None: ...

    async with bench.through(line).worker():
        await eventually(lambda: line.of("sleep"))
        assert (await bench.ended(await bench.add("work"))).state is State.COMPLETED


async def test_a_delayed_job_is_run_when_it_is_due(bench: Bench, line: Proxy) -> None:
    @bench.task
    async def work() -> None: ...

    id = await bench.add("work", delay_ms=150)
    async with bench.through(line).worker():
        assert (await bench.ended(id)).state is State.COMPLETED


async def test_queues_take_turns_in_being_asked_first(store: Store, line: Proxy) -> None:
    first, second, third = (Bench(store, name) for name in ("a", "b", "c"))

    @first.task
    async def work() -> None: ...

    async with worker_on(
        first.through(line), second.through(line), third.through(line), settings={"poll_ms": 10}
    ):
        await eventually(lambda: len(line.settles()) >= 6)
    orders = [claim.queues for _, claim in line.settles() if claim is not None]
    assert {order[0] for order in orders} == {first.qname, second.qname, third.qname}
    assert all(set(order) == {first.qname, second.qname, third.qname} for order in orders)


async def test_an_outcome_that_comes_too_late_is_reported_with_its_job(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    @bench.task
    async def work() -> None:
        await gate()

    id = await bench.add("work")
    async with bench.worker():
        await eventually(lambda: gate.inside)
        await (await bench.store()).obliterate(bench.qname, force=True)
        gate.opened.set()
        await eventually(lambda: "lost its lease" in caplog.text)
    assert f"job {id} (work) of queue work" in caplog.text


async def test_an_unknown_task_is_put_off_and_the_worker_goes_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.task
    async def known() -> str:
        return "done"

    strange = [await bench.add("strange", max_stalls=0) for _ in range(3)]
    id = await bench.add("known")
    async with bench.worker(concurrency=1):
        assert (await bench.ended(id)).result == b'"done"'
        records = [await bench.get(each) for each in strange]
    assert [(r.state, r.failures, r.stalls, r.started_ms) for r in records] == [
        (State.DELAYED, 0, 0, None)
    ] * 3
    assert caplog.text.count("has jobs of task strange, which this worker does not have") == 1


async def test_a_task_that_is_deployed_later_runs_jobs_that_were_put_off(bench: Bench) -> None:
    id = await bench.add("late")
    async with bench.worker():
        await bench.all_in(State.DELAYED, 1)

        @bench.task
        async def late() -> str:
            return "done"

        record = await bench.ended(id)
    assert (record.state, record.attempt, record.failures) == (State.COMPLETED, 2, 0)


async def test_a_payload_that_does_not_fit_fails_its_job_only(bench: Bench) -> None:
    @bench.task(retry=None)
    async def work(a: int, b: int) -> int:
        return a + b

    bad, good = await bench.add("work", 1), await bench.add("work", 1, 2)
    async with bench.worker():
        assert (await bench.ended(good)).result == b"3"
        record = await bench.ended(bad)
    assert record.state is State.FAILED
    assert (record.failures, record.attempt) == (4, 4)


async def test_an_outcome_the_store_refuses_fails_its_job_and_holds_up_no_other(
    bench: Bench, line: Proxy
) -> None:
    async def before(method: str, args: tuple[Any, ...]) -> None:
        if method == "settle" and any(
            isinstance(o, Complete) and o.result == b'"poison"' for o in args[0]
        ):
            raise InvalidJob("result='poison' is not for this store")

    line.before = before

    @bench.task
    async def work(value: str) -> str:
        return value

    poison = await bench.add("work", "poison")
    ids = [await bench.add("work", f"fine {n}") for n in range(5)]
    async with bench.through(line).worker():
        for id in ids:
            assert (await bench.ended(id)).state is State.COMPLETED
        record = await bench.ended(poison)
    assert record.state is State.FAILED
    assert record.failure is not None
    assert "not for this store" in record.failure.message


async def test_a_paused_worker_claims_nothing_until_it_is_resumed(
    bench: Bench, line: Proxy
) -> None:
    gate = Gate()

    @bench.task
    async def work() -> None:
        await gate()

    first = await bench.add("work")
    async with bench.through(line).worker() as worker:
        await eventually(lambda: gate.inside)
        worker.pause()
        gate.opened.set()
        await bench.ended(first)
        second = await bench.add("work")
        before = len([claim for _, claim in line.settles() if claim])
        await eventually(lambda: line.settles()[-1][1] is None)
        assert (await bench.get(second)).state is State.WAITING
        assert len([claim for _, claim in line.settles() if claim]) == before
        worker.resume()
        assert (await bench.ended(second)).state is State.COMPLETED


async def test_queues_in_different_stores_share_the_concurrency_fairly(bench: Bench) -> None:
    gate = Gate()
    async with open_store("memory://elsewhere") as other_store:
        other = Bench(other_store, "other")

        @bench.task
        @other.task
        async def work(n: int) -> None:
            await gate()

        await bench.add_many("work", 50)
        await other.add_many("work", 50)
        async with worker_on(bench, other, concurrency=10):
            await eventually(lambda: gate.inside == 10)
            gate.opened.set()
            await bench.all_in(State.COMPLETED, 50)
            await other.all_in(State.COMPLETED, 50)
    assert gate.most == 10


async def test_a_busy_store_does_not_starve_another_of_its_slots(bench: Bench) -> None:
    seen = asyncio.Event()
    async with open_store("memory://elsewhere") as other_store:
        other = Bench(other_store, "other")

        @bench.task
        async def work(n: int) -> None:
            if not seen.is_set():
                await bench.add("work", n)  # never empty until the other has had its turn

        @other.task
        async def rare(n: int) -> None:
            seen.set()

        await bench.add_many("work", 20)
        async with worker_on(bench, other, concurrency=2):
            await eventually(lambda: bench.count(State.COMPLETED))
            await other.add_many("rare", 1)
            await soon(seen)
            await other.all_in(State.COMPLETED, 1)


async def test_leases_that_ran_out_before_their_reply_arrived_are_not_started(url: str) -> None:
    now = [1_700_000_000_000]
    ran = False
    async with open_store(url, clock=lambda: now[0]) as store:
        bench, line = Bench(store), Proxy(store)
        losing = True
        line.lose = lambda method: method == "settle" and losing

        @bench.task
        async def work() -> None:
            nonlocal ran
            ran = True

        id = await bench.add("work")
        async with bench.through(line).worker(lease=0.2, concurrency=1):
            await eventually(lambda: len(line.of("settle")) >= 4)
            now[0] += 10_000
            (lease,) = (await steal(store, bench.qname)).leases
            losing = False
            await eventually(lambda: line.of("sleep"))
            record = await bench.get(id)
    assert not ran
    assert (lease.id, record.worker, record.attempt, record.stalls) == (id, "thief", 2, 1)
