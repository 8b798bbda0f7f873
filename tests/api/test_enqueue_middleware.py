"""Middleware around enqueueing: what it sees, changes and refuses, however a job is enqueued."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobq import (
    EnqueueNext,
    EnqueueRequest,
    Every,
    InvalidJob,
    Job,
    Queue,
    State,
    WaitTimeout,
    chain,
    current_job,
    group,
    testing,
)

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def stamped(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
    request.meta["via"] = request.via
    return await call_next(request)


@asynccontextmanager
async def sandbox(url: str, *middleware: Any) -> AsyncIterator[tuple[testing.Sandbox, Queue]]:
    queue = Queue("api", url, enqueue_middleware=middleware)
    async with testing.Sandbox((queue,), testing.FakeClock(NOW), url) as jobs, queue:
        yield jobs, queue


async def test_it_sees_the_call_and_its_options(url: str) -> None:
    seen: list[Any] = []

    async def watches(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        seen.append((request.name, request.queue, request.args, dict(request.kwargs)))
        seen.append((dict(request.options), dict(request.meta), request.via))
        job = await call_next()
        seen.append((job.id == request.id, await job.state()))
        return job

    async with sandbox(url, watches) as (_, queue):

        @queue.task(priority=2, meta={"team": "x"})
        async def work(n: int, *, word: str) -> None: ...

        await work.options(delay=60).enqueue(1, word="a")
    assert seen == [
        ("work", "api", (1,), {"word": "a"}),
        ({"priority": 2, "delay": 60}, {"team": "x"}, "enqueue"),
        (True, State.DELAYED),
    ]


async def test_every_way_to_enqueue_passes_through(url: str) -> None:
    seen: dict[str, str] = {}
    async with sandbox(url, stamped) as (jobs, queue):

        @queue.task
        async def work(name: str) -> str:
            seen[name] = current_job().meta["via"]
            return name

        @queue.task
        async def parent() -> None:
            await current_job().add(work, "child")
            await current_job().wait_for_children()

        @queue.task
        def plain_parent() -> None:
            current_job().sync.add(work, "plain child")

        await work.enqueue("enqueue")
        await work.enqueue_many([("many",), {"name": "named"}])
        await queue.enqueue_many([work.bind("bound")])
        await work.broadcast([queue], "broadcast")
        async with queue.flow() as flow:
            flow.add(work, flow.add(work, "flow").ref)
        await chain(work, work, first=("chain",))
        await group(work, [("group",)])
        await parent.enqueue()
        await plain_parent.enqueue()
        await queue.schedule("s", Every(60), work, "schedule")
        await jobs.drain()
        jobs.clock.advance(60)
        await jobs.drain()
    assert seen == {
        "enqueue": "enqueue",
        "many": "enqueue_many",
        "named": "enqueue_many",
        "bound": "enqueue_many",
        "broadcast": "enqueue_many",
        "flow": "flow",
        "chain": "flow",
        "group": "flow",
        "child": "child",
        "plain child": "child",
        "schedule": "schedule",
    }


def test_the_blocking_api_passes_through(url: str) -> None:
    queue = Queue("api", url, enqueue_middleware=[stamped])

    @queue.task
    async def work() -> None: ...

    with queue.sync:
        one = work.sync.enqueue()
        (two,) = work.sync.enqueue_many([()])
        with queue.sync.flow() as flow:
            three = flow.add(work)
        found = [job.info().meta["via"] for job in (one, two, three)]
    assert found == ["enqueue", "enqueue_many", "flow"]


async def test_it_may_change_options_and_meta(url: str) -> None:
    async def later(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        request.options["delay"] = timedelta(hours=1)
        request.options["priority"] = 7
        request.meta.pop("secret", None)
        return await call_next(request)

    async with sandbox(url, later) as (_, queue):

        @queue.task
        async def work(n: int) -> None: ...

        marked = work.options(meta={"secret": "s", "kept": "k"})
        job = await marked.enqueue(1)
        (many,) = await marked.enqueue_many([(2,)])
        async with queue.flow() as flow:
            first = flow.add(marked, 3)
            last = flow.add(marked.options(after=[first]), 4)
        for handle, n in ((job, 1), (many, 2), (first, 3)):
            info = await handle.info()
            assert (info.args, info.priority, info.meta) == ((n,), 7, {"kept": "k"})
            assert info.due_at == NOW + timedelta(hours=1)
        assert [ref.id for ref in (await last.info()).children] == [first.id]


async def test_it_may_change_how_long_a_call_waits(url: str) -> None:
    async def impatient(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        request.options["call_timeout"] = 0.01
        return await call_next(request)

    async with sandbox(url, impatient) as (_, queue):

        @queue.task
        async def work() -> None: ...

        with pytest.raises(WaitTimeout, match=r"0\.01 s"):
            await work.call()


async def test_the_first_is_outermost_and_both_see_the_same_request(url: str) -> None:
    trace: list[str] = []

    def named(name: str) -> Any:
        async def middleware(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
            request.meta["path"] = request.meta.get("path", "") + name
            trace.append(f"{name} begins")
            job = await call_next(request)
            trace.append(f"{name} ends")
            return job

        return middleware

    async with sandbox(url, named("a"), named("b")) as (_, queue):

        @queue.task
        async def work() -> None: ...

        job = await work.enqueue()
        assert (await job.info()).meta == {"path": "ab"}
    assert trace == ["a begins", "b begins", "b ends", "a ends"]


class Refused(Exception):
    pass


async def test_a_refusal_is_the_callers_error_and_nothing_is_stored(url: str) -> None:
    async def refuses(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        if request.args == (2,):
            raise Refused
        return await call_next(request)

    async with sandbox(url, refuses) as (_, queue):

        @queue.task
        async def work(n: int) -> None: ...

        with pytest.raises(Refused):
            await work.enqueue(2)
        with pytest.raises(Refused):
            await work.enqueue_many([(1,), (2,)])
        flow = queue.flow()
        flow.add(work, 1)
        flow.add(work, 2)
        with pytest.raises(Refused):
            await flow.submit()
        assert sum((await queue.counts()).values()) == 0


async def test_bad_changes_are_refused_with_words(url: str) -> None:
    change: dict[str, Any] = {}

    async def changes(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        request.options.update(change)  # type: ignore[typeddict-item]
        return await call_next(request)

    async with sandbox(url, changes) as (_, queue):

        @queue.task
        async def work() -> None: ...

        change = {"priority": "high"}
        with pytest.raises(InvalidJob, match="priority='high'"):
            await work.enqueue()
        change = {"colour": 1}
        with pytest.raises(InvalidJob, match="colour"):
            await work.enqueue()
        change = {"meta": {"user": "ann"}}
        with pytest.raises(InvalidJob, match=r"change request\.meta instead"):
            await work.enqueue()
        change = {"id": "chosen"}
        assert (await work.enqueue()).id == "chosen"
        with pytest.raises(InvalidJob, match="the id of a flow job is fixed"):
            async with queue.flow() as flow:
                flow.add(work)


async def test_a_middleware_that_enqueues_nothing_has_to_raise(url: str) -> None:
    async def forgets(request: EnqueueRequest, call_next: EnqueueNext) -> Any:
        return None

    async with sandbox(url, forgets) as (_, queue):

        @queue.task
        async def work() -> None: ...

        with pytest.raises(InvalidJob, match="raise an error to refuse the job"):
            await work.enqueue()
        with pytest.raises(InvalidJob, match="raise an error to refuse the job"):
            await work.enqueue_many([()])


async def test_a_handler_that_starts_over_does_not_enqueue_its_child_again(url: str) -> None:
    calls: list[str] = []

    async def counts(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        calls.append(request.via)
        return await call_next(request)

    async with sandbox(url, counts) as (jobs, queue):

        @queue.task
        async def child() -> int:
            return 5

        @queue.task
        async def parent() -> int:
            job = await current_job().add(child)
            return int((await current_job().wait_for_children())[job.id])

        handle = await parent.enqueue()
        await jobs.drain()
        assert await handle.result() == 5
    assert calls == ["enqueue", "child"]
