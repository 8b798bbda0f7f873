"""For your tests: queues in memory, a clock that you move, and `drain()`, which runs due jobs.

    @pytest.fixture
    async def jobs():
        async with testing.use(billing) as jobs:  # billing uses a new memory store in this block
            yield jobs

    async def test_a_receipt_is_sent_an_hour_after_the_charge(jobs):
        await charge.enqueue("acme", invoice=7)
        await jobs.drain()
        sent = await jobs.assert_enqueued(send_receipt, 7)
        assert sent.due_at == jobs.clock.now() + timedelta(hours=1)
        jobs.clock.advance(3600)
        assert await jobs.drain() == 1

In tests without an event loop: `with testing.use(billing) as jobs:`, then `jobs.sync.drain()`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from jobq.api.info import JobInfo
from jobq.api.middleware import Onions
from jobq.api.queue import Queue
from jobq.api.task import Task
from jobq.client import portal
from jobq.client.ids import new_id
from jobq.core.checks import Seconds, check_int, shown, to_epoch_ms, to_ms
from jobq.core.moments import moment
from jobq.core.records import Claim, QueueName
from jobq.engine.exchange import Exchange
from jobq.engine.executors import Executors
from jobq.engine.handler import Handler
from jobq.engine.notes import Notes
from jobq.engine.runner import Runner
from jobq.engine.scheduler import fire_due, put_planned
from jobq.engine.settings import WorkerSettings
from jobq.engine.slots import Bell, Slots
from jobq.errors import ConfigError
from jobq.stores.base import Store

_LOOK_AGAIN = 0.02
"""Seconds after which `drain` looks for jobs that a running handler may have enqueued."""

__all__ = ["FakeClock", "Sandbox", "SyncSandbox", "queue", "use"]


class FakeClock:
    """A clock that stands still until you move it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._ms = to_epoch_ms(start or datetime.now(UTC), "start")

    def __call__(self) -> int:
        """The time in milliseconds since the epoch, as stores read it."""
        return self._ms

    def now(self) -> datetime:
        """The current time of this clock."""
        return moment(self._ms)

    def advance(self, by: Seconds) -> datetime:
        """Move the clock forward. This runs no jobs: `drain()` runs those that have become due."""
        self._ms += to_ms(by, "by")
        return self.now()


def queue(name: str = "test", **declared: Any) -> Queue:
    """A queue in its own memory store, whatever JQ_URL says. Closing it deletes its jobs:
    `async with queue() as q`."""
    return Queue(name, _fresh_url(), **declared)


def use(*queues: Queue, clock: FakeClock | None = None) -> Sandbox:
    """Let these queues use a new memory store and a FakeClock for the length of a `with` block."""
    return Sandbox(queues, clock or FakeClock())


def _fresh_url() -> str:
    return f"memory://test-{new_id()}"


class Sandbox:
    """Queues in a memory store of their own. `use` makes it; use it with `with` or `async with`."""

    def __init__(self, queues: tuple[Queue, ...], clock: FakeClock, url: str | None = None) -> None:
        if not queues:
            raise ConfigError(
                "testing.use() has no queue: give the queues that the code under test uses"
            )
        self.clock = clock
        self.queues = queues
        self._url = url or _fresh_url()
        self._since_ms = clock()

    async def __aenter__(self) -> Self:
        """Move the queues to the memory store."""
        return self.__enter__()

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Move the queues back to their stores. The jobs in the memory store are deleted."""
        for moved in self.queues:
            await moved._context.connection.move_back()

    def __enter__(self) -> Self:
        """Move the queues to the memory store."""
        for moved in self.queues:
            moved._context.connection.move(self._url, self.clock)
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Move the queues back to their stores. The jobs in the memory store are deleted."""
        portal.run(self.__aexit__(t, e, tb))

    @property
    def sync(self) -> SyncSandbox:
        """The same sandbox with blocking methods."""
        return SyncSandbox(self)

    # ── running ───────────────────────────────────────────────────────────────────────────────────

    async def drain(
        self, *, delayed: bool = False, concurrency: int = 1, most: int = 10_000
    ) -> int:
        """Run all due jobs, and the jobs that they enqueue, until none is left. Returns the number
        of runs.

        Jobs fail, retry and time out as in a worker, and due schedules make their jobs. With
        `delayed`, the clock moves on to the next delayed job or retry until there is none. More
        than `most` runs raise AssertionError, because jobs seem to enqueue each other for ever.
        """
        check_int(concurrency, "concurrency", low=1)
        tasks: dict[QueueName, Mapping[str, Handler]] = {
            one.qname: one.tasks for one in self.queues
        }
        store = await self.queues[0]._context.store()
        for one in self.queues:  # as a worker does when it starts
            await put_planned(store, one._context.planned.values(), self._since_ms)
        drainer = _Drainer(store, tasks, concurrency, most)
        try:
            while True:
                while await fire_due(store, self.clock()):
                    pass
                next_due_ms = await drainer.run()
                if not delayed or next_due_ms is None:
                    return drainer.runs
                self.clock.advance(max(next_due_ms, 1) / 1000)
        finally:
            await drainer.aclose()

    # ── checking ──────────────────────────────────────────────────────────────────────────────────

    async def enqueued(self, task: Task[..., Any]) -> list[JobInfo]:
        """All jobs of a task in any state, oldest first."""
        found = [job async for job in task._context.queue.find(name=task.name)]
        return sorted(found, key=lambda job: (job.created_at, job.id))

    async def assert_enqueued(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> JobInfo:
        """Check that a job of this task was enqueued with these arguments, and return the newest
        one.

        Without arguments, any job of the task will do."""
        jobs = await self.enqueued(task)
        found = [job for job in jobs if _fits(task, job, args, kwargs)]
        if not found:
            calls = "".join(f"\n  {_call(job.args, job.kwargs)}" for job in jobs) or " none"
            raise AssertionError(
                f"{task.name}{_call(args, kwargs)} was not enqueued. Jobs of {task.name}:{calls}"
            )
        return found[-1]

    async def assert_not_enqueued(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> None:
        """Check that no job of this task was enqueued with these arguments; without arguments, none
        at all."""
        for job in await self.enqueued(task):
            if _fits(task, job, args, kwargs):
                raise AssertionError(
                    f"{task.name}{_call(job.args, job.kwargs)} was enqueued: "
                    f"job {job.id!r}, {job.state}"
                )


class SyncSandbox:
    """A sandbox with blocking methods."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.clock = sandbox.clock

    def drain(self, *, delayed: bool = False, concurrency: int = 1, most: int = 10_000) -> int:
        """See `Sandbox.drain`."""
        return portal.run(self._sandbox.drain(delayed=delayed, concurrency=concurrency, most=most))

    def enqueued(self, task: Task[..., Any]) -> list[JobInfo]:
        """See `Sandbox.enqueued`."""
        return portal.run(self._sandbox.enqueued(task))

    def assert_enqueued(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> JobInfo:
        """See `Sandbox.assert_enqueued`."""
        return portal.run(self._sandbox.assert_enqueued(task, *args, **kwargs))

    def assert_not_enqueued(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> None:
        """See `Sandbox.assert_not_enqueued`."""
        portal.run(self._sandbox.assert_not_enqueued(task, *args, **kwargs))


def _fits(
    task: Task[..., Any], job: JobInfo, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    if not args and not kwargs:
        return True
    codec = task._context.codec
    # Compare arguments as they look after encoding and decoding.
    wanted_args, wanted_kwargs = codec.decode_call(codec.encode_call(args, kwargs))
    bound = task._definition.bound
    return bound(job.args, job.kwargs) == bound(wanted_args, wanted_kwargs)


def _call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    parts = [*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())]
    return f"({', '.join(parts)})"


class _Drainer:
    """Runs jobs with the worker's runner, but without its loops. Stops when there is nothing to
    do."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[QueueName, Mapping[str, Handler]],
        concurrency: int,
        most: int,
    ) -> None:
        settings = WorkerSettings(concurrency=concurrency)
        self.runs = 0
        self._most = most
        self._queues = tuple(tasks)
        self._settings = settings
        self._bell = Bell()
        self._slots = Slots(concurrency)
        self._executors = Executors()
        self._notes = Notes(store)
        self._runner = Runner(
            tasks,
            executors=self._executors,
            slots=self._slots,
            bell=self._bell,
            notes=self._notes,
            settings=settings,
            around_of=Onions(),
        )
        self._exchange = Exchange(
            store, worker=f"drain-{new_id()}", exchange_timeout_ms=settings.exchange_timeout_ms
        )

    async def run(self) -> int | None:
        """Run jobs until none is due. Returns in how many milliseconds the next one will be."""
        runner = self._runner
        while True:
            ended, runner.ended = runner.ended, []
            taken = self._slots.take(self._bell, self._slots.total)
            claim = (
                Claim(queues=self._queues, limit=taken, lease_ms=self._settings.lease_ms)
                if taken
                else None
            )
            since = time.monotonic()
            settled = await self._exchange.ask(ended, claim)
            runner.settled(ended)
            self._slots.give(taken - len(settled.leases))
            self._count(len(settled.leases))
            runner.start(settled.leases, since)
            if not settled.leases:
                runner.batches.flush()  # there are no more jobs to wait for
            if runner.ended:
                continue
            if runner.open or claim is None:
                # With free slots, look again soon: a running job may wait for one it enqueued.
                await self._bell.wait(_LOOK_AGAIN if self._slots.free else None)
            elif not settled.leases:
                return settled.next_due_ms

    def _count(self, more: int) -> None:
        self.runs += more
        if self.runs > self._most:
            raise AssertionError(
                f"drain() has run {self.runs} jobs and there are more: do they snooze or enqueue "
                "each other for ever? If so many runs are right, give a higher most="
            )

    async def aclose(self) -> None:
        """Stop the threads, and interrupt runs that an error has left behind."""
        self._runner.release_running()
        await asyncio.sleep(0)
        await self._notes.aclose()
        for executor in self._executors.values():
            await executor.aclose()
