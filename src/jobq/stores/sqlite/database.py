"""A file (or memory) shared by all handles of this process: a connection to write, one to read, each with a thread.

Requests that arrive while a transaction is under way are carried out together in the next one (group commit), on the
connection's thread. A small request that finds nobody else at work is carried out right where it is made, in the event
loop's thread: that blocks the loop for the tens of microseconds it takes, where handing it to a thread and back costs
more than the transaction (docs/decisions/0002). Nothing that may take long is done there: no waiting for another
process's lock, no fsync (checkpoints have a thread of their own; `synchronous=full` never runs in the loop).

Writers of several processes queue up at a file lock: the kernel wakes the next one, where SQLite's own busy handler
would sleep and retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import apsw

from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores.base import Clock
from jobq.stores.sqlite import schema, scratch
from jobq.stores.sqlite.checkpoints import Checkpointer
from jobq.stores.sqlite.clock import StoreClock
from jobq.stores.sqlite.finish import finish
from jobq.stores.sqlite.identity import Identity, open_files
from jobq.stores.sqlite.mailbox import Post
from jobq.stores.sqlite.memory import Memory
from jobq.stores.sqlite.tx import Tx

try:
    import fcntl
except ImportError:  # Windows: SQLite's busy handler alone
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("jobq")

T = TypeVar("T")
Work = Callable[..., T]

GROUP = 64
QUEUES = 1000
"""Queues whose rows a writer keeps between transactions, by name and by number."""
BUSY_MS = 10_000
STATEMENTS = 512
"""The most apsw keeps prepared. Every execution, also each of an executemany, takes the next place of a ring: a statement that
so many others came after is prepared anew (50 µs)."""
PAGE = 2048
"""Bytes. A transaction of one job touches half a dozen pages, and each goes to the log whole: a commit costs half as much
again at 4 KiB and twice as much at 8 (bench/sqlite_pages.py). Smaller ones would make the trees of a large backlog deeper."""
TURN_S = 0.001
"""How long requests are carried out in the event loop before it gets a turn."""


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
"""Trouble of the file or the machine: whoever asked may ask again."""


class _Request(NamedTuple):
    work: Callable[..., Any]
    args: tuple[Any, ...]
    clock: Clock | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


_Answer = tuple[_Request, Any, BaseException | None]


class Database:
    """What the handles on one place share. Opened by the first, closed with the last (see `shared`)."""

    def __init__(self, path: str | None, *, full: bool) -> None:
        self._private = path is None
        self.path = path or f"{scratch.folder(self)}/jobs.db"
        self.full = full
        self.post = Post()
        self.log_id = ""
        self.clock = StoreClock()
        # Part of every event's id. After a power cut, positions and numbers of events that did not reach the disk are used again;
        # the process that does so is another one, so the ids differ.
        self.incarnation = os.urandom(4).hex()
        self.checkpointer: Checkpointer | None = None
        self.identity: Identity | None = None  # None: the file is private to this process
        self._lost = False  # the file was deleted or replaced, and the log says so
        self._lock_file: int | None = None
        self._writer = _Desk(self, writes=True)
        self._reader = _Desk(self, writes=False)
        self._opening = threading.Lock()
        self._ready = False

    async def ready(self) -> None:
        """Open the file and bring its schema up to date."""
        await asyncio.get_running_loop().run_in_executor(None, self._prepare)

    def write(
        self, small: bool, clock: Clock | None, work: Work[T], *args: Any
    ) -> asyncio.Future[T]:
        """Carry out work(tx, *args) in a write transaction; its error undoes it alone."""
        return self._writer.submit(small and not self.full, work, args, clock)

    def read(
        self, small: bool, clock: Clock | None, work: Work[T], *args: Any
    ) -> asyncio.Future[T]:
        """Carry out work(tx, *args) on a consistent view."""
        return self._reader.submit(small, work, args, clock)

    def close(self) -> None:
        """Finish what is queued, stop the threads and close the file."""
        self._writer.stop()
        self._reader.stop()
        if self.checkpointer is not None:
            self.checkpointer.stop()
        self.post.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
        if self._private:
            scratch.remove(os.path.dirname(self.path))

    def take_turn(self, *, wait: bool) -> bool:
        """Our turn among the processes that write. Without waiting: False if it is another's."""
        if self._lock_file is not None:
            try:
                fcntl.flock(
                    self._lock_file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
                )
            except BlockingIOError:
                return False
        return True

    def end_turn(self) -> None:
        """The next one's turn."""
        if self._lock_file is not None:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def check_identity(self) -> None:
        """StoreUnavailable if the file was deleted or replaced: what is written to it would be lost."""
        problem = self.identity.problem() if self.identity is not None else None
        if problem is not None:
            raise StoreUnavailable(
                f"{problem}; nothing more is accepted here: put the file back and restart this process"
            )

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No process writes, this one included: for the moment in which the log is begun anew."""
        with self._writer.turn:
            self.take_turn(wait=True)
            try:
                yield
            finally:
                self.end_turn()

    def _watch(self) -> None:
        """An idle worker makes no call that would tell it: wake every sleeper, so that each makes one and is told."""
        problem = self.identity.problem() if self.identity is not None and not self._lost else None
        if problem is not None:
            self._lost = True
            log.error(
                "%s: nothing more is accepted; put the file back and restart this process", problem
            )
            for mailbox in tuple(self.post.mailboxes.values()):
                mailbox.wake_all()

    def _prepare(self) -> None:
        with self._opening:
            if self._ready:
                return
            try:
                self._open_file()
            except apsw.Error as e:
                raise ConfigError(f"cannot open {self.path!r} as a SQLite database: {e}") from e
            except OSError as e:
                raise ConfigError(f"cannot open {self.path!r}: {e.strerror or e}") from e
            self._ready = True

    def _open_file(self) -> None:
        if not self._private:
            self._lock_file = open_files(self.path)
            self.identity = Identity(self.path, f"{self.path}-lock")
        with self.alone():
            connection = self._connect()
            try:
                connection.execute("BEGIN IMMEDIATE")
                self.log_id = schema.migrate(connection)
                self.clock.load(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
        self._writer.start(connection)
        self._reader.start(self._connect())
        self.checkpointer = Checkpointer(self._connect(), self.alone, self._watch)

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self.path, statementcachesize=STATEMENTS)
        try:
            connection.set_busy_timeout(BUSY_MS)
            connection.execute(f"PRAGMA page_size = {PAGE}")
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
            synchronous = "OFF" if self._private else "FULL" if self.full else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA cache_size = -65536")
        except BaseException:
            connection.close()
            raise
        return connection


class _Desk:
    """A connection, the thread that serves it, and the lock that lets one party at a time use it."""

    def __init__(self, database: Database, *, writes: bool) -> None:
        self.turn = threading.Lock()
        self._database = database
        self._writes = writes
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: apsw.Connection | None = None
        self._memory = Memory(database.incarnation)
        self._busy_s = 0.0  # spent in the event loop since it last had a turn
        self._version = -1  # of the data, when this connection last wrote

    def start(self, connection: apsw.Connection) -> None:
        self._connection = connection
        name = "jobq-sqlite-write" if self._writes else "jobq-sqlite-read"
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def submit(
        self, small: bool, work: Callable[..., Any], args: tuple[Any, ...], clock: Clock | None
    ) -> asyncio.Future[Any]:
        """Carried out here and now if it is small and nobody is in the way, else by the thread."""
        if self._thread is None:
            raise StoreUnavailable(
                "this store is closed, or not opened yet: use `async with open_store(url) as store`"
            )
        loop = asyncio.get_running_loop()
        request = _Request(work, args, clock, loop, loop.create_future())
        if not (small and self._requests.empty() and self.turn.acquire(blocking=False)):
            self._requests.put(request)
            return request.future
        begun = time.perf_counter()
        try:
            answers = self._carry_out([request], wait=False)
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
                answers = self._carry_out(group, wait=True)
            assert answers is not None
            _answer(answers)
            if last:
                break
        with self.turn:
            self._connection.close()

    def _carry_out(self, group: list[_Request], *, wait: bool) -> list[_Answer] | None:
        """None: it is another process's turn, and nobody wanted to wait."""
        if self._writes and not self._database.take_turn(wait=wait):
            return None
        try:
            self._database.check_identity()
            return self._transaction(group)
        except BaseException as e:  # whoever asked gets the error
            error = _translated(e, self._database.path)
            self._memory.forget_queues()
            self._database.clock.unsaved()
            with contextlib.suppress(apsw.Error):
                assert self._connection is not None
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return [(request, None, error) for request in group]
        finally:
            if self._writes:
                self._database.end_turn()

    def _transaction(self, group: list[_Request]) -> list[_Answer]:
        connection = self._connection
        assert connection is not None
        execute = connection.execute
        execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
        clock = self._database.clock
        if not self._writes:
            self._memory.forget_queues()
        elif connection.data_version() != self._version:
            self._memory.forget_queues()
            clock.load(connection)
            schema.check(connection)
        elif len(self._memory.queues) > 2 * QUEUES:
            self._memory.forget_queues()
        alone = len(group) == 1
        answers: list[_Answer] = []
        notices = []
        for request in group:
            clock_ms = time.time_ns() // 1_000_000 if request.clock is None else request.clock()
            now = clock.read(clock_ms)
            tx = Tx(connection, now, self._memory, now - clock_ms)
            if not alone:
                execute("SAVEPOINT request")
            try:
                result = request.work(tx, *request.args)
                finish(tx)
                tx.flush()
            except UNAVAILABLE:
                raise  # the file's trouble, not the request's: nobody in the group has been served
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
            self._database.post.send(notices)
        if self._writes and self._database.checkpointer is not None:
            self._database.checkpointer.written(connection.total_changes())
        return answers


def _answer(answers: list[_Answer]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, mine in by_loop.items():
        # A loop that was closed while its request was under way has nobody left to tell.
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
    unavailable = StoreUnavailable(f"the SQLite database {path} did not take part: {error}")
    unavailable.__cause__ = error
    return unavailable


_shared: dict[str, tuple[Database, int]] = {}
_shared_lock = threading.Lock()


def shared(name: str, path: str | None, *, full: bool) -> Database:
    """The process's database of this name, counted up. A fork starts with none: connections do not survive it."""
    with _shared_lock:
        database, users = _shared.get(name, (None, 0))
        if database is None:
            database = Database(path, full=full)
        _shared[name] = (database, users + 1)
        return database


def released(name: str) -> None:
    """One user less; the last one closes it."""
    with _shared_lock:
        database, users = _shared[name]
        if users > 1:
            _shared[name] = (database, users - 1)
            return
        del _shared[name]
    database.close()


def _forget() -> None:
    global _shared_lock
    _shared.clear()
    _shared_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
