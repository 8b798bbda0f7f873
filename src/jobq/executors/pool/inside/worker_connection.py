"""The child's end of the socket pair: receives jobs, and asks the worker for what a job needs.

A plain function runs in the main thread, so its requests block that thread. An async function runs
in an event loop, and its requests are awaited there. SIGTERM asks the running handler to stop: it
gets CancelledError in its main thread, or at its next `await`.
"""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jobq import errors
from jobq.executors.pool.messages import (
    WINDOW,
    Frames,
    FromChild,
    Hello,
    Reply,
    Request,
    Shared,
    Start,
    ToChild,
    decode_to_child,
    frame,
    longest,
)

_CHUNK = 2**15
"""Bytes that one read takes at most. For more, the C library would map memory for every read."""


_ASKED = "the run was asked to stop"


class WorkerGone(Exception):
    """The worker has closed the socket pair, or is dead."""


class JobOver(errors.LeaseLost):
    """A thread that outlived its job asks for something."""


class WorkerConnection:
    """The connection to the worker."""

    def __init__(self, connection: socket.socket, shared: Shared) -> None:
        self._socket = connection
        self._frames = Frames()
        self._received: list[ToChild] = []
        self._lock = threading.Lock()  # threads of a handler may ask at the same time
        self._asked = 0
        self._main = threading.get_ident()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._unanswered = 0  # requests of the running job
        self._room: deque[asyncio.Future[None]] = deque()  # they wait for replies to others
        self._longest = longest(None)
        self.stop_asked = False  # of the running job
        self._shared = shared
        self._running = 0  # the number of the job that runs
        self._interruptible = False  # the main thread runs a plain function
        self._shielded = False  # the main thread sends or receives: CancelledError must wait
        self.task: asyncio.Task[Any] | None = None  # of the running async function
        self.loop: asyncio.AbstractEventLoop | None = None  # while it runs an async function
        signal.signal(signal.SIGTERM, self._on_stop)

    # ── stopping ──

    def begin_job(self, n: int) -> None:
        """The n-th job runs from now on."""
        self._shared.begin(n)
        self.stop_asked, self._running = False, n
        self._unanswered = 0

    def limit(self, max_payload: int | None) -> None:
        """The handler of the running job may encode this many bytes."""
        self._longest = longest(max_payload)

    def end_job(self) -> None:
        """The job has ended. SIGTERM and requests come too late.

        A request of another thread is completed first. Otherwise its reply, or the next job, would
        be read by the wrong thread.
        """
        with self._lock:
            self._running = 0

    def _check(self, n: int) -> None:
        if n != self._running:
            raise JobOver("the job has ended: a thread that it has left behind can store nothing")

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a function. While it runs, SIGTERM raises CancelledError in the main thread."""
        self._interruptible = True
        try:
            if self.stop_asked:  # while the arguments were decoded
                raise asyncio.CancelledError(_ASKED)
            return fn(*args, **kwargs)
        finally:
            self._interruptible = False

    def _on_stop(self, number: int, at: FrameType | None) -> None:
        if not self._running or self.stop_asked or self._shared.asked != self._running:
            return
        self.stop_asked = True
        if self.loop is not None and self.task is not None:
            self.loop.call_soon_threadsafe(self.task.cancel, _ASKED)
        elif self._interruptible and not self._shielded:
            raise asyncio.CancelledError(_ASKED)

    @contextmanager
    def _shield(self) -> Iterator[None]:
        """Let SIGTERM wait: half a message would make the rest unreadable."""
        if threading.get_ident() != self._main or not self._interruptible:
            yield
            return
        before = self.stop_asked
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self.stop_asked and not before:
            raise asyncio.CancelledError(_ASKED)

    # ── messages ──

    def receive(self) -> Hello | Start:
        """Wait for the next message that is no reply."""
        while True:
            while self._received:
                message = self._received.pop(0)
                if not isinstance(message, Reply):
                    return message
            self._read()

    def send(self, message: FromChild) -> None:
        """Send a message. PayloadTooLarge if the worker would not take it."""
        data = frame(message)
        if len(data) > self._longest:
            raise errors.PayloadTooLarge(
                f"a message of the job to its worker takes {len(data):,} bytes, more than the "
                f"{self._longest:,} allowed: pass a reference, or wait for fewer jobs at a time"
            )
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise WorkerGone from error

    def _read(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise WorkerGone from error
        if not data:
            raise WorkerGone
        for body in self._frames.feed(data):
            message = decode_to_child(body)
            self._received.append(message)
            if isinstance(message, Reply):
                self._unanswered -= 1

    # ── requests ──

    def next(self) -> int:
        """The number of the next request."""
        self._asked += 1
        return self._asked

    async def ask(self, n: int, request: Request) -> Reply:
        """Send a request of the n-th job and return its reply.

        Raises the error that the worker met, or JobOver if the job has ended.
        """
        self._check(n)
        loop = self.loop
        if loop is None:
            reply = self._ask_blocking(n, request)
        elif loop is asyncio.get_running_loop():
            reply = await self._ask_in_loop(n, request, loop)
        else:  # a thread with an event loop of its own. Only one thread reads the socket
            asked = asyncio.run_coroutine_threadsafe(self._ask_in_loop(n, request, loop), loop)
            reply = await asyncio.wrap_future(asked)
        if reply.error is not None:
            raise _error(*reply.error)
        return reply

    def _ask_blocking(self, n: int, request: Request) -> Reply:
        with self._lock:
            self._check(n)
            with self._shield():
                while self._unanswered >= WINDOW:
                    self._read()
                self.send(request)
                self._unanswered += 1
            while True:
                select.select([self._socket], [], [])  # CancelledError may come here
                with self._shield():
                    self._read()
                for message in self._received:
                    if isinstance(message, Reply) and message.n == request.n:
                        self._received.remove(message)
                        return message

    async def _ask_in_loop(
        self, n: int, request: Request, loop: asyncio.AbstractEventLoop
    ) -> Reply:
        future: asyncio.Future[Reply] = loop.create_future()
        if not self._waiting:
            loop.add_reader(self._socket, self._read_replies)
        self._waiting[request.n] = future
        try:
            while self._unanswered >= WINDOW:
                room = loop.create_future()
                self._room.append(room)
                await room
            self._check(n)  # here, because another thread may have asked before the job ended
            self.send(request)
            self._unanswered += 1
            return await future
        finally:
            del self._waiting[request.n]
            if not self._waiting:
                loop.remove_reader(self._socket)
            self._make_room()  # it may have been cancelled when it was its turn

    def _make_room(self) -> None:
        free = WINDOW - self._unanswered
        while free > 0 and self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                free -= 1

    def _read_replies(self) -> None:
        try:
            self._read()
        except WorkerGone as error:
            futures: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._room]
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        replies = [message for message in self._received if isinstance(message, Reply)]
        self._received = [message for message in self._received if not isinstance(message, Reply)]
        for reply in replies:
            waiting = self._waiting.get(reply.n)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
        self._make_room()


def _error(kind: str, message: str) -> Exception:
    """The error that the worker met, as an error of jobq if it was one."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.JobqError):
        return known(message) if known is not errors.JobFailed else errors.JobqError(message)
    return RuntimeError(f"{kind}: {message}")
