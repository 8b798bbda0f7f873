"""`current_job().step`: a step is executed once, and its result is recorded with the job."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from jobq import InvalidJob, JobFailed, LeaseLost, Queue, Retry, Snooze, State, Worker, current_job
from jobq.core.records.jobs import Claim, Lease, Release
from jobq.core.values.checks import MAX_STEPS, MAX_STEPS_BYTES
from jobq.testing import Sandbox

NOW = Retry(3, base=0)


class Till:
    """A service that a step calls. It counts the calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def charge(self, amount: int, currency: str = "EUR") -> str:
        self.calls.append(amount)
        return f"{amount} {currency}, receipt {len(self.calls)}"

    def charge_now(self, amount: int) -> str:
        self.calls.append(amount)
        return f"{amount}, receipt {len(self.calls)}"


@pytest.fixture
def till() -> Till:
    return Till()


async def steal(queue: Queue, jobs: Sandbox) -> Lease:
    """Let the lease of the running job expire, and claim the job as another worker."""
    jobs.clock.advance(3600)
    store = (await queue._context.session()).store
    qname = queue._context.qname
    claim = Claim(queues=(qname,), limit=1, lease_ms=1000)
    (lease,) = (await store.settle([], worker="thief", call=f"{uuid4().hex}/0", then=claim)).leases
    return lease


async def give_back(queue: Queue, lease: Lease) -> None:
    store = (await queue._context.session()).store
    outcome = Release(queue=lease.queue, id=lease.id, token=lease.token)
    await store.settle([outcome], worker="thief", call=f"{uuid4().hex}/0")


# ── once ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_is_not_repeated_by_a_retry(jobs: Sandbox, clocked: Queue, till: Till) -> None:
    seen: list[str] = []

    @clocked.task(retry=NOW)
    async def order() -> str:
        receipt = await current_job().step("charge", till.charge, 5, currency="CHF")
        seen.append(receipt)
        if current_job().attempt < 3:
            raise ValueError("again")
        return receipt

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    assert await job.result() == "5 CHF, receipt 1"
    assert (till.calls, seen) == ([5], ["5 CHF, receipt 1"] * 3)


async def test_a_step_is_not_repeated_by_a_snooze_or_a_wait(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    @clocked.task(retry=0)
    async def order() -> list[Any]:
        job = current_job()
        receipt = await job.step("charge", till.charge, 5)
        if job.saved is None:
            raise Snooze(60, saved="snoozed")
        approval = await job.wait_for_signal("approve")
        return [receipt, job.saved, approval, await job.step("mail", till.charge, 7)]

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    assert await job.state() is State.BLOCKED
    await job.signal("approve", "ada")
    await jobs.drain()
    assert await job.result() == ["5 EUR, receipt 1", "snoozed", "ada", "7 EUR, receipt 2"]
    assert till.calls == [5, 7]


async def test_a_step_is_not_repeated_after_a_stall(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    stolen: list[Lease] = []

    @clocked.task
    async def order() -> str:
        receipt = await current_job().step("charge", till.charge, 5)
        if not stolen:
            stolen.append(await steal(clocked, jobs))
            await current_job().step("mail", till.charge, 7)
        return receipt

    job = await order.enqueue()
    await jobs.drain()
    await give_back(clocked, stolen[0])
    await jobs.drain()
    assert await job.result() == "5 EUR, receipt 1"
    assert [name for name, _ in stolen[0].steps] == ["charge"]


async def test_a_rerun_forgets_the_steps(jobs: Sandbox, clocked: Queue, till: Till) -> None:
    @clocked.task
    async def order() -> str:
        return await current_job().step("charge", till.charge, 5)

    job = await order.enqueue()
    await jobs.drain()
    await job.rerun()
    assert (await job.info()).steps == ()
    await jobs.drain()
    assert await job.result() == "5 EUR, receipt 2"


async def test_a_step_that_failed_is_executed_again_by_the_next_run(
    jobs: Sandbox, clocked: Queue
) -> None:
    tried: list[int] = []

    async def frail() -> int:
        tried.append(current_job().attempt)
        if len(tried) < 3:
            raise ConnectionError("the service is down")
        return len(tried)

    @clocked.task(retry=NOW)
    async def order() -> int:
        return await current_job().step("charge", frail)

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    assert (await job.result(), tried) == (3, [1, 2, 3])


async def test_parallel_steps_do_not_overwrite_each_other(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    @clocked.task(retry=NOW)
    async def order() -> list[str]:
        job = current_job()
        receipts = await asyncio.gather(
            *(job.step(f"charge {n}", till.charge, n) for n in range(20))
        )
        if job.attempt == 1:
            raise ValueError("again")
        return receipts

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    assert [receipt.split()[0] for receipt in await job.result()] == [str(n) for n in range(20)]
    assert sorted(till.calls) == list(range(20))


# ── the lease ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_step_under_a_lost_lease_raises_and_is_not_recorded(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    raised: list[BaseException] = []
    stolen: list[Lease] = []

    async def charge_slowly() -> str:
        receipt = await till.charge(5)
        if not stolen:
            stolen.append(await steal(clocked, jobs))
        return receipt

    @clocked.task
    async def order() -> str:
        try:
            return await current_job().step("charge", charge_slowly)
        except LeaseLost as error:
            raised.append(error)
            raise

    job = await order.enqueue()
    await jobs.drain()
    assert "lost its lease before step 'charge' was recorded" in str(raised[0])
    assert (await job.info()).steps == ()
    await give_back(clocked, stolen[0])
    await jobs.drain()
    assert await job.result() == "5 EUR, receipt 2"  # executed twice: the guide says so


async def test_a_plain_function_gets_the_lost_lease_too(jobs: Sandbox, clocked: Queue) -> None:
    raised: list[BaseException] = []
    loop = asyncio.get_running_loop()

    @clocked.task
    def order() -> None:
        asyncio.run_coroutine_threadsafe(steal(clocked, jobs), loop).result(20)
        for call in (lambda: current_job().sync.step("a", int), lambda: current_job().sync.save(1)):
            try:
                call()
            except LeaseLost as error:
                raised.append(error)

    await order.enqueue()
    await jobs.drain()
    assert len(raised) == 2


# ── names and bounds ──────────────────────────────────────────────────────────────────────────────


async def refused(
    jobs: Sandbox, queue: Queue, use: Callable[[], Awaitable[Any]], match: str
) -> None:
    """Run a handler that uses steps wrongly."""

    @queue.task(retry=0)
    async def order() -> None:
        with pytest.raises(InvalidJob, match=match):
            await use()

    job = await order.enqueue()
    await jobs.drain()
    await job.result()


async def test_a_name_used_twice_in_a_run_is_refused_before_it_is_executed(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    async def use() -> None:
        await current_job().step("charge", till.charge, 1)
        await current_job().step("charge", till.charge, 2)

    await refused(jobs, clocked, use, r"has used the step name 'charge' twice in one run")
    assert till.calls == [1]


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", 7])
async def test_a_bad_name_is_refused_before_the_step_is_executed(
    jobs: Sandbox, clocked: Queue, till: Till, name: Any
) -> None:
    await refused(jobs, clocked, lambda: current_job().step(name, till.charge, 1), "step=")
    assert till.calls == []


async def test_what_is_not_a_function_is_refused(jobs: Sandbox, clocked: Queue) -> None:
    called: Any = "a result"
    await refused(jobs, clocked, lambda: current_job().step("charge", called), "must be a function")


async def test_too_many_steps_are_refused_before_the_last_one_is_executed(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    async def use() -> None:
        await asyncio.gather(
            *(current_job().step(f"{n}", till.charge, n) for n in range(MAX_STEPS))
        )
        await current_job().step("one more", till.charge, -1)

    await refused(jobs, clocked, use, "more than 1,000 steps")
    assert -1 not in till.calls


@pytest.mark.parametrize(
    ("value", "match"),
    [("x" * MAX_STEPS_BYTES, "1,048,576 allowed"), (object(), "cannot be encoded")],
)
async def test_a_result_that_cannot_be_recorded_fails_the_job_and_the_step_is_not_repeated(
    jobs: Sandbox, clocked: Queue, value: Any, match: str
) -> None:
    calls = 0

    async def charge() -> Any:
        nonlocal calls
        calls += 1
        return value

    @clocked.task(retry=NOW)
    async def order() -> None:
        await current_job().step("charge", charge)

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    with pytest.raises(JobFailed, match=f"step 'charge' has run, .*{match}"):
        await job.result()
    assert calls == 1


async def test_the_sizes_of_all_steps_and_runs_count_together(
    jobs: Sandbox, clocked: Queue
) -> None:
    @clocked.task(retry=NOW)
    async def order() -> None:
        await current_job().step(f"run {current_job().attempt}", lambda: "x" * 600_000)
        raise ValueError("again")

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    info = await job.info()
    assert ([step.name for step in info.steps], info.attempt) == (["run 1"], 2)


# ── results ───────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Receipt:
    number: int


async def make_receipt() -> Receipt:
    return Receipt(7)


class Office:
    async def receipt(self) -> Receipt:
        return Receipt(7)


def coroutine_of_a_receipt() -> Awaitable[Receipt]:
    return make_receipt()


@pytest.mark.parametrize(
    "fn",
    [make_receipt, Office().receipt, functools.partial(make_receipt), coroutine_of_a_receipt],
    ids=["function", "method", "partial", "awaitable"],
)
async def test_every_run_gets_the_result_as_the_annotation_says(
    jobs: Sandbox, clocked: Queue, fn: Callable[[], Awaitable[Receipt]]
) -> None:
    seen: list[Any] = []

    @clocked.task(retry=NOW)
    async def order() -> None:
        seen.append(await current_job().step("charge", fn))
        if current_job().attempt == 1:
            raise ValueError("again")

    await order.enqueue()
    await jobs.drain(delayed=True)
    assert seen == [Receipt(7), Receipt(7)]


async def test_without_an_annotation_every_run_gets_plain_values(
    jobs: Sandbox, clocked: Queue
) -> None:
    seen: list[Any] = []

    @clocked.task(retry=NOW)
    async def order() -> None:
        seen.append(await current_job().step("pair", lambda: (1, 2)))
        seen.append(await current_job().step("nothing", lambda: None))
        if current_job().attempt == 1:
            raise ValueError("again")

    await order.enqueue()
    await jobs.drain(delayed=True)
    assert seen == [[1, 2], None] * 2


@pytest.mark.parametrize("codecs", [{"codec": "msgpack"}, {"result_codec": "msgpack"}], ids=str)
async def test_results_are_recorded_in_the_codec_of_results(
    url: str, codecs: dict[str, Any]
) -> None:
    def make() -> list[Any]:
        return [Receipt(7), b"\xff"]

    async with Queue("coded", url, **codecs) as queue:

        @queue.task(retry=NOW)
        async def order() -> bytes:
            receipt, data = await current_job().step("make", make)
            assert receipt == {"number": 7}
            if current_job().attempt == 1:
                raise ValueError("again")
            assert isinstance(data, bytes)
            return data

        async with Worker(queue):
            job = await order.enqueue()
            assert await job.result(timeout=20) == b"\xff"
        ((made,), saved) = ((await job.info()).steps, (await job.info()).saved)
    assert (made.result, saved) == ([{"number": 7}, b"\xff"], None)


async def test_a_task_can_be_a_step(jobs: Sandbox, clocked: Queue) -> None:
    @clocked.task
    async def make() -> Receipt:
        return Receipt(8)

    @clocked.task(retry=NOW)
    async def order() -> int:
        receipt = await current_job().step("make", make)
        if current_job().attempt == 1:
            raise ValueError("again")
        return receipt.number

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    assert await job.result() == 8


async def test_info_shows_the_steps_in_the_order_they_were_recorded(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    @clocked.task(retry=NOW)
    async def order() -> None:
        await current_job().step("zebra", till.charge, 1)
        if current_job().attempt == 1:
            raise ValueError("again")
        await current_job().step("ant", till.charge, 2)

    job = await order.enqueue()
    await jobs.drain(delayed=True)
    steps = (await job.info()).steps
    assert [(step.name, step.result, step.attempt) for step in steps] == [
        ("zebra", "1 EUR, receipt 1", 1),
        ("ant", "2 EUR, receipt 2", 2),
    ]
    assert [info.steps async for info in clocked.find()] == [()]


# ── children ──────────────────────────────────────────────────────────────────────────────────────


async def test_children_of_a_step_take_their_ids_from_its_name_and_skipping_it_shifts_nobody(
    jobs: Sandbox, clocked: Queue
) -> None:
    added: list[list[str]] = []

    @clocked.task
    async def count(page: int) -> int:
        return page * 10

    async def fan_out(n: int) -> list[str]:
        return [(await current_job().add(count, page)).id for page in range(n)]

    @clocked.task(id="report", retry=0)
    async def report() -> dict[str, Any]:
        job = current_job()
        first = await job.add(count, 7)
        pages = await job.step("pages", fan_out, 2)
        last = await job.add(count, 8)
        added.append([first.id, *pages, last.id])
        return dict(await job.wait_for_children())

    job = await report.options(id="report").enqueue()
    await jobs.drain()
    ids = ["report:0", "report:pages/0", "report:pages/1", "report:1"]
    assert added == [ids, ids]
    result = await job.result()
    assert list(result.items()) == list(zip(ids, [70, 0, 10, 80], strict=True))
    assert (await clocked.counts())[State.COMPLETED] == 5


async def test_a_step_that_is_repeated_adds_its_children_once(
    jobs: Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def count(page: int) -> int:
        return page

    async def fan_out() -> None:
        await current_job().add(count, 1)
        if current_job().attempt == 1:
            raise ValueError("again")
        await current_job().add(count, 2)

    @clocked.task(retry=NOW)
    async def report() -> list[int]:
        await current_job().step("pages", fan_out)
        return sorted((await current_job().wait_for_children()).values())

    job = await report.enqueue()
    await jobs.drain(delayed=True)
    assert await job.result() == [1, 2]
    assert (await clocked.counts())[State.COMPLETED] == 3


@pytest.mark.parametrize("fails", [True, False])
async def test_a_step_inside_a_step_is_recorded_apart_and_its_children_belong_to_both(
    jobs: Sandbox, clocked: Queue, till: Till, fails: bool
) -> None:
    @clocked.task
    async def count(page: int) -> int:
        return page

    async def inner() -> str:
        await current_job().add(count, 1)
        return await till.charge(1)

    async def outer() -> str:
        receipt = await current_job().step("inner", inner)
        await current_job().add(count, 2)
        if fails and current_job().attempt == 1:
            raise ValueError("again")
        return receipt

    @clocked.task(retry=NOW)
    async def report() -> list[Any]:
        receipt = await current_job().step("outer", outer)
        return [receipt, dict(await current_job().wait_for_children())]

    job = await report.options(id="r").enqueue()
    await jobs.drain(delayed=True)
    assert await job.result() == ["1 EUR, receipt 1", {"r:inner/0": 1, "r:outer/0": 2}]
    assert till.calls == [1]


# ── plain functions ───────────────────────────────────────────────────────────────────────────────


async def test_a_plain_handler_has_steps_and_adds_children_in_them(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    @clocked.task
    def count(page: int) -> int:
        return page

    def fan_out() -> str:
        return current_job().sync.add(count, 3).id

    @clocked.task(retry=NOW)
    def order() -> list[Any]:
        job = current_job().sync
        receipt = job.step("charge", till.charge_now, amount=5)
        child = job.step("pages", fan_out)
        if job.attempt == 1:
            raise ValueError("again")
        return [receipt, child, dict(job.wait_for_children())]

    job = await order.options(id="o").enqueue()
    await jobs.drain(delayed=True)
    assert await job.result() == ["5, receipt 1", "o:pages/0", {"o:pages/0": 3}]
    assert till.calls == [5]


async def test_a_plain_handler_cannot_have_an_async_step(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    @clocked.task(retry=0)
    def order() -> None:
        with pytest.raises(InvalidJob, match="is async"):
            _ = current_job().sync.step("charge", till.charge, 1)

    job = await order.enqueue()
    await jobs.drain()
    await job.result()


async def test_a_blocking_step_in_the_event_loop_is_refused_before_it_is_executed(
    jobs: Sandbox, clocked: Queue, till: Till
) -> None:
    @clocked.task(retry=0)
    async def order() -> None:
        with pytest.raises(RuntimeError, match="would block the worker's event loop"):
            current_job().sync.step("charge", till.charge_now, 1)

    job = await order.enqueue()
    await jobs.drain()
    await job.result()
    assert till.calls == []


async def test_a_batch_has_no_steps(queue: Queue) -> None:
    @queue.batch_task(size=2, retry=0)
    async def index(items: list[int]) -> list[int]:
        await current_job().step("charge", lambda: None)
        return items

    async with Worker(queue):
        with pytest.raises(JobFailed, match="no job is running here"):
            await index.call(1)


# ── save ──────────────────────────────────────────────────────────────────────────────────────────


async def test_a_long_loop_goes_on_where_it_saved_its_cursor(jobs: Sandbox, clocked: Queue) -> None:
    done: list[int] = []

    @clocked.task(retry=NOW)
    async def export(rows: int) -> int:
        job = current_job()
        for row in range(job.saved or 0, rows):
            if row == 5 and job.attempt == 1:
                raise ConnectionError("gone")
            done.append(row)
            await job.save(row + 1)
            assert job.saved == row + 1
        return len(done)

    job = await export.enqueue(10)
    await jobs.drain(delayed=True)
    assert await job.result() == 10
    assert done == list(range(10))
    assert (await job.info()).saved == 10


async def test_a_snooze_without_a_value_keeps_what_its_run_has_saved(
    jobs: Sandbox, clocked: Queue
) -> None:
    seen: list[Any] = []

    @clocked.task
    async def export() -> None:
        job = current_job()
        seen.append(job.saved)
        if len(seen) == 1:
            await job.save("cursor")
            raise Snooze(1)
        if len(seen) == 2:
            await job.save("other")
            raise Snooze(1, saved="of the snooze")
        if len(seen) == 3:
            raise Snooze(1)

    await export.enqueue()
    await jobs.drain(delayed=True)
    assert seen == [None, "cursor", "of the snooze", None]


async def test_a_wait_keeps_what_was_saved(jobs: Sandbox, clocked: Queue) -> None:
    @clocked.task
    def export() -> Any:
        job = current_job().sync
        if job.saved is None:
            job.save({"page": 3})
        job.wait_for_signal("go")
        return job.saved

    job = await export.enqueue()
    await jobs.drain()
    await job.signal("go")
    await jobs.drain()
    assert await job.result() == {"page": 3}


async def test_saving_under_a_lost_lease_raises(jobs: Sandbox, clocked: Queue) -> None:
    raised: list[LeaseLost] = []

    @clocked.task
    async def export() -> None:
        await current_job().save(1)
        await steal(clocked, jobs)
        try:
            await current_job().save(2)
        except LeaseLost as error:
            raised.append(error)
            assert current_job().saved == 1
            raise

    job = await export.enqueue()
    await jobs.drain()
    assert "lost its lease before what it saved was recorded" in str(raised[0])
    assert (await job.info()).saved == 1


async def test_code_that_goes_on_after_its_run_starts_no_step(queue: Queue) -> None:
    started: list[str] = []
    left: list[asyncio.Task[Any]] = []
    ended = asyncio.Event()

    @queue.task(retry=0)
    async def leaves_a_task() -> None:
        job = current_job()

        async def goes_on() -> None:
            await ended.wait()
            await job.step("late", started.append, "late")

        left.append(asyncio.create_task(goes_on()))
        raise ValueError("too early")

    async with Worker(queue):
        job = await leaves_a_task.enqueue()
        await job.wait(timeout=30)
        ended.set()
        with pytest.raises(LeaseLost, match=r"step 'late' of job .* was not started: its run has"):
            await left[0]
    assert not started
