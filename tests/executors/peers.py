"""Children of a pool without a process: the test is the other end of the line.

A worker with such children is real, with its pool, its slots and its store. Only the processes are
not, so that thousands of jobs can try what a hostile handler could send.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from jobq import Queue, Worker
from jobq.core.records.jobs import Complete
from jobq.executors.pool import pool as pool_module
from jobq.executors.pool.child import Child
from jobq.executors.pool.messages import (
    Done,
    Frames,
    FromChild,
    Hello,
    Ready,
    Reply,
    SharedFile,
    Start,
    decode_to_child,
    frame,
)
from jobq.executors.pool.pool import Pool

KILLED = -signal.SIGKILL
Script = Callable[["Peer", Start], None]


class Peer:
    """Plays a child process: it does what its tests say, and is otherwise as it should be."""

    def __init__(self, child: PlayedChild, connection: socket.socket, printed: int) -> None:
        self.child = child
        self.dead = False
        self.start: Start | None = None  # its last job
        self.replies: list[Reply] = []
        self.at_ready: Callable[[Peer], None] = lambda peer: peer.say(Ready())
        self.at_stop: Callable[[Peer], None] = lambda peer: None
        self.at_end: Callable[[Peer], None] = lambda peer: peer.die(0)
        self._connection, self._printed = connection, printed
        self._frames = Frames()
        self._unsent = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._readable)

    def say(self, *messages: FromChild) -> None:
        """Send messages."""
        self.send(b"".join(map(frame, messages)))

    def send(self, data: bytes) -> None:
        """Send bytes, as far as the worker takes them."""
        if not self.dead:
            self._unsent += data
            self._write()

    def write(self, text: bytes) -> None:
        """Print."""
        with suppress(BlockingIOError):
            os.write(self._printed, text)

    def hang_up(self) -> None:
        """Close the line, and live on."""
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._connection.close()
        self._unsent = b""

    def die(self, status: int) -> None:
        """End the process."""
        if not self.dead:
            self.dead = True
            if self._connection.fileno() >= 0:
                self.hang_up()
            os.close(self._printed)
            self.child.process.returncode = status
            self._loop.call_soon(self.child._exited)

    def begin(self, start: Start) -> None:
        """Do what a process does first when it gets a job."""
        self.start = start
        descriptor = self.child._shared.descriptor
        os.pwrite(descriptor, start.n.to_bytes(8, sys.byteorder), 0)

    def _write(self) -> None:
        if self._connection.fileno() < 0:
            return
        try:
            sent = self._connection.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._connection, self._write)
        else:
            self._loop.remove_writer(self._connection)

    def _readable(self) -> None:
        try:
            data = self._connection.recv(2**16)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._connection)
            self.at_end(self)
            return
        for body in self._frames.feed(data):
            message = decode_to_child(body)
            if isinstance(message, Hello):
                self.at_ready(self)
            elif isinstance(message, Start):
                self.begin(message)
                self.child.scripts[message.task.task](self, message)
            else:
                self.replies.append(message)


class PlayedChild(Child):
    """A child whose process is a `Peer` in this one."""

    scripts: dict[str, Script]
    on_start: Callable[[Peer], None]
    peer: Peer

    def _start(self, hello: Hello) -> None:
        here, there = socket.socketpair()
        self._printed, printed = os.pipe()
        for each in (here, there):
            each.setblocking(False)
        for pipe in (self._printed, printed):
            os.set_blocking(pipe, False)
        self._shared = SharedFile()
        self._socket = here
        self.process: Any = _Process()
        self._exit: Any = _Process()
        self._loop.add_reader(here, self._readable)
        self._loop.add_reader(self._printed, self._read_output)
        self.peer = Peer(self, there, printed)
        self.on_start(self.peer)
        self._send(frame(hello))

    def _signal(self, number: signal.Signals) -> None:
        if number == signal.SIGKILL:
            self.peer.die(KILLED)
        elif not self.peer.dead:
            self.peer.at_stop(self.peer)


class _Process:
    pid = 0
    returncode: int | None = None

    def wait(self) -> int | None:
        return self.returncode

    def close(self) -> None: ...


def completed(start: Start, result: bytes = b"null") -> Done:
    """The end of a job that has returned."""
    lease = start.lease
    outcome = Complete(queue=lease.queue, id=lease.id, token=lease.token, result=result)
    return Done(start.n, outcome)


def echo(peer: Peer, start: Start) -> None:
    """Return the first argument of the job."""
    (argument,), _ = json.loads(start.lease.payload)
    peer.say(completed(start, json.dumps(argument).encode()))


@dataclass
class PlayedPool:
    """A worker whose children are played, and its tasks."""

    queue: Queue
    worker: Worker
    peers: list[Peer]  # all that were ever started
    innocent: Any
    hostile: Any

    @property
    def pool(self) -> Pool:
        """The worker's pool."""
        executor: Any = self.worker._executors["process"]
        pool: Pool = executor._pool
        return pool

    @property
    def is_calm(self) -> bool:
        """Whether all slots are free, and no job is at a child or waits for one."""
        slots = self.worker._slots
        return (
            slots is not None
            and slots.free == slots.total
            and not self.pool._waiting
            and all(child.run is None for child in self.pool._children)
        )


@asynccontextmanager
async def played(
    monkeypatch: pytest.MonkeyPatch,
    hostile: Script,
    *,
    innocent: Script = echo,
    on_start: Callable[[Peer], None] = lambda peer: None,
    timeout: float | None = None,
    grace: float = 0.05,
    **options: Any,
) -> AsyncIterator[PlayedPool]:
    """A worker with two tasks: `innocent` returns its argument, `hostile` does what the test says.

    `on_start` is called with every peer before it gets its first message.
    """
    peers: list[Peer] = []

    def started(peer: Peer) -> None:
        peers.append(peer)
        on_start(peer)

    class Played(PlayedChild):
        pass

    Played.scripts = {"innocent": innocent, "hostile": hostile}
    Played.on_start = staticmethod(started)
    monkeypatch.setattr(pool_module, "Child", Played)
    queue = Queue("line", f"memory://{uuid4().hex}")

    def run(argument: Any) -> Any: ...

    good = queue.task(name="innocent", executor="process", retry=0)(run)
    bad = queue.task(name="hostile", executor="process", retry=0, timeout=timeout, grace=grace)(run)
    async with queue, Worker(queue, **{"pool": 2, "concurrency": 4, **options}) as worker:
        yield PlayedPool(queue, worker, peers, good, bad)
