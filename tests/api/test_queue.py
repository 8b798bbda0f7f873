"""Queues: opening and closing, what they declare, and which store they use."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from jobq import Bucket, ConfigError, Queue, Rate, Retention, State, Stopped, Worker
from jobq.client import connection
from jobq.core.records.queues import Limits, QueueConfig, Tokens, Window


def test_the_environment_gives_the_store_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JQ_URL", raising=False)
    monkeypatch.delenv("JQ_TENANT", raising=False)
    assert (Queue().name, Queue().url, Queue().tenant) == (
        "default",
        "sqlite:///jobq.db",
        "default",
    )
    monkeypatch.setenv("JQ_URL", "memory://env")
    monkeypatch.setenv("JQ_TENANT", "acme")
    assert (Queue().url, Queue().tenant) == ("memory://env", "acme")
    assert (Queue(url="memory://here").url, Queue(tenant="t").tenant) == ("memory://here", "t")


async def test_the_environment_is_read_when_the_queue_opens_and_not_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue("late")
    monkeypatch.setenv("JQ_URL", "memory://late")
    async with queue:
        monkeypatch.setenv("JQ_URL", "memory://later")
        assert queue.url == "memory://late"


def test_what_is_declared_becomes_the_configuration() -> None:
    queue = Queue(
        "q",
        "memory://",
        mode="keyed",
        limit=5,
        key_limit=2,
        rate=Rate(10, per=60),
        key_rate=Bucket(5, refill=1),
    )
    assert queue.config == QueueConfig(
        mode="keyed",
        limits=Limits(
            limit=5,
            key_limit=2,
            rate=Window(limit=10, per_ms=60_000),
            key_rate=Tokens(capacity=5, refill=1.0),
        ),
    )
    assert Queue("q", "memory://").config is None
    retained = Queue("q", "memory://", retention=Retention(completed=60)).config
    assert retained is not None
    assert retained.retention is not None
    assert retained.retention.completed_ms == 60_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "queue name='' is empty"),
        ({"name": "a{b}"}, "braces"),
        ({"tenant": "a:b"}, "colon"),
        ({"mode": "keyd"}, "did you mean 'keyed'"),
        ({"limit": 0}, "limit=0"),
        ({"rate": 5}, "neither a Rate nor a Bucket"),
        ({"partitions": 0}, "partitions=0"),
        ({"retention": 5}, "not a Retention"),
        ({"dead_letters": ""}, "dead_letters"),
        ({"codec": "pickle"}, "codec='pickle'"),
        ({"max_payload": 0}, "max_payload=0"),
        ({"limits_version": 0}, "limits_version=0"),
    ],
)
def test_a_bad_declaration_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Queue(**options)  # type: ignore[arg-type]


async def test_a_bad_url_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigError, match="memory://, sqlite:///"):
        await Queue("q", "oracle://x").counts()


async def test_what_is_declared_is_stored_when_the_queue_opens(url: str) -> None:
    async with Queue("q", url, mode="keyed"):
        with pytest.raises(ConfigError):
            await Queue("q", url, mode="plain").counts()


async def test_a_queue_opens_by_itself_and_again_after_it_was_closed(url: str) -> None:
    async with Queue("other", url):  # keeps a memory store alive
        queue = Queue("q", url)
        await queue.task_by_name("nobody").enqueue()
        await queue.aclose()
        await queue.aclose()
        assert (await queue.counts())[State.WAITING] == 1
        await queue.aclose()


async def test_only_the_outermost_context_closes(url: str) -> None:
    queue = Queue("q", url)
    async with queue:
        store = await queue._context.store()
        async with queue:
            pass
        assert await queue._context.store() is store
    assert queue._context.connection.session_here() is None


async def test_a_context_does_not_close_a_queue_that_was_open_before(url: str) -> None:
    queue = Queue("q", url)

    @queue.task
    async def ping() -> str:
        return "pong"

    async with Worker(queue):
        async with queue:
            assert await ping.call() == "pong"
        assert await ping.call() == "pong"  # the worker still has its store
    await queue.aclose()


async def test_queues_on_one_url_share_a_store_handle(url: str) -> None:
    async with Queue("a", url) as a, Queue("b", url) as b:
        assert await a._context.store() is await b._context.store()
        assert await a._context.session() is await b._context.session()


async def test_many_first_uses_at_once_open_one_handle(url: str) -> None:
    queue = Queue("q", url)
    stores = await asyncio.gather(*(queue._context.store() for _ in range(20)))
    assert len({id(store) for store in stores}) == 1
    await queue.aclose()


async def test_every_event_loop_has_its_own_handle(url: str) -> None:
    queue = Queue("q", url)
    async with queue:

        async def elsewhere() -> int:
            async with queue:
                assert await queue._context.store() is not here
                await queue.task_by_name("nobody").enqueue()
                return (await queue.counts())[State.WAITING]

        here = await queue._context.store()
        counted: list[int] = []
        thread = threading.Thread(target=lambda: counted.append(asyncio.run(elsewhere())))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert counted == [1]
        assert (await queue.counts())[State.WAITING] == 1


async def test_a_loop_that_ended_without_closing_is_forgotten(url: str, kind: str) -> None:
    if kind == "valkey":
        pytest.skip("sockets that nobody closed say so, rightly")
    queue = Queue("q", url)

    async def leave_open() -> None:
        await queue.counts()

    async with Queue("keep", url):
        await asyncio.to_thread(asyncio.run, leave_open())
        async with queue:
            assert len(queue._context.connection._sessions) == 1


async def test_a_worker_leaves_no_store_open(url: str) -> None:
    queue = Queue("q", url)

    @queue.task
    async def first() -> None:
        await second.enqueue()  # through the queue, which nobody but the worker has opened

    @queue.task
    async def second() -> None:
        stopping.append(asyncio.ensure_future(worker.stop()))

    stopping: list[asyncio.Future[Stopped]] = []
    worker = Worker(queue)
    async with Queue("keep", url):  # or a memory store would be gone with its last handle
        await first.enqueue()
        await queue.aclose()
        await asyncio.wait_for(worker.run(), 20)
        await asyncio.gather(*stopping)
        assert not queue._context.connection._sessions
    assert not [key for key in connection._entries if key[0] == url]


async def test_closing_a_queue_does_not_close_it_under_its_worker(url: str) -> None:
    queue = Queue("q", url)

    @queue.task
    async def ping() -> str:
        return "pong"

    async with Worker(queue):
        for _ in range(3):
            assert await ping.call() == "pong"
            await queue.aclose()
    assert not [key for key in connection._entries if key[0] == url]


async def test_a_context_inside_a_worker_closes_nothing_under_it(url: str) -> None:
    queue = Queue("q", url)

    @queue.task
    async def ping() -> str:
        return "pong"

    async with Worker(queue):
        async with queue:
            assert await ping.call() == "pong"
        assert await ping.call() == "pong"
    assert not [key for key in connection._entries if key[0] == url]


async def test_two_tasks_of_one_name_are_refused(queue: Queue) -> None:
    @queue.task
    async def ping() -> None: ...

    async def other() -> None: ...

    with pytest.raises(ConfigError, match="already has a task 'ping'"):
        queue.task(name="ping")(other)
    assert set(queue.tasks) == {"ping"}


async def test_tenants_do_not_see_each_other(url: str) -> None:
    async with Queue("q", url, tenant="a") as a, Queue("q", url, tenant="b") as b:
        job = await a.task_by_name("nobody").enqueue()
        assert sum((await b.counts()).values()) == 0
        assert [j.id async for j in a.find()] == [job.id]
        assert [j.id async for j in b.find()] == []


async def test_task_options_stay_in_worker_code_and_call_options_are_stored(queue: Queue) -> None:
    runs: list[int] = []

    @queue.task(retry=0, timeout=30)
    async def fails(n: int) -> None:
        runs.append(n)
        raise ValueError("no")

    handler = queue.tasks["fails"]
    assert (handler.retry.max_retries, handler.timeout_ms, handler.executor) == (
        0,
        30_000,
        "inline",
    )
    async with Worker(queue):
        await (await fails.enqueue(1)).wait(timeout=10)
        from jobq import Retry

        await (await fails.options(retry=Retry(2, delays=[0])).enqueue(2)).wait(timeout=10)
    assert runs == [1, 2, 2, 2]


async def test_plain_functions_run_in_threads(queue: Queue) -> None:
    @queue.task
    def where() -> str:
        return threading.current_thread().name

    assert queue.tasks["where"].executor == "thread"
    async with Worker(queue):
        assert await where.call() != threading.current_thread().name


def test_importing_jobq_loads_no_driver_and_no_command_line() -> None:
    heavy = {"sqlite3", "redis", "click", "rich", "yaml", "pydantic", "uvloop"}
    code = f"import sys, jobq; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
