"""Helpers of the engine's tests: a queue of plain handlers, and a store that a test can disturb."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast, overload
from uuid import uuid4

from jobq.api.worker import Worker
from jobq.client.ids import new_id
from jobq.core.policies import Retry
from jobq.core.records.jobs import (
    Claim,
    JobKey,
    JobRecord,
    JobSpec,
    Lease,
    QueueName,
    Settled,
)
from jobq.core.records.queues import QueueConfig, ScheduleSpec
from jobq.core.records.states import State
from jobq.core.values.codec import JSON
from jobq.engine.handler import BatchSize
from jobq.engine.identity import WorkerSettings
from jobq.errors import StoreUnavailable
from jobq.stores import open_store
from jobq.stores.base import Clock, Store
from tests.waiting import until

PATIENCE = 20.0

F = TypeVar("F", bound=Callable[..., Any])


async def eventually(condition: Callable[[], Any | Awaitable[Any]], what: str = "") -> Any:
    """Return the condition's first true value. A test that waits too long fails with `what`."""
    return await until(condition, what or "the condition", seconds=PATIENCE)


async def soon(event: asyncio.Event) -> None:
    """Wait for the event. The test fails if it takes too long."""
    await asyncio.wait_for(event.wait(), PATIENCE)


class Gate:
    """Handlers wait here until it is opened. It counts those that wait."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.entered = 0
        self.opened = asyncio.Event()

    async def __call__(self) -> None:
        self.inside += 1
        self.entered += 1
        self.most = max(self.most, self.inside)
        try:
            await self.opened.wait()
        finally:
            self.inside -= 1


class Handled:
    """A handler: a function, its name and how to run it."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        retry: Retry | None = None,
        timeout_ms: int | None = None,
        batch: BatchSize | None = None,
        max_stalls: int = 3,
    ) -> None:
        self.name = fn.__name__
        self.fn = fn
        self.executor = "inline" if asyncio.iscoroutinefunction(fn) else "thread"
        self.retry = retry or Retry(3, base=0)
        self.timeout_ms = timeout_ms
        self.batch = batch
        self.max_stalls = max_stalls
        self.grace_ms: int | None = None

    def bind(self, lease: Lease) -> Any:
        return JSON.decode_call(lease.payload)

    def encode(self, value: Any, lease: Lease, what: str = "the result") -> bytes:
        return JSON.encode(value)


class Bench:
    """A queue with handlers, as a worker sees it, and shortcuts for tests."""

    def __init__(
        self, store: Store, name: str = "work", open: Callable[[], Store] | None = None
    ) -> None:
        self.qname = QueueName(f"t{uuid4().hex[:8]}", name)
        self.config: QueueConfig | None = None
        self.clock: Clock | None = None
        self.tasks: dict[str, Handled] = {}
        self._store = store
        self._open = open

    @property
    def url(self) -> str:
        return self._store.url

    async def store(self) -> Store:
        return self._store

    async def plans(self) -> list[ScheduleSpec]:
        return []

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        yield self._store

    def another_handle(self) -> Store:
        """Return another handle. If the first is a Proxy, this one is disturbed like it."""
        if isinstance(self._store, Proxy):
            return self._store.another()  # type: ignore[no-any-return]
        return (
            open_store(self._store.url, clock=getattr(self._store, "_clock", None))
            if self._open is None
            else self._open()
        )

    def through(self, store: Any) -> Bench:
        """The same queue and handlers, through another handle: a store, or a Proxy of one."""
        other = Bench(store)
        other.qname, other.tasks = self.qname, self.tasks
        return other

    @overload
    def task(self, fn: F, **options: Any) -> F: ...
    @overload
    def task(self, **options: Any) -> Callable[[F], F]: ...
    def task(self, fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Register a handler."""
        if fn is None:
            return lambda fn: self.register(fn, **options)
        return self.register(fn, **options)

    def register(self, fn: F, **options: Any) -> F:
        """Register a handler under its function's name."""
        self.tasks[fn.__name__] = Handled(fn, **options)
        return fn

    def spec(self, name: str, *args: Any, **fields: Any) -> JobSpec:
        fields.setdefault("id", new_id())
        return JobSpec(queue=self.qname, name=name, payload=JSON.encode_call(args, {}), **fields)

    async def add(self, name: str, *args: Any, **fields: Any) -> str:
        """Put one job. Returns its id."""
        return (await self._store.put([self.spec(name, *args, **fields)]))[0].id

    async def add_many(self, name: str, count: int) -> list[str]:
        """Put jobs with the arguments 0, 1, 2, …"""
        return [r.id for r in await self._store.put([self.spec(name, n) for n in range(count)])]

    async def get(self, id: str) -> JobRecord:
        (record,) = await self._store.get([JobKey(self.qname, id)])
        assert record is not None, f"job {id} is gone"
        return record

    async def count(self, state: State) -> int:
        return (await self._store.count(self.qname)).get(state, 0)

    async def ended(self, id: str) -> JobRecord:
        """Wait until the job has ended. Returns its record."""

        async def look() -> JobRecord | None:
            record = await self.get(id)
            return record if record.state.ended else None

        return await eventually(look)  # type: ignore[no-any-return]

    async def all_in(self, state: State, count: int) -> None:
        """Wait until this many jobs are in the state."""

        async def enough() -> bool:
            return await self.count(state) == count

        await eventually(enough)

    async def kinds(self) -> Counter[str]:
        """Count the events in the queue's log by kind."""
        seen: Counter[str] = Counter()
        position = "0"
        while True:
            page = await self._store.read_events(self.qname, after=position)
            seen.update(str(event.kind) for event in page.events)
            if not page.events:
                return seen
            position = page.position

    def worker(self, *, settings: dict[str, Any] | None = None, **options: Any) -> Worker:
        """A worker on this queue. `settings` overrides engine settings that users cannot choose."""
        return worker_on(self, settings=settings, **options)


def worker_on(*benches: Bench, settings: dict[str, Any] | None = None, **options: Any) -> Worker:
    """A worker on these queues.

    It polls so seldom that a test fails if a job is found only by polling.
    """
    worker = Worker(*cast("tuple[Any, ...]", benches), **options)
    chosen: dict[str, Any] = {"poll_ms": 60_000, "grace_ms": 200, **(settings or {})}
    worker.settings = replace(worker.settings, **chosen)
    assert isinstance(worker.settings, WorkerSettings)
    return worker


class Proxy:
    """A real store behind a line that a test can disturb. All calls reach it; replies may be lost.

    `lose(method)` tells whether a reply is lost: the store acts, the caller gets StoreUnavailable.
    `down` refuses every call before it reaches the store.
    """

    def __init__(self, store: Store) -> None:
        self._real = store
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.lose: Callable[[str], bool] = lambda method: False
        self.before: Callable[[str, tuple[Any, ...]], Awaitable[None]] | None = None
        self.after: Callable[[str, Any], Awaitable[None]] | None = None
        self.on_claim: Callable[[str, Claim | None], Awaitable[None]] | None = None
        self.down = False
        self.refused = 0
        self.lanes = getattr(store, "lanes", 1)

    @property
    def url(self) -> str:
        return self._real.url

    def another(self) -> Any:
        """Return a handle for the keeper. It is disturbed like this one, and shares its counts."""
        other = Proxy(open_store(self._real.url, clock=getattr(self._real, "_clock", None)))
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k != "_real"})
        other._parent = self  # type: ignore[attr-defined]
        return other

    def prepare(self, specs: Any) -> Any:
        return self._real.prepare(specs)  # type: ignore[attr-defined]

    def expect(self, job: JobKey) -> Any:
        return self._real.expect(job)  # type: ignore[attr-defined]

    def listen(self, *args: Any, **kwargs: Any) -> Any:
        root = self._root
        if root.down or root.lose("listen"):
            raise StoreUnavailable("the line is cut")
        return self._real.listen(*args, **kwargs)

    @property
    def _root(self) -> Proxy:
        return getattr(self, "_parent", self)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            root = self._root
            if name in ("migrate", "aclose"):
                return await real(*args, **kwargs)
            if root.down:
                root.refused += 1
                raise StoreUnavailable("the line is cut")
            root.calls.append((name, args, kwargs))
            if root.before is not None:
                await root.before(name, args)
            if root.on_claim is not None and name == "settle":
                await root.on_claim(name, kwargs.get("then"))
            answer = await real(*args, **kwargs)
            if root.after is not None:
                await root.after(name, answer)
            if root.lose(name):
                raise StoreUnavailable("the reply was lost")
            return answer

        return call

    # ── what was said on the line ──

    def of(self, method: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The calls of one method."""
        return [(args, kwargs) for name, args, kwargs in self.calls if name == method]

    def settles(self) -> list[tuple[int, Claim | None]]:
        """Per exchange: how many outcomes it carried, and its claim."""
        return [(len(args[0]), kwargs.get("then")) for args, kwargs in self.of("settle")]


async def steal(
    store: Store, queue: QueueName, *, worker: str = "thief", limit: int = 1
) -> Settled:
    """Claim as another worker would."""
    return await store.settle(
        [],
        worker=worker,
        call=uuid4().hex,
        then=Claim(queues=(queue,), limit=limit, lease_ms=60_000),
    )
