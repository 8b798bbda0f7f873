"""Dependencies: parameters that a worker fills in for each run, and cleans up after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from jobq import (
    ConfigError,
    Depends,
    InvalidJob,
    JobFailed,
    Queue,
    Snooze,
    State,
    Worker,
    current_job,
    testing,
)

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypes

trace: list[str] = []


@pytest.fixture(autouse=True)
def _empty_trace() -> None:
    trace.clear()


class Session:
    """A resource that remembers what happened to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        trace.append(f"open {name}")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        trace.append(f"close {self.name}{'' if kind is None else f' after {kind.__name__}'}")


def plain() -> str:
    return "plain"


async def coroutine() -> str:
    await asyncio.sleep(0)
    return "coroutine"


def generator() -> Iterator[Session]:
    with Session("generator") as session:
        yield session


async def async_generator(inner: Session = Depends(generator)) -> AsyncIterator[Session]:
    await asyncio.sleep(0)
    with Session(f"async around {inner.name}") as session:
        yield session
    await asyncio.sleep(0)


@asynccontextmanager
async def manager() -> AsyncIterator[str]:
    yield "manager"


async def test_async_and_plain_handlers_get_every_kind_of_dependency(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def work(
        n: int,
        a: str = Depends(plain),
        b: str = Depends(coroutine),
        c: Session = Depends(generator),
        d: Session = Depends(async_generator),
    ) -> list[Any]:
        trace.append("work")
        return [n, a, b, c.name, d.name]

    @clocked.task
    def plain_work(
        n: int,
        *,
        a: str = Depends(plain),
        b: str = Depends(coroutine),
        c: Session = Depends(generator),
        d: Session = Depends(async_generator),
    ) -> list[Any]:
        trace.append("work")
        return [n, a, b, c.name, d.name]

    for task in (work, plain_work):
        trace.clear()
        job = await task.enqueue(1)
        await jobs.drain()
        names = ["generator", "async around generator"]
        assert await job.result() == [1, "plain", "coroutine", *names]
        # A provider is called once, even if two need it; the last that opened closes first.
        assert trace == [
            "open generator",
            "open async around generator",
            "work",
            "close async around generator",
            "close generator",
        ]


async def test_a_context_manager_function_is_entered_too(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def work(value: Any = Depends(manager)) -> str:
        return str(value)

    job = await work.enqueue()
    await jobs.drain()
    assert await job.result() == "manager"


async def test_an_error_a_snooze_a_wait_and_a_cancel_reach_the_provider_which_cleans_up(
    queue: Queue,
) -> None:
    started = asyncio.Event()

    @queue.task(retry=0)
    async def work(how: str, db: Session = Depends(generator)) -> Any:
        job = current_job()
        if how == "error":
            raise LookupError("gone")
        if how == "snooze" and job.saved is None:
            raise Snooze(0.001, saved=True)
        if how == "wait":
            await job.wait_for_signal("go")
        if how == "cancel":
            started.set()
            await asyncio.Event().wait()
        return how

    async with Worker(queue):
        with pytest.raises(JobFailed, match="gone"):
            await work.call("error")
        assert await work.call("snooze") == "snooze"
        waiting = await work.enqueue("wait")
        await waiting.signal("go")
        assert await waiting.result(timeout=20) == "wait"
        hanging = await work.enqueue("cancel")
        await asyncio.wait_for(started.wait(), 20)
        await hanging.cancel()
        assert (await hanging.wait(timeout=20)).state is State.CANCELLED
    closed = [line.removeprefix("close generator") for line in trace if "close" in line]
    assert [line for line in closed if "WaitForSignal" not in line] == [
        " after LookupError",
        " after Snooze",
        "",
        "",
        " after CancelledError",
    ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_provider_cannot_swallow_the_handlers_error(
    jobs: testing.Sandbox, clocked: Queue, is_async: bool
) -> None:
    def swallows() -> Iterator[None]:
        try:
            yield
        except BaseException:
            trace.append("swallowed")

    if is_async:

        @clocked.task(retry=0, name="work")
        async def work(_: None = Depends(swallows)) -> None:
            raise LookupError("gone")

    else:

        @clocked.task(retry=0, name="work")
        def plain_work(_: None = Depends(swallows)) -> None:
            raise LookupError("gone")

    job = await clocked.task_by_name("work").enqueue()
    await jobs.drain()
    with pytest.raises(JobFailed, match="gone"):
        await job.result()
    assert trace == ["swallowed"]


async def test_an_error_of_a_provider_fails_the_run_and_closes_what_is_open(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    def broken(db: Session = Depends(generator)) -> str:
        raise OSError("no database")

    @clocked.task(retry=0)
    async def work(value: str = Depends(broken)) -> None:
        trace.append("work")

    job = await work.enqueue()
    await jobs.drain()
    with pytest.raises(JobFailed, match="no database"):
        await job.result()
    assert trace == ["open generator", "close generator after OSError"]


async def test_a_plain_handler_gets_plain_dependencies_in_its_own_thread(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    def thread() -> int:
        return threading.get_ident()

    async def loop_thread() -> int:
        assert current_job().name == "work"
        return threading.get_ident()

    @clocked.task
    def work(here: int = Depends(thread), there: int = Depends(loop_thread)) -> list[bool]:
        return [here == threading.get_ident(), there == here]

    job = await work.enqueue()
    await jobs.drain()
    assert await job.result() == [True, False]


async def test_a_batch_task_has_dependencies_of_its_call(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.batch_task(size=3)
    async def work(items: list[int], db: Session = Depends(generator)) -> list[str]:
        return [f"{item} {db.name}" for item in items]

    handles = [await work.enqueue(n) for n in range(3)]
    await jobs.drain(concurrency=3)
    assert [await job.result() for job in handles] == [f"{n} generator" for n in range(3)]
    assert trace == ["open generator", "close generator"]


async def test_a_dependency_is_never_an_argument_of_a_job(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task(retry=0)
    async def work(n: int, db: Session = Depends(generator)) -> None: ...

    unchecked: Any = work
    with pytest.raises(InvalidJob, match="unexpected keyword argument 'db'"):
        await unchecked.enqueue(1, db="mine")
    with pytest.raises(InvalidJob, match="too many positional arguments"):
        await unchecked.enqueue(1, "mine")
    # A producer that does not know the function is refused by the worker.
    by_name = clocked.task_by_name("work")
    named, placed = await by_name.enqueue(1, db="theirs"), await by_name.enqueue(1, "theirs")
    await jobs.drain(delayed=True)
    with pytest.raises(JobFailed, match="got an unexpected keyword argument 'db'"):
        await named.result()
    with pytest.raises(JobFailed, match="too many positional arguments"):
        await placed.result()


async def test_annotations_of_dependencies_are_not_looked_up(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def work(n: int, value: OnlyForTypes = Depends(lambda: 3)) -> int:  # type: ignore[assignment]
        return n + int(value)

    job = await work.enqueue(1)
    await jobs.drain()
    assert await job.result() == 4


async def test_tests_override_a_dependency_everywhere_also_where_it_is_nested(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def work(db: Session = Depends(async_generator), word: str = Depends(plain)) -> list[str]:
        return [db.name, word]

    def fake() -> Session:
        return Session("fake")

    async def run() -> Any:
        job = await work.enqueue()
        await jobs.drain()
        return await job.result()

    with testing.override(generator, fake), testing.override(plain, lambda: "other"):
        assert await run() == ["async around fake", "other"]
    assert await run() == ["async around generator", "plain"]


async def test_a_direct_call_resolves_dependencies_or_takes_them(queue: Queue) -> None:
    @queue.task
    async def work(n: int, db: Session = Depends(generator)) -> str:
        return f"{n} {db.name}"

    @queue.task
    def plain_work(n: int, db: str = Depends(coroutine)) -> str:
        return f"{n} {db}"

    assert await work(1) == "1 generator"
    assert await work(1, db=Session("mine")) == "1 mine"
    assert await asyncio.to_thread(plain_work, 2) == "2 coroutine"


async def test_an_async_dependency_of_a_plain_function_does_not_block_its_own_event_loop(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    def work(word: str = Depends(coroutine)) -> str:
        return word

    @clocked.task
    async def calls_it() -> str:
        return work()

    for task in (work, calls_it):
        await task.enqueue()
        with pytest.raises(RuntimeError, match="would block the event loop"):
            await jobs.drain(inline=True)


def test_dependencies_that_cannot_be_filled_in_are_refused_with_words() -> None:
    queue = Queue("x", "memory://x")

    def needs_a_number(n: int) -> int:
        return n

    with pytest.raises(ConfigError, match="has the parameter n without a default"):

        @queue.task
        def one(n: int = Depends(needs_a_number)) -> None: ...

    with pytest.raises(ConfigError, match="parameter n follows the dependency db"):

        @queue.task
        def two(db: str = Depends(plain), n: int = 1) -> None: ...

    with pytest.raises(ConfigError, match="the dependency db is positional-only"):

        @queue.task
        def three(db: str = Depends(plain), /) -> None: ...

    def first(value: Any = None) -> None: ...

    def second(value: Any = Depends(first)) -> None: ...

    first.__defaults__ = (Depends(second),)
    with pytest.raises(ConfigError, match=r"a dependency needs itself: .*first → .*second"):

        @queue.task
        def four(value: None = Depends(first)) -> None: ...

    not_callable: Any = "get_db"
    with pytest.raises(ConfigError, match="give it a function"):
        Depends(not_callable)


def test_dependencies_as_fastapi_has_them_are_refused_with_words() -> None:
    queue = Queue("x", "memory://x")
    theirs: Any = type("Depends", (), {})()  # has the name of the class in fastapi.params

    with pytest.raises(ConfigError, match=r"is the Depends of another library: use jobq\.Depends"):

        @queue.task
        def one(db: str = theirs) -> None: ...

    def two(db: Annotated[str, Depends(plain)]) -> None: ...

    with pytest.raises(ConfigError, match="the dependency of db is in its annotation"):
        queue.task(two)  # its annotation is a string here

    two.__annotations__["db"] = Annotated[str, theirs]
    with pytest.raises(ConfigError, match="the dependency of db is in its annotation"):
        queue.task(two)


# ── decorators around tasks ───────────────────────────────────────────────────────────────────────


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        trace.append("logged")
        return await fn(*args, **kwargs)

    return wrapper


def with_session(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the function a session, and takes only the number."""

    @wraps(fn)
    async def wrapper(n: int) -> Any:
        return await fn(Session("given"), n)

    return wrapper


async def test_a_decorator_may_keep_or_change_the_parameters(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    @logged
    async def kept(n: int, db: Session = Depends(generator)) -> str:
        return f"{n} {db.name}"

    @clocked.task
    @with_session
    async def changed(session: Session, n: int) -> str:
        return f"{n} {session.name}"

    @clocked.task
    @cache
    def cached(n: int) -> int:
        return n

    handles = [await task.enqueue(7) for task in (kept, changed, cached)]
    await jobs.drain()
    assert [await job.result() for job in handles] == ["7 generator", "7 given", 7]
    assert "logged" in trace
    with pytest.raises(InvalidJob, match="missing a required argument: 'n'"):
        await changed.enqueue()
