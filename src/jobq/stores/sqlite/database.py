"""A file (or memory) shared by all handles of this process: one writer thread with group commit, one reader thread.

Requests that arrive while a transaction is under way are carried out together in the next one. Writers of several
processes queue up at a file lock: the kernel wakes the next one, where SQLite's own busy handler would sleep and retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores.base import Clock
from jobq.stores.sqlite import queries, signals
from jobq.stores.sqlite.mailbox import Post
from jobq.stores.sqlite.tx import Granted, Tx

try:
    import fcntl
except ImportError:  # Windows: SQLite's busy handler alone
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
Work = Callable[..., T]

SCHEMA = 1
GROUP = 64
BUSY_MS = 10_000


class _Request(NamedTuple):
    work: Callable[..., Any]
    args: tuple[Any, ...]
    clock: Clock | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Database:
    """What the handles on one place share. Opened by the first, closed with the last (see `shared`)."""

    def __init__(self, path: str | None, *, full: bool) -> None:
        self.path = path
        self._full = full
        self.post = Post()
        self.log_id = ""
        self._lock_file: int | None = None
        self._writer = _Thread(self, "write")
        # A memory database is one connection's: its reads go with its writes.
        self._reader = _Thread(self, "read") if path is not None else self._writer
        self._open = threading.Lock()
        self._ready = False

    async def ready(self) -> None:
        """Open the file and bring its schema up to date."""
        await asyncio.get_running_loop().run_in_executor(None, self._prepare)

    def write(self, clock: Clock | None, work: Work[T], *args: Any) -> asyncio.Future[T]:
        """Carry out work(tx, *args) in a write transaction; its error undoes it alone."""
        return self._writer.submit(work, args, clock)

    def read(self, clock: Clock | None, work: Work[T], *args: Any) -> asyncio.Future[T]:
        """Carry out work(tx, *args) on a consistent view."""
        return self._reader.submit(work, args, clock)

    def close(self) -> None:
        """Finish what is queued, stop the threads and close the file."""
        self._writer.stop()
        if self._reader is not self._writer:
            self._reader.stop()
        self.post.close()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _prepare(self) -> None:
        with self._open:
            if self._ready:
                return
            try:
                self._open_file()
            except sqlite3.Error as e:
                raise ConfigError(f"cannot open {self.path!r} as a SQLite database: {e}") from e
            except OSError as e:
                raise ConfigError(f"cannot open {self.path!r}: {e.strerror or e}") from e
            self._ready = True

    def _open_file(self) -> None:
        if self.path is not None and fcntl is not None:
            self._lock_file = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        connection = self._connect()
        with self.locked():
            connection.execute("BEGIN IMMEDIATE")
            try:
                self.log_id = _migrate(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                connection.close()
                raise
        self._writer.start(connection)
        if self._reader is not self._writer:
            self._reader.start(self._connect())

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path or ":memory:", isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000, cached_statements=256
        )
        if self.path is not None:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._full else 'NORMAL'}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -65536")
        return connection

    @contextlib.contextmanager
    def locked(self) -> Any:
        """Our turn among the processes that write."""
        if self._lock_file is None:
            yield
            return
        fcntl.flock(self._lock_file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)


class _Thread:
    """A connection and the thread it belongs to."""

    def __init__(self, database: Database, kind: str) -> None:
        self._database = database
        self._kind = kind
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._granted: dict[str, Granted] = {}

    def start(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._thread = threading.Thread(target=self._run, name=f"jobq-sqlite-{self._kind}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def submit(self, work: Callable[..., Any], args: tuple[Any, ...], clock: Clock | None) -> asyncio.Future[Any]:
        if self._thread is None:
            raise StoreUnavailable("this store is closed, or not opened yet: use `async with open_store(url) as store`")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._requests.put(_Request(work, args, clock, loop, future))
        return future

    def _run(self) -> None:
        assert self._connection is not None
        while (first := self._requests.get()) is not None:
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
            _answer(self._carry_out(group))
            if last:
                break
        self._connection.close()

    def _carry_out(self, group: list[_Request]) -> list[tuple[_Request, Any, BaseException | None]]:
        try:
            if self._kind == "read":
                return self._transaction(group, "BEGIN")
            with self._database.locked():
                return self._transaction(group, "BEGIN IMMEDIATE")
        except BaseException as e:  # the thread must live; whoever asked gets the error
            error = _translated(e, self._database.path)
            with contextlib.suppress(sqlite3.Error):
                assert self._connection is not None
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return [(request, None, error) for request in group]

    def _transaction(self, group: list[_Request], begin: str) -> list[tuple[_Request, Any, BaseException | None]]:
        connection = self._connection
        assert connection is not None
        execute = connection.execute
        execute(begin)
        alone = len(group) == 1
        answers: list[tuple[_Request, Any, BaseException | None]] = []
        notices = []
        for request in group:
            now = time.time_ns() // 1_000_000 if request.clock is None else request.clock()
            tx = Tx(connection, now, self._granted)
            if not alone:
                execute("SAVEPOINT request")
            try:
                result = request.work(tx, *request.args)
                signals.flush(tx)
                tx.flush()
            except sqlite3.OperationalError:
                raise  # the file's trouble, not the request's: nobody in the group has been served
            except BaseException as e:
                if alone:
                    raise
                execute("ROLLBACK TO request")
                execute("RELEASE request")
                answers.append((request, None, e))
            else:
                if not alone:
                    execute("RELEASE request")
                notices.extend(tx.notices)
                answers.append((request, result, None))
        execute("COMMIT")
        self._database.post.send(notices)
        return answers


def _answer(answers: list[tuple[_Request, Any, BaseException | None]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Request, Any, BaseException | None]]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, mine in by_loop.items():
        # A loop that was closed while its request was under way has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(answers: list[tuple[_Request, Any, BaseException | None]]) -> None:
    for request, result, error in answers:
        if request.future.done():
            continue
        if error is None:
            request.future.set_result(result)
        else:
            request.future.set_exception(error)


def _translated(error: BaseException, path: str | None) -> BaseException:
    if not isinstance(error, sqlite3.OperationalError):
        return error
    unavailable = StoreUnavailable(f"the SQLite database {path or 'in memory'} did not take part: {error}")
    unavailable.__cause__ = error
    return unavailable


def _migrate(connection: sqlite3.Connection) -> str:
    """Bring the schema up to date; the log's id, made once per database."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
    if known is None:
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise ConfigError("this SQLite file belongs to something else: it has tables, and none of them are jobq's")
        for statement in queries.read("schema.sql").split(";\n"):
            if statement.strip():
                connection.execute(statement)
        log_id = uuid.uuid4().hex[:12]
        connection.executemany("INSERT INTO meta VALUES (?, ?)", [("schema", str(SCHEMA)), ("log", log_id)])
        return log_id
    meta = dict(connection.execute("SELECT name, value FROM meta"))
    if int(meta["schema"]) != SCHEMA:
        raise ConfigError(f"this file has jobq schema {meta['schema']}, and this jobq knows {SCHEMA}: use the jobq that wrote it")
    return str(meta["log"])


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
