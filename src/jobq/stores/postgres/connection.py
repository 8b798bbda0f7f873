"""The connections of one handle.

A handle has one connection, and a handle that settles a second one, so that a worker's two
exchanges commit side by side (`Pipelined.lanes`). Each has a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from jobq.errors import StoreUnavailable
from jobq.stores.postgres import mailbox
from jobq.stores.postgres.address import Address
from jobq.stores.postgres.clock import StoreClock
from jobq.stores.postgres.connection_thread import ConnectionThread, Kind, Request, resolve
from jobq.stores.postgres.link import Link

MAX_CONNECTIONS = 2
"""Connections of a handle that settles."""
CLOSE_S = 2.0
"""Seconds that closing waits for a thread. A thread that resolves a host name cannot be stopped."""

MakeTx = Callable[[Link, int, int, bool], Any]
"""Makes the object for a transaction: of its link, the store's time, `ahead`, and `writes`."""


class Connections:
    """The connections of one handle, and the requests that wait for one."""

    def __init__(
        self, address: Address, clock: StoreClock, make_tx: MakeTx, box: mailbox.ChannelMailbox
    ) -> None:
        self.address = address
        self.clock = clock
        self.make_tx = make_tx
        self.box = box
        self.settles = False
        """Whether a second connection may be opened."""
        self.listening = False
        """Whether somebody waits for notifications, so that a lost connection is replaced."""
        self.relisten: Callable[[], None] | None = None
        """Called in the event loop after a lost connection was replaced: signals may be missing."""
        self.replaced: Callable[[], None] | None = None
        """Called in the thread of a lost connection that was replaced, before its next call. The
        new one may lead to another server, or to tables that were restored."""
        self.incarnation = ""
        self.log = ""
        """The id of the log in the tables. Tables that were dropped and made again have another."""
        self.requests: deque[Request] = deque()
        self.lock = threading.Lock()
        self.stopping = False
        self.stop_reading, self._stop_writing = os.pipe()
        self._pid = os.getpid()
        self._threads = [ConnectionThread(self, listens=box.listens)]
        self._threads[0].start()

    def submit(
        self, kind: Kind, work: Callable[..., Any], args: tuple[Any, ...], timeout: float = 0.0
    ) -> asyncio.Future[Any]:
        """Run a request on the next connection that is free. `timeout` 0: that of the address."""
        if os.getpid() != self._pid:
            raise StoreUnavailable(
                "this handle was opened before the process forked, and its connections belong to "
                "the parent: open another one in the child"
            )
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        request = Request(kind, work, args, timeout or self.address.timeout, loop, future)
        with self.lock:
            if self.stopping:
                raise StoreUnavailable("this store is closed: open another handle")
            self.requests.append(request)
            idle = next((thread for thread in self._threads if thread.idle), None)
            if idle is not None:
                idle.idle = False
                idle.wake()
            elif self.settles and len(self._threads) < MAX_CONNECTIONS:
                thread = ConnectionThread(self, listens=False)
                self._threads.append(thread)
                thread.start()
        return future

    def take(self, thread: ConnectionThread) -> Request | None:
        """The next request. None: there is none, and the thread is idle from now on."""
        with self.lock:
            if self.requests:
                thread.idle = False
                return self.requests.popleft()
            thread.idle = True
            return None

    def close(self) -> None:
        """Cancel what is in flight, refuse what waits, and close the connections."""
        with self.lock:
            if self.stopping:
                return
            self.stopping = True
            waiting = list(self.requests)
            self.requests.clear()
        os.write(self._stop_writing, b"x")
        for request in waiting:
            resolve(request, None, StoreUnavailable("this store was closed"))
        ended = [thread.join(CLOSE_S) for thread in self._threads]
        if all(ended):  # a thread that is left still polls the descriptor
            os.close(self.stop_reading)
            os.close(self._stop_writing)
