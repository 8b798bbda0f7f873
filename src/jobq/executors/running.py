"""The run that code finds itself in: the engine sets `running`, executors and handlers read it.

The context variable follows a run into its threads and asyncio tasks.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, Protocol

from jobq.core.records import Lease
from jobq.core.waits import Children, Inbox
from jobq.stores.base import Store


class Running(Protocol):
    """A run, as far as its handler and its executor may see it."""

    lease: Lease
    cancelled: bool
    task: asyncio.Task[None] | None
    unfinished: (
        asyncio.Future[None] | None
    )  # set by an executor that was told to stop and cannot yet: the slot stays taken

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The worker's event loop."""
        ...

    @property
    def store(self) -> Store:
        """Where its job is kept."""
        ...

    @property
    def max_retries(self) -> int:
        """How many failures of its job are retried."""
        ...

    @property
    def children(self) -> Children:
        """The jobs it has added."""
        ...

    @property
    def inbox(self) -> Inbox:
        """The signals its job has received."""
        ...

    def check(self) -> None:
        """Executors call this just before the function, where it runs. Raises if the lease is over: then nothing is called."""
        ...

    def encode(self, value: Any, what: str) -> bytes:
        """A value in the job's codec, if it is not larger than a result may be; `what` names it where it is."""
        ...

    def decode(self, data: bytes) -> Any:
        """A value out of the job's codec."""
        ...

    async def note(self, progress: bytes | None, lines: tuple[str, ...]) -> None:
        """Store progress and log lines; returns when that is done. If the lease is lost they are dropped and the run stops."""
        ...


running: ContextVar[Running] = ContextVar("jobq_running")
