"""Several queues in one worker: turns, weights and strict order. Defaults and codecs of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from jobq import ConfigError, Queue, Worker, current_job


@asynccontextmanager
async def three_queues(url: str) -> AsyncIterator[tuple[list[Queue], list[str]]]:
    """Queues a, b and c with 12 jobs each, and the names of queues in the order of the runs."""
    ran: list[str] = []
    queues = [Queue(name, url) for name in "abc"]
    for queue in queues:

        @queue.task(name="work")
        async def work() -> None:
            ran.append(current_job().queue)

        await work.enqueue_many([()] * 12)
    yield queues, ran
    for queue in queues:
        await queue.aclose()


async def run_all(worker: Worker, idle: asyncio.Event) -> None:
    async with worker:
        await asyncio.wait_for(idle.wait(), 20)


async def test_in_strict_order_a_queue_runs_only_when_those_before_it_are_empty(url: str) -> None:
    idle = asyncio.Event()
    async with three_queues(url) as (queues, ran):
        await run_all(Worker(*queues, strict=True, concurrency=1, on_idle=idle.set), idle)
    assert ran == [*"a" * 12, *"b" * 12, *"c" * 12]


async def test_weights_decide_how_often_a_queue_is_first(url: str) -> None:
    idle = asyncio.Event()
    async with three_queues(url) as (queues, ran):
        worker = Worker(*queues, weights={"a": 2}, concurrency=1, on_idle=idle.set)
        await run_all(worker, idle)
    first = ran[:20]
    assert [first.count(name) for name in "abc"] == [10, 5, 5]


async def test_without_weights_queues_take_turns(url: str) -> None:
    idle = asyncio.Event()
    async with three_queues(url) as (queues, ran):
        await run_all(Worker(*queues, concurrency=1, on_idle=idle.set), idle)
    assert [ran[:12].count(name) for name in "abc"] == [4, 4, 4]


async def test_an_order_that_cannot_be_kept_is_refused_with_words() -> None:
    a, b = Queue("a", "memory://one"), Queue("b", "memory://two")
    with pytest.raises(ConfigError, match="this worker has no queue 'c'"):
        Worker(a, b, weights={"c": 2})
    with pytest.raises(ConfigError, match="the weight of a=0"):
        Worker(a, b, weights={"a": 0})
    with pytest.raises(ConfigError, match="give one of them"):
        Worker(a, b, weights={"a": 2}, strict=True)
    with pytest.raises(ConfigError, match="the queues are in different stores"):
        async with Worker(a, b, strict=True):
            pass


# ── defaults ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_queue_has_default_options_that_tasks_and_calls_override(url: str) -> None:
    defaults: Any = {"priority": 3, "retry": 7, "timeout": 30, "meta": {"team": "x"}, "delay": 60}
    async with Queue("api", url, defaults=defaults) as queue:

        @queue.task
        async def plain() -> None: ...

        @queue.task(priority=4, retry=1)
        async def own() -> None: ...

        infos = [
            await (await task.enqueue()).info()
            for task in (plain, own, own.options(priority=5), queue.task_by_name("elsewhere"))
        ]
        assert [info.priority for info in infos] == [3, 4, 5, 3]
        assert {str(info.meta) for info in infos} == {"{'team': 'x'}"}
        assert {info.due_at - info.created_at for info in infos if info.due_at} == {
            timedelta(seconds=60)
        }
        assert queue.tasks["plain"].retry.max_retries == 7
        assert queue.tasks["plain"].timeout_ms == 30_000
        assert queue.tasks["own"].retry.max_retries == 1


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"id": "x"}, "id is an option of a single job"),
        ({"priority": "high"}, "defaults: priority='high'"),
        ({"colour": 1}, "defaults: .*colour"),
        ([1], "is not a mapping"),
    ],
)
def test_wrong_defaults_are_refused_with_words(defaults: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Queue("api", "memory://x", defaults=defaults)


# ── a codec for results ───────────────────────────────────────────────────────────────────────────


async def test_results_may_have_another_codec_than_arguments(url: str) -> None:
    async with Queue("api", url, codec="json", result_codec="msgpack") as queue:

        @queue.task
        async def raw(word: str) -> bytes:
            await current_job().progress(b"half")
            return word.encode()

        @queue.task
        async def length(data: bytes) -> int:
            return len(data)

        async with Worker(queue):
            job = await raw.enqueue("word")
            assert await job.result(timeout=20) == b"word"
            async with queue.flow() as flow:
                total = flow.add(length, flow.add(raw, "four").ref)
            assert await total.result(timeout=20) == 4
        (record,) = await (await queue._context.store()).get([job.job_key])
        # A reader that knows only the queue's name reads both.
        async with Queue("api", url) as reader:
            info = await reader.job(job.id).info()
    assert (info.args, info.result, info.progress) == (("word",), b"word", b"half")
    assert record is not None
    assert record.payload == b'[["word"],{}]'
    assert record.result == b"\xc4\x04word"  # MessagePack's bytes; JSON would need base64
