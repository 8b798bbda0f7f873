"""The connections of one handle, and the thread that uses each of them.

A handle has one connection, and a handle that settles a second one, so that a worker's two
exchanges commit side by side (`Pipelined.lanes`). Each has a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from jobq.errors import StoreUnavailable
from jobq.stores.postgres import failures, mailbox, schema, session, waking
from jobq.stores.postgres.address import Address, connect
from jobq.stores.postgres.clock import StoreClock
from jobq.stores.postgres.link import LOST, Link, LinkStopped, StatementFailed
from jobq.stores.relational.mailbox import Notice
from jobq.stores.relational.settle import finish

# A connection of a handle, and the thread that uses it.
#
# The thread waits for requests and for notifications, and runs each request in a transaction. The
# shared logic of stores/relational therefore reads and writes as if it were alone.
#
# A call that meets a deadlock, a serialization failure or a lock timeout has changed nothing and is
# repeated. So is a call whose connection is lost before its commit was sent. If the connection is
# lost later, nobody knows whether the call was applied: StoreUnavailable.

log = logging.getLogger("jobq")

TRIES = 10
"""How often a call is repeated that meets others, before it fails."""
PAUSE_S = 0.005
"""Seconds before the first repetition; the pause doubles with each one, with jitter."""
FIRST_RETRY_S = 0.1
"""Seconds between the first two attempts to connect; doubles up to LAST_RETRY_S, with jitter."""
LAST_RETRY_S = 5.0
CHECK_S = 60.0
"""Seconds after which a connection that only waits for notifications is checked by a statement. The
kernel finds a dead peer sooner (keepalives), but not a proxy that swallows packets."""

BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
BEGIN_READ = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
SAVE_CLOCK = """
INSERT INTO meta (name, value) VALUES ('clock', $1)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


class Kind(Enum):
    """How a request runs."""

    WRITE = "write"  # work(tx, *args) in a transaction
    TICK = "tick"  # the same, and the store's time is stored
    READ = "read"  # work(tx, *args) on a consistent view of the data
    FAST = "fast"  # work(link, now, ahead, *args), whose statements are transactions of their own
    LINK = "link"  # work(link, clock, *args), which makes transactions of its own


class Request(NamedTuple):
    """A call of the handle, and where its result goes."""

    kind: Kind
    work: Callable[..., Any]
    args: tuple[Any, ...]
    timeout: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class ConnectionThread:
    """A connection and its thread."""

    def __init__(self, owner: Connections, *, listens: bool) -> None:
        self.idle = False
        self._owner = owner
        self._listens = listens
        self._link: Link | None = None
        self._committing = False
        self._failures = 0  # attempts to connect that failed, one after the other
        self._not_before = 0.0  # no attempt to connect before this time
        self._lost = False  # a connection was lost: notifications may be missing
        self._reading, self._writing = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="jobq-postgres", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There is a request."""
        os.write(self._writing, b"x")

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread. False: it did not end in time."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        os.close(self._reading)
        os.close(self._writing)
        return True

    def _serve(self) -> None:
        try:
            while not self._owner.stopping:
                request = self._owner.take(self)
                if request is None:
                    self._wait()
                elif not request.future.cancelled():
                    try:
                        answer, error = self._run(request), None
                    except BaseException as e:  # the caller gets the error
                        answer, error = None, e
                    resolve(request, answer, error)
        except LinkStopped:
            pass
        finally:
            self._drop()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _run(self, request: Request) -> Any:
        """Run a request, again if it met others or lost its connection before the commit."""
        deadline = time.monotonic() + request.timeout
        tries = 0
        while True:
            fresh = self._link is None
            try:
                return self._once(request, deadline)
            except StatementFailed as e:
                self._undo()
                if e.sqlstate in failures.READ_ONLY | failures.MISSING:
                    self._drop()
                elif e.sqlstate in failures.AGAIN and tries < TRIES and self._can_wait(e, deadline):
                    tries += 1
                    self._pause(tries, deadline)
                    continue
                address = self._owner.address
                error = failures.translated(e, address.shown, address.schema)
                raise error from error.__cause__
            except LinkStopped:
                if self._link is not None:
                    self._link.cancel()
                self._drop()
                raise StoreUnavailable("this store was closed during the call") from None
            except LOST as e:
                self._drop()
                if not fresh and not self._committing and time.monotonic() < deadline:
                    continue
                raise StoreUnavailable(f"{self._owner.address.shown} is unavailable: {e}") from e
            except BaseException:
                self._undo()
                raise

    def _once(self, request: Request, deadline: float) -> Any:
        self._committing = False
        owner = self._owner
        link = self._connected(deadline)
        link.deadline = deadline
        if request.kind is Kind.LINK:
            self._committing = True
            return request.work(link, *request.args)
        while owner.clock.stale() or not owner.incarnation:
            self._read_server(link)
        if request.kind is Kind.FAST:
            self._committing = True
            return request.work(link, *owner.clock.read(), *request.args)
        writes = request.kind is not Kind.READ
        self._begin(link, BEGIN if writes else BEGIN_READ)
        now, ahead = owner.clock.read()
        tx = owner.make_tx(link, now, ahead, writes)
        result = request.work(tx, *request.args)
        if not writes:
            link.command(b"COMMIT").quiet = True
            link.flush()  # nobody needs the reply
            return result
        finish(tx)
        woken = waking.of_request(tx)
        tx.flush()
        saved = owner.clock.unsaved(tick=request.kind is Kind.TICK)
        if saved is not None:
            link.execute(SAVE_CLOCK, (saved,))
        self._commit(link, tx, *woken)
        if saved is not None:
            owner.clock.saved(saved)
        return result

    def _begin(self, link: Link, begin: bytes) -> None:
        link.command(begin)
        if link.pooled:
            session.apply(link, self._owner.address, injected=self._owner.clock.injected)

    def _commit(
        self, link: Link, tx: Any, work: list[waking.Work], happened: list[waking.Happened]
    ) -> None:
        """Commit. Then wake workers and send notices in the same round trip."""
        notices: list[Notice] = tx.notices
        self._committing = True
        # The server skips the commit if a statement that was queued before it fails.
        committed = link.command(b"COMMIT")
        box = self._owner.box
        others = [notice for notice in notices if notice.address != box.address]
        link.sync()
        waking.send(link, tx.now, tx.memory, work, happened, waking.ranges(tx.memory, work))
        if others:
            mailbox.send(link, others)
        link.flush()
        if committed.result().command_status != b"COMMIT":
            raise StatementFailed("40000", "the transaction was rolled back")
        for notice in notices:
            if notice.address == box.address:
                box.deliver(notice)

    def _read_server(self, link: Link) -> None:
        """Read the server's clock, and check that the tables still have a layout that is known."""
        owner = self._owner
        self._begin(link, BEGIN_READ)
        found = session.read_state(link)
        schema.check(found.oldest, link, owner.address)
        link.command(b"COMMIT")
        link.wait()
        owner.incarnation, owner.log = found.incarnation, found.log or owner.log
        owner.clock.observe(found.server_s, found.sent, found.received, found.clock, found.latest)

    def _undo(self) -> None:
        """Roll back what the request has begun."""
        if self._link is None:
            return
        try:
            self._link.discard()
            self._link.command(b"ROLLBACK")
            self._link.discard()
        except LOST:
            self._drop()

    def _can_wait(self, error: StatementFailed, deadline: float) -> bool:
        """Whether there is time for another wait for a lock. Else its error says more than that the
        call took too long."""
        wait = session.lock_s(self._owner.address) if error.sqlstate == failures.LOCK_TIMEOUT else 0
        return time.monotonic() + wait < deadline

    def _pause(self, tries: int, deadline: float) -> None:
        """Wait before a repetition, so that calls that met do not meet again."""
        pause = PAUSE_S * 2 ** min(tries, 6) * random.uniform(0.5, 1.5)
        self._sleep(min(pause, deadline - time.monotonic()))

    def _sleep(self, seconds: float) -> None:
        if seconds > 0 and select.select([self._owner.stop_reading], [], [], seconds)[0]:
            raise LinkStopped("the handle is being closed")

    # ── the connection ────────────────────────────────────────────────────────────────────────────

    def _connected(self, deadline: float) -> Link:
        """The connection, which is made if there is none."""
        if self._link is not None:
            return self._link
        self._sleep(min(self._not_before, deadline) - time.monotonic())
        owner = self._owner
        try:
            timeout = max(1.0, deadline - time.monotonic())
            link = connect(owner.address, owner.stop_reading, timeout)
            self._link = link
            session.check_server(link, owner.address.shown)
            if not link.pooled:
                session.apply(link, owner.address, injected=owner.clock.injected)
            if self._listens:
                link.notified = owner.box.notified
                link.command(f"LISTEN {owner.box.channel}".encode())
            link.wait()
        except BaseException:
            self._drop()
            wait = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures, 8))
            self._failures += 1
            self._not_before = time.monotonic() + wait * random.uniform(0.5, 1.0)
            raise
        self._failures = 0
        if self._lost and owner.replaced is not None:
            owner.incarnation = ""  # look again
            owner.replaced()
        if self._lost and self._listens and owner.listening and owner.relisten is not None:
            self._lost = False
            owner.relisten()
        return link

    def _drop(self) -> None:
        if self._link is not None:
            self._lost = True
            with contextlib.suppress(Exception):
                self._link.close()
            self._link = None

    def _wait(self) -> None:
        """Wait for a request. Meanwhile receive notifications, and keep the connection alive."""
        owner = self._owner
        alive = self._listens and owner.listening
        if self._link is None and alive and time.monotonic() >= self._not_before:
            self._reconnect()
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        poll.register(owner.stop_reading, select.POLLIN)
        seconds = CHECK_S
        if self._link is not None and self._receive(self._link.catch_up):
            poll.register(self._link.pgconn.socket, select.POLLIN)
        elif alive:
            seconds = max(0.01, self._not_before - time.monotonic())
        ready = dict(poll.poll(seconds * 1000 if alive else None))
        if self._reading in ready:
            os.read(self._reading, 64)
        if self._link is None:
            return
        if self._link.pgconn.socket in ready:
            self._receive(self._link.receive)
        elif not ready:
            self._receive(self._link.check)

    def _receive(self, receive: Callable[[], None]) -> bool:
        """Receive what has arrived. False: the connection is lost."""
        assert self._link is not None
        self._link.deadline = time.monotonic() + self._owner.address.timeout
        try:
            receive()
        except LinkStopped:
            raise
        except (*LOST, StatementFailed) as e:
            log.warning("lost the connection to %s: %s", self._owner.address.shown, e)
            self._drop()
            return False
        return True

    def _reconnect(self) -> None:
        owner = self._owner
        try:
            self._connected(time.monotonic() + owner.address.timeout)
        except LinkStopped:
            raise
        except Exception as e:  # the next attempt comes later
            log.warning("cannot connect to %s: %s", owner.address.shown, e)


def resolve(request: Request, result: Any, error: BaseException | None) -> None:
    """Resolve the future of a request, in its event loop."""
    # The loop may have been closed meanwhile. Then nobody waits for the answer.
    with contextlib.suppress(RuntimeError):
        request.loop.call_soon_threadsafe(_set, request.future, result, error)


def _set(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


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
