"""A sandbox: queues that use a memory store and a test's clock for the length of a block."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from jobq.api.info import JobInfo
from jobq.api.queue import Queue
from jobq.api.task import Task
from jobq.client import portal
from jobq.client.ids import new_id
from jobq.core.records.jobs import QueueName
from jobq.core.values.checks import check_int, shown
from jobq.engine.handler import Handler
from jobq.engine.scheduler import fire_due, put_planned
from jobq.errors import ConfigError, InvalidJob
from jobq.testing.clock import FakeClock
from jobq.testing.drainer import CallPlain, Drainer, call_here, run_calling_here


def queue(name: str = "test", **declared: Any) -> Queue:
    """A queue in its own memory store, whatever JQ_URL says. Closing it deletes its jobs:
    `async with queue() as q`."""
    return Queue(name, _fresh_url(), **declared)


def use(*queues: Queue, clock: FakeClock | None = None, lifespan: Any = None) -> Sandbox:
    """Let these queues use a new memory store and a FakeClock for the length of a `with` block.

    `lifespan` is the value that handlers get from `current_job().lifespan(…)`."""
    return Sandbox(queues, clock or FakeClock(), lifespan=lifespan)


def _fresh_url() -> str:
    return f"memory://test-{new_id()}"


class Sandbox:
    """Queues in a memory store of their own. `use` makes it; use it with `with` or `async with`."""

    def __init__(
        self,
        queues: tuple[Queue, ...],
        clock: FakeClock,
        url: str | None = None,
        lifespan: Any = None,
    ) -> None:
        if not queues:
            raise ConfigError(
                "testing.use() has no queue: give the queues that the code under test uses"
            )
        self.clock = clock
        self.queues = queues
        self._lifespan = lifespan
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
        for moved in self.queues:
            moved._context.connection.close_in_idle_loops()
        portal.run(self.__aexit__(t, e, tb))

    @property
    def sync(self) -> SyncSandbox:
        """The same sandbox with blocking methods."""
        return SyncSandbox(self)

    # ── running ───────────────────────────────────────────────────────────────────────────────────

    async def drain(
        self,
        *,
        delayed: bool = False,
        inline: bool = False,
        concurrency: int = 1,
        most: int = 10_000,
    ) -> int:
        """Run all due jobs, and the jobs that they enqueue, until none is left. Returns the number
        of runs.

        Jobs fail, retry and time out as in a worker, and due schedules make their jobs. With
        `delayed`, the clock moves on to the next delayed job or retry until there is none. More
        than `most` runs raise AssertionError, because jobs seem to enqueue each other for ever.

        With `inline`, handlers run in the test's own thread, without threads and processes, and
        `drain` raises what a handler raised. The failure is stored before that, as in a worker.
        `Snooze`, `RateLimited`, `RetryAfter` with a retry left, timeouts and waits are no failures
        of the test. A plain handler that uses `.sync` or has async dependencies needs
        `jobs.sync.drain(inline=True)`.
        """
        return await self._drain(delayed, concurrency, most, call_here if inline else None)

    async def _drain(
        self, delayed: bool, concurrency: int, most: int, call_plain: CallPlain | None
    ) -> int:
        check_int(concurrency, "concurrency", low=1)
        tasks: dict[QueueName, Mapping[str, Handler]] = {
            one.qname: one.tasks for one in self.queues
        }
        store = await self.queues[0]._context.store()
        for one in self.queues:  # as a worker does when it starts
            await put_planned(store, await one._context.plans(), self._since_ms)
        drainer = Drainer(store, tasks, concurrency, most, self._lifespan, call_plain)
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

        Arguments that are not given may have any value, so without arguments any job of the task
        will do. A value may be anything that compares, such as `unittest.mock.ANY`."""
        jobs = await self.enqueued(task)
        found = [job for job in jobs if _fits(task, job, args, kwargs)]
        if not found:
            calls = "".join(f"\n  {_call(job.args, job.kwargs)}" for job in jobs) or " none"
            raise AssertionError(
                f"{task.name}{_call(args, kwargs)} was not enqueued. Jobs of {task.name}:{calls}"
            )
        return found[-1]

    async def assert_not_enqueued(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> None:
        """Check that no job of this task was enqueued with these arguments, whatever its other
        arguments are; without arguments, none at all."""
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

    def drain(
        self,
        *,
        delayed: bool = False,
        inline: bool = False,
        concurrency: int = 1,
        most: int = 10_000,
    ) -> int:
        """See `Sandbox.drain`. With `inline`, plain handlers run in the calling thread, and async
        ones in the event loop behind `.sync`."""
        if inline:
            return run_calling_here(
                lambda call_plain: self._sandbox._drain(delayed, concurrency, most, call_plain)
            )
        return portal.run(self._sandbox._drain(delayed, concurrency, most, None))

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
    """Whether the job has these arguments. Others may have any value."""
    definition = task._definition
    wanted = definition.named(args, kwargs)
    found = definition.bound(job.args, job.kwargs)
    return all(name in found and _equal(task, value, found[name]) for name, value in wanted.items())


def _equal(task: Task[..., Any], wanted: Any, found: Any) -> bool:
    """Compare a value as it looks after encoding and decoding. One that cannot be encoded, such as
    `unittest.mock.ANY`, compares itself."""
    codec = task._context.codec
    try:
        wanted = codec.decode(codec.encode(wanted))
    except InvalidJob:
        pass
    return bool(wanted == found)


def _call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    parts = [*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())]
    return f"({', '.join(parts)})"
