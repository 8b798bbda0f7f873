"""Runs requests in transactions on one connection.

Requests that arrive during a transaction run together in the next one (group commit), on the
connection's thread. A small request that finds the connection idle runs at once, in the event
loop's thread. That blocks the loop for tens of microseconds, but handing the request to a thread
and back would cost more than the transaction (docs/decisions/0002). Nothing slow runs in the loop:
no waiting for another process's lock, and no fsync, because checkpoints have a thread of their own
and `synchronous=full` always uses the connection's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import apsw

from jobq.errors import StoreUnavailable
from jobq.stores.base import Clock
from jobq.stores.relational.settle import finish
from jobq.stores.relational.store import Work
from jobq.stores.sqlite import checksums, schema
from jobq.stores.sqlite.clock import StoreClock
from jobq.stores.sqlite.mailbox import Post
from jobq.stores.sqlite.tx import SqliteMemory, SqliteTx
from jobq.stores.sqlite.wal import Checkpointer

T = TypeVar("T")

GROUP = 64
"""Requests that one transaction runs at the most. All of them wait for its end."""
QUEUES = 1000
"""Queues whose rows the writer keeps between transactions."""
TURN_S = 0.001
"""Seconds that requests may run in the event loop before other tasks of the loop get a turn."""

UNAVAILABLE = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.FullError,
    apsw.IOError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.NoMemError,
    apsw.InterruptError,
    apsw.ProtocolError,
)
"""Trouble of the file or the machine. The caller may try again."""


class Shared(Protocol):
    """What the connections of a database share."""

    path: str
    post: Post
    clock: StoreClock
    incarnation: str
    checkpointer: Checkpointer | None

    def load_time(self, connection: apsw.Connection) -> None:
        """Continue from the time of the last transaction of any process."""

    def take_turn(self, *, wait: bool) -> bool:
        """Lock the file against other writing processes.

        False: it is locked, and `wait` is False."""
        ...

    def end_turn(self) -> None:
        """Unlock the file."""
        ...

    def check_identity(self) -> None:
        """StoreUnavailable if the file was deleted or replaced."""
        ...


class _Request(NamedTuple):
    work: Callable[..., Any]
    args: tuple[Any, ...]
    clock: Clock | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


_Answer = tuple[_Request, Any, BaseException | None]  # a result or an error


class TransactionThread:
    """A connection, the thread that serves it, and the lock that one user at a time holds."""

    def __init__(self, shared: Shared, *, writes: bool, at_once: bool = True) -> None:
        """`at_once`: small requests may run in the event loop's thread."""
        self.turn = threading.Lock()
        self._shared = shared
        self._writes = writes
        self._at_once = at_once
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()  # None: stop
        self._thread: threading.Thread | None = None
        self._connection: apsw.Connection | None = None
        self._memory = SqliteMemory(shared.incarnation)
        self._busy_s = 0.0  # spent in the event loop since its other tasks had a turn
        self._version = -1  # the data version after this connection's last transaction

    def start(self, connection: apsw.Connection) -> None:
        """Serve requests on this connection."""
        self._connection = connection
        name = "jobq-sqlite-write" if self._writes else "jobq-sqlite-read"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Run the requests that wait, then stop the thread and close the connection."""
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def submit(
        self, small: bool, clock: Clock | None, work: Work[T], args: tuple[Any, ...]
    ) -> asyncio.Future[T]:
        """Run work(tx, *args): at once if it is small and the connection is idle, else on the
        thread. A write is a transaction, and an error undoes this request alone. A read sees a
        consistent view of the data."""
        if self._thread is None:
            raise StoreUnavailable(
                "this store is closed, or not opened yet: use `async with open_store(url) as store`"
            )
        loop = asyncio.get_running_loop()
        request = _Request(work, args, clock, loop, loop.create_future())
        at_once = small and self._at_once and self._requests.empty()
        if not (at_once and self.turn.acquire(blocking=False)):
            self._requests.put(request)
            return request.future
        begun = time.perf_counter()
        try:
            answers = self._run([request], wait=False)
        finally:
            self.turn.release()
        if answers is None:
            self._requests.put(request)
            return request.future
        self._busy_s += time.perf_counter() - begun
        if self._busy_s > TURN_S:
            self._busy_s = 0.0
            loop.call_soon(_resolve, answers)
        else:
            _resolve(answers)
        return request.future

    def _serve(self) -> None:
        assert self._connection is not None
        while (first := self._requests.get()) is not None:
            with self.turn:
                group = [first]
                last = False
                while len(group) < GROUP:
                    try:
                        more = self._requests.get_nowait()
                    except queue.Empty:
                        break
                    if more is None:
                        last = True
                        break
                    group.append(more)
                answers = self._run(group, wait=True)
            assert answers is not None
            _answer(answers)
            if last:
                break
        with self.turn:
            self._connection.close()

    def _run(self, group: list[_Request], *, wait: bool) -> list[_Answer] | None:
        """Run requests in one transaction. None: another process writes, and `wait` is False."""
        if self._writes and not self._shared.take_turn(wait=wait):
            return None
        try:
            self._shared.check_identity()
            return self._transaction(group)
        except BaseException as e:  # the callers get the error
            error = _translated(e, self._shared.path)
            self._memory.forget_queues()
            self._shared.clock.unsaved()
            with contextlib.suppress(apsw.Error):
                assert self._connection is not None
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return [(request, None, error) for request in group]
        finally:
            if self._writes:
                self._shared.end_turn()

    def _transaction(self, group: list[_Request]) -> list[_Answer]:
        connection = self._connection
        assert connection is not None
        execute = connection.execute
        execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
        clock = self._shared.clock
        if not self._writes:
            self._memory.forget_queues()
        elif connection.data_version() != self._version:  # another process has written
            self._memory.forget_queues()
            self._shared.load_time(connection)
            schema.check(connection)
        elif len(self._memory.queues) > 2 * QUEUES:  # each is kept by name and by number
            self._memory.forget_queues()
        alone = len(group) == 1
        answers: list[_Answer] = []
        notices = []
        for request in group:
            clock_ms = time.time_ns() // 1_000_000 if request.clock is None else request.clock()
            now = clock.read(clock_ms)
            tx = SqliteTx(connection, now, self._memory, now - clock_ms)
            if not alone:
                execute("SAVEPOINT request")
            try:
                result = request.work(tx, *request.args)
                finish(tx)
                tx.flush()
            except UNAVAILABLE:
                raise  # trouble of the file, not of the request: the whole group has failed
            except BaseException as e:
                if alone:
                    raise
                self._memory.forget_queues()
                execute("ROLLBACK TO request")
                execute("RELEASE request")
                answers.append((request, None, e))
            else:
                if not alone:
                    execute("RELEASE request")
                notices.extend(tx.notices)
                answers.append((request, result, None))
        if self._writes:
            clock.save(connection)
        execute("COMMIT")
        self._version = connection.data_version()
        if notices:
            self._shared.post.send(notices)
        if self._writes and self._shared.checkpointer is not None:
            self._shared.checkpointer.written(connection.total_changes())
        return answers


def _answer(answers: list[_Answer]) -> None:
    """Resolve the futures of requests, each in its event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, mine in by_loop.items():
        # The loop may have been closed meanwhile. Then nobody waits for the answer.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(answers: list[_Answer]) -> None:
    for request, result, error in answers:
        if request.future.done():
            continue
        if error is None:
            request.future.set_result(result)
        else:
            request.future.set_exception(error)


def _translated(error: BaseException, path: str) -> BaseException:
    if not isinstance(error, UNAVAILABLE):
        return error
    why = checksums.explained(error)
    unavailable = StoreUnavailable(f"the SQLite database {path} is unavailable: {why}")
    unavailable.__cause__ = error
    return unavailable
