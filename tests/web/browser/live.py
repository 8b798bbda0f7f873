"""A live store for the browser's tests: real workers and the dashboard, in a thread of their own.

Playwright's blocking interface has the main thread. `Live` runs an event loop in another one, with
the queues, the workers and an HTTP server per variant of the dashboard.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Self, TypeVar

import uvicorn

from jobq import Queue, Reject, Worker, current_job
from tests.waiting import PATIENCE_S, until

T = TypeVar("T")


class Live:
    """An event loop in a thread. `run` gives it a coroutine and waits for the result."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="live", daemon=True)
        self._stack = contextlib.AsyncExitStack()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self._stack.aclose())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(PATIENCE_S)
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop of the store and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def queue(self, name: str, **options: Any) -> Queue:
        """A queue of the store, open until the end."""
        return self.run(self._stack.enter_async_context(Queue(name, self.url, **options)))

    def work(self, *queues: Queue, **options: Any) -> Worker:
        """A worker that runs until the end, or until an operator stops it."""
        return self.run(self._stack.enter_async_context(Worker(*queues, drain=2, **options)))

    def serve(self, app: Any) -> str:
        """Serve an ASGI application and return its address."""
        return self.run(self._stack.enter_async_context(served(app)))


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """An ASGI application on a free port of the loopback interface."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started or serving.done(), "the HTTP server")
        assert server.started, "the HTTP server has stopped at its start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()


def add_tasks(queue: Queue) -> None:
    """Tasks with everything that a page can show."""

    @queue.task(name="charge", retry=0)
    async def charge(customer: str, cents: int = 100) -> dict[str, Any]:
        job = current_job()
        await job.log(f"charging {customer}")
        await job.progress({"done": 1, "total": 2})
        return {"customer": customer, "cents": cents}

    @queue.task(name="decline", retry=0)
    async def decline(customer: str) -> None:
        await current_job().log(f"declined: {customer}")
        raise ValueError(f"card of {customer!r} was declined")

    @queue.task(name="refuse", retry=0)
    async def refuse(customer: str) -> None:
        raise Reject(f"{customer} is blocked")

    @queue.task(name="wait", retry=0)
    async def wait() -> str:
        """Runs until a test sends the signal `go`, or cancels it."""
        gate = asyncio.Event()
        GATES.append(gate)
        await current_job().log("waiting at the gate")
        await gate.wait()
        return "passed"

    @queue.task(name="add")
    async def add(*numbers: int) -> int:
        return sum(numbers)


GATES: list[asyncio.Event] = []
"""Of running `wait` jobs, in the order of their starts."""
