"""`current_job()`: the job a handler finds itself in. The engine sets it for each run; it follows into threads and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from jobq.core.records import Lease
from jobq.errors import JobNotFound

T = TypeVar("T")


class Running(Protocol):
    """A run, as far as its handler and its executor may see it."""

    lease: Lease
    cancelled: bool
    task: asyncio.Task[None] | None
    linger: asyncio.Future[None] | None  # set by an executor that was told to stop and cannot yet: the slot stays taken

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The worker's event loop."""
        ...

    def encode(self, value: Any) -> bytes:
        """A value in the job's codec."""
        ...

    def decode(self, data: bytes) -> Any:
        """A value out of the job's codec."""
        ...

    async def note(self, progress: bytes | None, lines: tuple[str, ...]) -> None:
        """Keep progress and log lines; returns when they are stored."""
        ...


running: ContextVar[Running] = ContextVar("jobq_running")


class CurrentJob:
    """The job that is running here. Reading costs nothing; `progress` and `log` return when the store has it."""

    __slots__ = ("_run",)

    def __init__(self, run: Running) -> None:
        self._run = run

    def __repr__(self) -> str:
        return f"<CurrentJob {self.id} ({self.name}) of queue {self.queue}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """Unique in its queue."""
        return self._run.lease.id

    @property
    def name(self) -> str:
        """Its task's name."""
        return self._run.lease.name

    @property
    def queue(self) -> str:
        """Its queue's name."""
        return self._run.lease.queue.queue

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self._run.lease.queue.tenant

    @property
    def attempt(self) -> int:
        """Which run this is, from 1: every claim counts, whatever it led to."""
        return self._run.lease.attempt

    @property
    def key(self) -> str | None:
        """Its ordering key."""
        return self._run.lease.key

    @property
    def saved(self) -> Any:
        """What an earlier run kept with `Snooze(saved=…)`; None if nothing."""
        data = self._run.lease.saved
        return None if data is None else self._run.decode(data)

    @property
    def cancelled(self) -> bool:
        """Whether this run was asked to stop: a cancel, its timeout, a worker handing back, a lost lease.

        An async handler is interrupted as well, at its next `await`; a plain function has to look."""
        return self._run.cancelled

    async def progress(self, value: Any) -> None:
        """Say how far it is, in any form; the last one is kept."""
        await self._run.note(self._run.encode(value), ())

    async def log(self, line: str) -> None:
        """Add a line to the job's log."""
        await self._run.note(None, (line,))

    @property
    def sync(self) -> SyncCurrentJob:
        """The same, for plain functions."""
        return SyncCurrentJob(self._run)


class SyncCurrentJob(CurrentJob):
    """`progress` and `log` that block, for handlers that run in a thread."""

    __slots__ = ()

    def progress(self, value: Any) -> None:  # type: ignore[override]  # its blocking twin, on purpose
        """Say how far it is, in any form; the last one is kept."""
        self._wait(super().progress(value))

    def log(self, line: str) -> None:  # type: ignore[override]  # its blocking twin, on purpose
        """Add a line to the job's log."""
        self._wait(super().log(line))

    def _wait(self, step: Coroutine[Any, Any, T]) -> T:
        loop = self._run.loop
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            step.close()
            raise RuntimeError("current_job().sync would block the worker's own event loop: use `await current_job().…` here")
        return asyncio.run_coroutine_threadsafe(step, loop).result()


def current_job() -> CurrentJob:
    """The job this code runs in. JobNotFound outside of one."""
    run = running.get(None)
    if run is None:
        raise JobNotFound("current_job(): no job is running here; it works in a handler that a worker runs")
    return CurrentJob(run)
