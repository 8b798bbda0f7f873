"""What a handler can read and report about its job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest

from jobq import current_job
from jobq.core.control import Snooze
from jobq.core.policies import Retry
from jobq.core.records.jobs import JobKey, RetryData
from jobq.core.records.states import State
from jobq.errors import JobNotFound, PayloadTooLarge
from jobq.stores.base import Store

from .kit import Bench, Proxy, eventually, soon


async def test_a_handler_finds_its_job(bench: Bench) -> None:
    @bench.task
    async def work() -> dict[str, Any]:
        job = current_job()
        return {
            "id": job.id,
            "name": job.name,
            "queue": job.queue,
            "tenant": job.tenant,
            "attempt": job.attempt,
            "key": job.key,
            "saved": job.saved,
            "cancelled": job.cancelled,
        }

    await bench.add("work", id="seven")
    async with bench.worker():
        record = await bench.ended("seven")
    assert record.result is not None
    assert record.result.decode() == (
        f'{{"id":"seven","name":"work","queue":"work","tenant":"{bench.qname.tenant}","attempt":1,"key":null,'
        '"saved":null,"cancelled":false}'
    )


async def test_a_handler_knows_how_often_it_failed_and_may_fail(bench: Bench) -> None:
    seen: list[tuple[int, int]] = []

    @bench.task(retry=Retry(2, base=0))
    async def work() -> None:
        seen.append((current_job().failures, current_job().max_retries))
        raise ValueError("again")

    created = [
        await bench.add("work"),
        await bench.add("work", retry=RetryData(max_retries=1, base_ms=0)),
    ]
    async with bench.worker(concurrency=1):
        for id in created:
            await bench.ended(id)
    assert sorted(seen, key=lambda pair: pair[1]) == [(0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]


async def test_a_handler_knows_when_its_job_was_accepted_and_what_it_carries(bench: Bench) -> None:
    found: list[Any] = []

    @bench.task
    async def work() -> None:
        found.append((current_job().created_at, dict(current_job().meta)))

    id = await bench.add("work", meta={"trace": "t1"})
    async with bench.worker():
        record = await bench.ended(id)
    ((created_at, meta),) = found
    assert created_at == datetime.fromtimestamp(record.created_ms / 1000, UTC)
    assert meta == {"trace": "t1"}


def test_outside_of_a_job_there_is_none() -> None:
    with pytest.raises(JobNotFound, match="no job is running here"):
        current_job()


async def test_what_a_snooze_saves_is_there_in_the_next_run(bench: Bench) -> None:
    @bench.task
    async def steps() -> list[Any]:
        saved = current_job().saved
        if saved is None:
            raise Snooze(0, saved={"step": 1})
        return [saved, current_job().attempt]

    id = await bench.add("steps")
    async with bench.worker():
        record = await bench.ended(id)
    assert (record.result, record.failures) == (b'[{"step":1},2]', 0)


async def test_a_log_line_keeps_characters_that_a_store_cannot_escaped(
    bench: Bench, store: Store
) -> None:
    @bench.task
    async def work() -> None:
        await current_job().log("a\0b \ud800 \t é")

    id = await bench.add("work")
    async with bench.worker():
        record = await bench.ended(id)
    assert record.state is State.COMPLETED
    assert await store.logs(JobKey(bench.qname, id)) == ["a\\x00b \\ud800 \t é"]


async def test_progress_and_log_lines_are_stored_when_said(bench: Bench, store: Store) -> None:
    said, go = asyncio.Event(), asyncio.Event()

    @bench.task
    async def work() -> None:
        await current_job().log("first")
        await current_job().progress({"done": 1})
        await current_job().log("second")
        await current_job().progress({"done": 2})
        said.set()
        await go.wait()

    id = await bench.add("work")
    async with bench.worker():
        await soon(said)
        assert (await bench.get(id)).progress == b'{"done":2}'
        assert await store.logs(JobKey(bench.qname, id)) == ["first", "second"]
        go.set()
        await bench.ended(id)
    assert await store.logs(JobKey(bench.qname, id)) == ["first", "second"]


async def test_a_plain_function_says_the_same_in_its_thread(bench: Bench, store: Store) -> None:
    @bench.task
    def work() -> str:
        job = current_job().sync
        job.log("from a thread")
        job.progress(0.5)
        return job.id

    id = await bench.add("work")
    async with bench.worker():
        record = await bench.ended(id)
    assert record.result == f'"{id}"'.encode()
    assert record.progress == b"0.5"
    assert await store.logs(JobKey(bench.qname, id)) == ["from a thread"]


async def test_the_blocking_twin_refuses_to_block_the_event_loop(bench: Bench) -> None:
    @bench.task
    async def work() -> str:
        with pytest.raises(RuntimeError, match="would block the worker's event loop"):
            current_job().sync.log("no")
        return "refused"

    id = await bench.add("work")
    async with bench.worker():
        assert (await bench.ended(id)).result == b'"refused"'


async def test_what_many_jobs_say_at_once_is_stored_in_few_calls(bench: Bench, line: Proxy) -> None:
    @bench.task
    async def work(n: int) -> None:
        await current_job().log(f"line {n}")
        await current_job().progress(n)

    ids = await bench.add_many("work", 50)
    async with bench.through(line).worker(concurrency=50):
        await bench.all_in(State.COMPLETED, 50)
    assert [(await bench.get(id)).progress for id in ids] == [str(n).encode() for n in range(50)]
    assert len(line.of("note")) <= 4


async def test_a_note_that_the_store_refuses_fails_its_own_handler_only(
    bench: Bench, line: Proxy
) -> None:
    @bench.task(retry=Retry(0))
    async def work(n: int) -> None:
        await current_job().progress(n)

    async def refuse(method: str, args: tuple[Any, ...]) -> None:
        if method == "note" and any(note.progress == b"3" for note in args[0]):
            raise PayloadTooLarge("the progress is too large")

    line.before = refuse
    await bench.add_many("work", 6)
    async with bench.through(line).worker(concurrency=10):
        await bench.all_in(State.COMPLETED, 5)
        await bench.all_in(State.FAILED, 1)


async def test_notes_wait_for_a_store_that_is_away(bench: Bench, line: Proxy, store: Store) -> None:
    losses = iter([True, True])
    line.lose = lambda method: method == "note" and next(losses, False)

    @bench.task
    async def work() -> None:
        await current_job().progress("through")

    id = await bench.add("work")
    async with bench.through(line).worker():
        assert (await bench.ended(id)).progress == b'"through"'
    assert len(line.of("note")) == 3


async def test_a_note_under_a_lost_lease_stops_the_run(
    bench: Bench, line: Proxy, store: Store
) -> None:
    line.lose = lambda method: method == "extend"  # no renewal tells of the loss: only the note can
    running, go, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @bench.task
    async def work() -> None:
        running.set()
        await go.wait()
        try:
            await current_job().log("nobody reads this")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert current_job().cancelled
            stopped.set()
            raise

    id = await bench.add("work")
    async with bench.through(line).worker(lease=300):
        await soon(running)
        await store.obliterate(bench.qname, force=True)
        go.set()
        await soon(stopped)
    assert await store.logs(JobKey(bench.qname, id)) == []


async def test_the_current_job_follows_into_tasks_and_threads(bench: Bench) -> None:
    @bench.task
    async def work(n: int) -> list[str]:
        async def inner() -> str:
            return current_job().id

        inside = await asyncio.gather(inner(), inner())
        return [*inside, await asyncio.to_thread(lambda: current_job().id)]

    ids = await bench.add_many("work", 5)
    async with bench.worker():
        for id in ids:
            assert (await bench.ended(id)).result == f'["{id}","{id}","{id}"]'.encode()


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_context_variable_set_by_one_run_is_not_seen_by_another(
    bench: Bench, kind: str
) -> None:
    seen: list[str] = []
    mine: ContextVar[str] = ContextVar("mine", default="untouched")

    def look(n: int) -> None:
        seen.append(mine.get())
        mine.set(f"run {n}")

    handlers: dict[str, Callable[..., Any]] = {}

    async def later(n: int) -> None:
        look(n)

    handlers = {"async": later, "plain": look}
    bench.task(handlers[kind])
    await bench.add_many(handlers[kind].__name__, 10)
    async with bench.worker(concurrency=1):
        await eventually(lambda: len(seen) == 10)
    assert set(seen) == {"untouched"}
