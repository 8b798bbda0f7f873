"""Waiting for jobs: results as annotated, and every way in which a wait can end without one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pytest

from jobq import (
    Codec,
    InvalidJob,
    JobCancelled,
    JobFailed,
    JobNotFound,
    Queue,
    Reject,
    Retention,
    Snooze,
    State,
    WaitTimeout,
    Worker,
    current_job,
)
from jobq.core.records.jobs import JobSpec, PutResult


@dataclass
class Receipt:
    invoice: int
    cents: int


class Line(msgspec.Struct):
    text: str


class Totals(TypedDict):
    sum: int


@asynccontextmanager
async def working(*queues: Queue) -> AsyncIterator[None]:
    async with Worker(*queues, concurrency=20):
        yield


async def test_a_call_returns_the_result_as_annotated(queue: Queue) -> None:
    @queue.task
    async def charge(invoice: int, lines: list[Line]) -> Receipt:
        assert all(isinstance(line, Line) for line in lines)
        return Receipt(invoice, 100 * len(lines))

    @queue.task
    def total(receipts: list[Receipt]) -> Totals:
        return {"sum": sum(receipt.cents for receipt in receipts)}

    async with working(queue):
        receipt = await charge.call(7, [Line("a"), Line("b")])
        assert receipt == Receipt(7, 200)
        assert await total.call([receipt, receipt]) == {"sum": 400}


async def test_hundreds_of_concurrent_calls_each_get_their_own_result(queue: Queue) -> None:
    @queue.task
    async def double(n: int) -> int:
        return 2 * n

    async with working(queue):
        assert await asyncio.gather(*(double.call(n) for n in range(300))) == [
            2 * n for n in range(300)
        ]


async def test_a_job_that_fails_raises_with_its_failure(queue: Queue) -> None:
    @queue.task(retry=0)
    async def charge(invoice: int) -> None:
        raise Reject(f"no invoice {invoice}")

    async with working(queue):
        with pytest.raises(
            JobFailed,
            match=r"job '.*' \(charge\) of queue 'api' failed \(rejected\) .*no invoice 7",
        ) as caught:
            await charge.call(7)
    failure = caught.value.failure
    assert (failure.reason, failure.message, failure.attempt) == ("rejected", "no invoice 7", 1)
    assert failure.at.tzinfo is not None


async def test_waiting_for_a_cancelled_job_raises_job_cancelled(queue: Queue) -> None:
    job = await queue.task_by_name("nobody").enqueue()
    waiter = asyncio.create_task(job.result(timeout=10))
    await asyncio.sleep(0)
    assert await job.cancel()
    with pytest.raises(JobCancelled, match="cancelled"):
        await waiter
    assert (await job.wait()).state is State.CANCELLED


async def test_a_wait_that_times_out_cancels_nothing(queue: Queue) -> None:
    @queue.task
    async def later() -> str:
        return "done"

    with pytest.raises(WaitTimeout, match=r"has not ended within 0\.05 s"):
        await later.options(id="l", call_timeout=0.05).call()
    job = queue.job("l")
    assert await job.state() is State.WAITING
    with pytest.raises(WaitTimeout):
        await job.wait(timeout=0)
    async with working(queue):
        assert await job.result(timeout=10) == "done"


async def test_a_wait_ends_even_if_signals_are_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.client.deadlines.CHECK_AGAIN_S", 0.05)
    store = await queue._context.store()

    @asynccontextmanager
    async def deaf(*_: Any, **__: Any) -> AsyncIterator[AsyncIterator[Any]]:
        async def nothing() -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        yield nothing()

    @queue.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with working(queue):
        monkeypatch.setattr(store, "listen", deaf)
        assert await add.options(call_timeout=10).call(1, 2) == 3
        assert await (await add.enqueue(3, 4)).result(timeout=10) == 7
        monkeypatch.undo()


async def test_waiting_for_a_removed_job_raises_job_not_found(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.client.deadlines.CHECK_AGAIN_S", 0.05)
    job = await queue.task_by_name("nobody").enqueue()
    waiter = asyncio.create_task(job.result())
    await asyncio.sleep(0)
    await queue.obliterate()
    with pytest.raises((JobNotFound, JobCancelled)):
        await waiter
    with pytest.raises(JobNotFound, match="removed, or its record has expired"):
        await job.result()
    with pytest.raises(JobNotFound):
        await queue.job("never").info()
    with pytest.raises(JobNotFound):
        await queue.job("never").wait()


async def test_a_handle_waits_on_its_own_life(queue: Queue) -> None:
    named = queue.task_by_name("nobody").options(id="x")
    first = await named.enqueue()
    await first.cancel()
    second = await named.enqueue()
    assert not second.duplicate
    with pytest.raises(JobNotFound, match="was started over"):
        await first.result(timeout=5)
    with pytest.raises(WaitTimeout):
        await second.result(timeout=0.01)


async def test_a_handle_does_not_wait_on_a_later_job_that_begins_in_life_0(queue: Queue) -> None:
    named = queue.task_by_name("nobody").options(id="x")
    await (await named.enqueue()).cancel()
    second = await named.enqueue()
    await second.cancel()
    await second.remove()
    await named.enqueue()
    with pytest.raises(JobNotFound, match="another one has its id"):
        await second.result(timeout=5)


async def test_a_rerun_moves_the_handle_on_to_the_new_life(queue: Queue) -> None:
    runs = 0

    @queue.task(retry=0)
    async def second_time_lucky() -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("not yet")
        return runs

    job = await second_time_lucky.enqueue()
    async with working(queue):
        with pytest.raises(JobFailed):
            await job.result(timeout=10)
        assert await job.rerun()
        assert await job.result(timeout=10) == 2


async def test_a_call_that_finds_a_running_duplicate_waits_for_it(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, met = asyncio.Event(), asyncio.Event()
    sender = (await queue._context.session()).sender
    put = sender.put

    async def put_and_say(spec: JobSpec) -> PutResult:
        result = await put(spec)
        if result.duplicate:
            met.set()
        return result

    monkeypatch.setattr(sender, "put", put_and_say)

    @queue.task(unique=True)
    async def slow(n: int) -> int:
        await go.wait()
        return n

    async with working(queue):
        job = await slow.enqueue(1)
        waiter = asyncio.create_task(slow.call(1))
        async with asyncio.timeout(10):
            await met.wait()
        go.set()
        assert await waiter == await job.result(timeout=10) == 1
        assert sum((await queue.counts()).values()) == 1


async def test_a_call_that_finds_an_ended_duplicate_returns_its_result(queue: Queue) -> None:
    runs = 0

    @queue.task
    async def count() -> int:
        nonlocal runs
        runs += 1
        return runs

    async with working(queue):
        assert await count.options(id="once").call() == 1
    assert await count.options(id="once").call() == 1


async def test_a_result_that_does_not_fit_its_annotation_says_so(queue: Queue) -> None:
    @queue.task
    async def lie() -> Receipt:
        return {"invoice": "seven"}  # type: ignore[return-value]

    async with working(queue):
        job = await lie.enqueue()
        with pytest.raises(InvalidJob, match="invoice"):
            await job.result(timeout=10)
        assert (await job.info()).result  # what is there can still be seen


class Shouting(Codec):
    """Text only."""

    name = "shouting"

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value).upper()

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        return msgspec.json.decode(data)


@pytest.mark.parametrize("codec", ["json", "msgpack", Shouting()])
async def test_any_codec_carries_arguments_and_results(url: str, codec: str | Codec) -> None:
    async with Queue("coded", url, codec=codec) as queue:

        @queue.task
        async def greet(name: str) -> str:
            return f"HELLO {name}"

        async with working(queue):
            job = await greet.enqueue("YOU")
            assert await job.result(timeout=10) == "HELLO YOU"
            info = await job.info()
            assert (info.args, info.result) == (("YOU",), "HELLO YOU")


async def test_jobs_enqueued_before_a_change_of_codec_still_run(url: str) -> None:
    async with (
        Queue("coded", url, codec="json") as before,
        Queue("coded", url, codec="msgpack") as after,
    ):

        @after.task
        async def greet(name: str) -> str:
            return f"hello {name}"

        job = await before.task_by_name("greet").enqueue("you")
        async with working(after):
            assert await job.result(timeout=10) == "hello you"
            assert (await after.job(job.id).info()).result == "hello you"


async def test_a_result_over_max_payload_fails_the_run_and_is_not_stored() -> None:
    queue = Queue("large", "memory://large-results", max_payload=1000)

    @queue.task(retry=0)
    async def answer() -> str:
        return "x" * 2000

    async with queue, Worker(queue):
        with pytest.raises(JobFailed, match="the result of answer takes 2,002 bytes"):
            await answer.call()


async def test_progress_and_saved_values_are_limited_by_max_payload() -> None:
    queue = Queue("large", "memory://large-notes", max_payload=1000)

    @queue.task(retry=0)
    async def report() -> None:
        await current_job().progress("x" * 2000)

    @queue.task(retry=0)
    async def pause() -> None:
        raise Snooze(1, saved="x" * 2000)

    async with queue, Worker(queue):
        with pytest.raises(JobFailed, match="the progress of report takes 2,002 bytes"):
            await report.call()
        with pytest.raises(JobFailed, match="the saved value of pause takes 2,002 bytes"):
            await pause.call()


async def test_a_log_line_that_is_too_long_is_cut_and_says_so() -> None:
    queue = Queue("talkative", "memory://long-lines")

    @queue.task
    async def talk() -> str:
        await current_job().log("x" * 12_345)
        return current_job().id

    async with queue, Worker(queue):
        (line,) = await queue.job(await talk.call()).logs()
    assert line == "x" * 10_000 + "… (2,345 characters more)"


async def test_a_call_gets_its_result_even_if_the_queue_keeps_no_records(url: str) -> None:
    async with Queue("forgetful", url, retention=Retention(completed=0, failed=0)) as forgetful:

        @forgetful.task(retry=0)
        async def double(n: int) -> int:
            if n < 0:
                raise Reject("negative")
            return 2 * n

        async with working(forgetful):
            assert await double.options(call_timeout=10).call(4) == 8
            job = await double.enqueue(5)
            with contextlib.suppress(JobNotFound):  # it may have ended before anybody waited for it
                assert await job.result(timeout=10) == 10
            with pytest.raises(JobFailed, match="negative"):
                await double.options(call_timeout=10).call(-1)
