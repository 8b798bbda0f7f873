"""Notifies handles, also in other processes of the machine, that they should look again.

A mailbox is a loopback UDP port, or just a number for memory://. A writer reads from the tables
which mailboxes to notify, and does so after its commit: by a call in the same process, by a
datagram to another one. Datagrams can be lost, and any local program can send one, so a notice
never carries data that a handle relies on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from jobq.core.records import QueueName, Signal, Topic

_LONGEST = 2048
"""Bytes of the longest datagram that is read."""
_LATEST_MS = 10_000
"""Milliseconds that a `soon` notice may postpone a look at the most."""
_numbers = itertools.count(-1, -1)


class Notice(NamedTuple):
    """A notice and the mailbox it goes to.

    `work`: wake the worker `name`. `soon`: wake it in as many milliseconds as `job` says. Otherwise
    a topic: `ended` with the job's id as `name`, `cancel` with the worker as `name` and the job's
    id as `job`, or `log`.
    """

    port: int
    kind: str
    tenant: str
    queue: str
    name: str
    job: str | None = None


class Mailbox:
    """Receives the notices of one handle, on its event loop."""

    def __init__(self, *, across_processes: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._wakes: dict[str, asyncio.Event] = {}
        self._topics: dict[Topic, set[asyncio.Queue[Signal]]] = {}
        self.port = next(_numbers)
        if across_processes:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(("127.0.0.1", 0))
            self.port = self._socket.getsockname()[1]
            self._loop.add_reader(self._socket, self._readable)

    def close(self) -> None:
        """Receive no more notices."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def wake(self, worker: str) -> asyncio.Event:
        """The event that is set when there may be work for the worker. The caller clears it before
        it looks.
        """
        return self._wakes.setdefault(worker, asyncio.Event())

    def deliver(self, notice: Notice) -> None:
        """Receive a notice of this process. May be called from any thread."""
        # The loop may be closed: then the handle needs no notices.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, notice)

    def wake_all(self) -> None:
        """Wake all workers that sleep on this handle. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for event in self._wakes.values():
            event.set()

    @contextlib.asynccontextmanager
    async def subscribed(self, topics: Sequence[Topic]) -> AsyncIterator[AsyncIterator[Signal]]:
        """Yield the signals of these topics while the context lasts."""
        inbox: asyncio.Queue[Signal] = asyncio.Queue()
        for topic in topics:
            self._topics.setdefault(topic, set()).add(inbox)
        try:
            yield _drain(inbox)
        finally:
            for topic in topics:
                inboxes = self._topics[topic]
                inboxes.discard(inbox)
                if not inboxes:
                    del self._topics[topic]

    def _readable(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(_LONGEST)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                return
            with contextlib.suppress(msgspec.DecodeError):
                self._receive(msgspec.msgpack.decode(data, type=Notice))

    def _receive(self, notice: Notice) -> None:
        if notice.kind in ("work", "soon"):
            if (event := self._wakes.get(notice.name)) is None:
                return
            if notice.kind == "work":
                event.set()
            elif (
                notice.job is not None and notice.job.isdecimal()
            ):  # any program can send a datagram
                self._loop.call_later(min(int(notice.job), _LATEST_MS) / 1000, event.set)
            return
        queue = QueueName(notice.tenant, notice.queue)
        if notice.kind == "cancel":
            topic, signal = Topic("cancel", None, notice.name), Signal("cancel", queue, notice.job)
        elif notice.kind == "ended":
            topic, signal = Topic("ended", queue, notice.name), Signal("ended", queue, notice.name)
        else:
            topic, signal = Topic("log", queue, None), Signal("log", queue, None)
        for inbox in self._topics.get(topic, ()):
            inbox.put_nowait(signal)


class Post:
    """Sends the notices of one process: to its own mailboxes by a call, to others by a datagram."""

    def __init__(self) -> None:
        self.mailboxes: dict[int, Mailbox] = {}
        self._socket: socket.socket | None = None

    def send(self, notices: Sequence[Notice]) -> None:
        """Send notices. A handle that misses one looks again by itself, later."""
        for notice in notices:
            mailbox = self.mailboxes.get(notice.port)
            if mailbox is not None:
                mailbox.deliver(notice)
            elif notice.port > 0:
                if self._socket is None:
                    self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                    self._socket.setblocking(False)
                with contextlib.suppress(OSError):
                    self._socket.sendto(msgspec.msgpack.encode(notice), ("127.0.0.1", notice.port))

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def alive(pid: int) -> bool:
    """Whether a process of this machine exists; True if that is unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


async def _drain(inbox: asyncio.Queue[Signal]) -> AsyncIterator[Signal]:
    while True:
        yield await inbox.get()
