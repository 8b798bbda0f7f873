"""Calls inside a transaction of a caller's own connection.

The caller's transaction may stay open for long, so a call takes as few locks as it can: none on
the queue's row, on counters or on keys. A job of a keyed queue is stored as delayed by a
millisecond. The claim that promotes it after the commit counts it for its key. If it locked the row
of the queue, as the general way does, an enqueue beside another open transaction would wait for the
end of that one, or fail after 3 s, instead of taking 15 ms (`python -m bench.postgres_paths --only
caller`).

A call runs inside a savepoint. If it fails, nothing of it is left and the transaction goes on.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from msgspec.structs import replace
from psycopg import pq

from jobq.core.records.defaults import HOUR_MS
from jobq.core.records.jobs import JobSpec, LeaseRef, PutResult, QueueName
from jobq.core.records.states import Kind
from jobq.core.rules.new_jobs import check_specs
from jobq.errors import ConfigError, InvalidJob, LeaseLost, StoreUnavailable
from jobq.stores.base import Completion, QueueRemoved
from jobq.stores.postgres import failures, mailbox, session
from jobq.stores.postgres.link import LOST, Link, Reply, Statement, StatementFailed
from jobq.stores.postgres.memory import PostgresMemory
from jobq.stores.postgres.queries import SQL
from jobq.stores.postgres.tx import PostgresTx
from jobq.stores.relational import ending, put
from jobq.stores.relational.mailbox import Notice
from jobq.stores.relational.rows import (
    ACTIVE,
    CANCEL,
    COMMITTED,
    COMPLETED,
    GIVEN,
    UNFOLLOWED,
    Job,
    NewJob,
    QueueRow,
    job_number,
    read,
    read_all,
)
from jobq.stores.relational.signals import log_topic

if TYPE_CHECKING:
    from jobq.stores.postgres.store import PostgresStore

# The connections of callers: psycopg's, SQLAlchemy's and Django's, each with a psycopg connection
# inside.
#
# Classes of SQLAlchemy and Django are recognised by their names, so jobq imports neither.
# Subclasses of them may be anywhere: applications, SQLModel and Flask-SQLAlchemy have sessions of
# their own.

Raw = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_KNOWN = (
    "a connection of psycopg 3, a Session or Connection of SQLAlchemy 2 with the psycopg driver "
    "(postgresql+psycopg://), or django.db.connection"
)


_ASYNC = frozenset({"AsyncSession", "AsyncConnection", "async_scoped_session"})
_CLASSES = {
    "sqlalchemy": frozenset({"Session", "Connection", "scoped_session"}) | _ASYNC,
    "django": frozenset({"BaseDatabaseWrapper", "ConnectionProxy"}),
}


def check_connection(connection: object) -> None:
    """ConfigError if jobq cannot use this kind of connection."""
    known = isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection))
    if not known and not _library(connection):
        raise ConfigError(f"jobq.transaction({_shown(connection)}): give {_KNOWN}")


def blocking(connection: Any) -> psycopg.Connection[Any]:
    """The psycopg connection inside a blocking connection."""
    if isinstance(connection, psycopg.AsyncConnection) or _of_asyncio(connection):
        raise ConfigError(
            f"jobq.transaction({_shown(connection)}): an async connection works with `await "
            "task.enqueue(…)`, not with `.sync`"
        )
    raw = _blocking(connection)
    if not isinstance(raw, psycopg.Connection):
        raise _unusable(connection, raw)
    return raw


async def awaited(connection: Any) -> Raw:
    """The same for a connection of any kind, from an event loop."""
    raw = await _awaited(connection)
    if not isinstance(raw, (psycopg.Connection, psycopg.AsyncConnection)):
        raise _unusable(connection, raw)
    return raw


def _blocking(connection: Any) -> Any:
    library = _library(connection)
    if library == "sqlalchemy":
        if hasattr(connection, "get_bind"):  # a Session
            connection = connection.connection()
        if hasattr(connection, "in_transaction") and not connection.in_transaction():
            connection.exec_driver_sql("SELECT 1")  # the Connection begins a transaction
        return connection.connection.driver_connection
    if library == "django":
        connection.ensure_connection()
        if connection.get_autocommit():
            raise ConfigError(
                "jobq.transaction(): no transaction is open on this Django connection: use it "
                "inside transaction.atomic()"
            )
        return connection.connection
    return connection


async def _awaited(connection: Any) -> Any:
    if not _of_asyncio(connection):
        return _blocking(connection)
    if hasattr(connection, "get_bind"):  # an AsyncSession
        connection = await connection.connection()
    if not connection.in_transaction():
        await connection.exec_driver_sql("SELECT 1")
    return (await connection.get_raw_connection()).driver_connection


def must_begin(raw: Raw) -> bool:
    """Whether the transaction has not begun yet, and psycopg begins it with the next statement.

    The caller has locked the connection: while other tasks use it, it looks busy. ConfigError if no
    transaction is open and none begins by itself.
    """
    if raw.closed:
        raise ConfigError("jobq.transaction(): the connection is closed")
    status = raw.pgconn.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise ConfigError(
            "jobq.transaction(): the transaction has failed, so nothing can be added to it: roll "
            "it back"
        )
    if raw.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise ConfigError("jobq.transaction(): leave conn.pipeline() before you enqueue")
    if status == pq.TransactionStatus.INTRANS:
        return False
    if status != pq.TransactionStatus.IDLE:
        raise ConfigError("jobq.transaction(): the connection is busy with another statement")
    if raw.autocommit:
        raise ConfigError(
            "jobq.transaction(): no transaction is open, and the connection is in autocommit mode: "
            "begin one with conn.transaction()"
        )
    return True


def two_phase(raw: Raw) -> bool:
    """Whether the transaction will be prepared (`tpc_begin`), so that it must not send NOTIFY."""
    return getattr(raw, "_tpc", None) is not None  # psycopg has no public name for it


def _of_asyncio(connection: object) -> bool:
    return bool(_classes(connection, "sqlalchemy") & _ASYNC)


def _library(connection: object) -> str:
    """The library whose connection or session this is; empty: none."""
    return next((name for name in _CLASSES if _classes(connection, name)), "")


def _classes(connection: object, library: str) -> frozenset[str]:
    """Which classes of the library this is an instance of, among those that jobq can use."""
    bases = type(connection).__mro__
    found = {c.__name__ for c in bases if c.__module__.partition(".")[0] == library}
    return _CLASSES[library] & found


def _unusable(connection: object, raw: object) -> ConfigError:
    return ConfigError(
        f"jobq.transaction({_shown(connection)}): its driver is {_shown(raw)}; give {_KNOWN}"
    )


def _shown(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# complete_in: a job is completed by the transaction of its handler.
#
# The transaction changes only the job's own row and appends its event, because it may stay open for
# long: others would wait for anything else. What follows from the end of the job (its key, its
# unique lock, its parents, its schedule, those who wait for the result) is done after the commit,
# when the worker settles the lease. If the worker has died, a tick does it.

FOLLOW_MS = 10_000
"""Milliseconds after which a tick does what follows from a job's end. The worker does it within
milliseconds of the commit, unless it has died."""
FOLLOWED = 100
"""Such jobs per tick: each may lock other rows, which a short transaction holds for less long."""


def complete(tx: PostgresTx, lease: LeaseRef, result: bytes | None) -> None:
    """Complete the job of a lease in a transaction of its handler. LeaseLost if it is not held.

    InvalidJob if this lease has completed it already. After a rollback, it has not."""
    pk = job_number(lease.token)
    tx.execute(SQL.hot["begin_completing"], (pk,))  # commands and settles then skip the job
    row = tx.execute(SQL.hot["lock_job"], (pk,)).fetchone()
    job = None if row is None else read(row, Job)
    held = job is not None and (job.id, job.token) == (lease.id, lease.token)
    if job is not None and held and job.state == COMPLETED:
        raise InvalidJob(f"complete_in: job {lease.id} was completed before")
    if job is None or not held or job.state != ACTIVE:
        raise LeaseLost(
            f"job {lease.id} was not completed: its lease is lost, so another worker may run it; "
            "roll back the transaction"
        )
    tx.not_before(job.started_ms or 0)
    queue = tx.queue_by_qid(job.qid)
    job.flags = job.flags & ~CANCEL | COMMITTED | UNFOLLOWED
    job.result, job.finished_ms = result, tx.now
    # Its record is not removed before what follows is done, even if results are not kept.
    job.keep = 1
    until = ending.keep_until(queue.settings, COMPLETED, tx.now)
    job.at_ms = max(until, tx.now + HOUR_MS)
    tx.move(job, Kind.COMPLETED, COMPLETED)


def completion(tx: PostgresTx, lease: LeaseRef) -> Completion:
    """Implements `Transactional.completion`."""
    pk = job_number(lease.token)
    found = tx.execute(SQL.hot["state_of_lease"], (pk, lease.id, lease.token)).fetchone()
    if found is None:
        return "lost"
    if found[0] != ACTIVE:
        return "completed" if found[0] == COMPLETED else "lost"
    if tx.execute(SQL.hot["unlocked"], (pk,)).fetchone() is None:
        return "open"
    # The row is locked here now: what it says is final.
    found = tx.execute(SQL.hot["state_of_lease"], (pk, lease.id, lease.token)).fetchone()
    if found is None:
        return "lost"
    return "active" if found[0] == ACTIVE else "completed"


def follow_up(tx: PostgresTx) -> int:
    """Do what follows from the ends of jobs whose workers have died. Returns how many there were.

    The caller is a tick."""
    rows = tx.execute(SQL.upkeep["unfollowed"], (tx.now - FOLLOW_MS, FOLLOWED)).fetchall()
    for job in read_all(rows, Job):
        ending.follow(tx, tx.queue_by_qid(job.qid), job)
    return len(rows)


T = TypeVar("T")

TRIES = 3
"""How often a call is repeated that met another transaction."""
MOST_THREADS = 1000
"""Calls of event loops that run at the same time: more than a server has connections."""
MOST_WOKEN = 64
"""Sleeping workers that one call wakes at the most."""
_MISSING = frozenset({"3F000", "42P01"})  # schema or table
_UTF8 = "UTF8"

_described: dict[str, Statement] = {}


class CallerLink(Link):
    """A caller's connection, while a call uses it. Notifications go to the caller."""

    def __init__(self, pgconn: Any, timeout: float) -> None:
        """`timeout`: seconds of one round trip. A call that stores a large flow makes many, and the
        transaction of the caller would be lost if all of them together had a deadline."""
        super().__init__(pgconn, _never(), pooled=True, described=_described)
        self._timeout = timeout

    def wait(self, reply: Reply | None = None) -> None:
        self.deadline = time.monotonic() + self._timeout
        super().wait(reply)

    def _deliver(self) -> None:
        while (notify := self.pgconn.notifies()) is not None:
            if self.pgconn.notify_handler is not None:
                self.pgconn.notify_handler(notify)


class CallerTx(PostgresTx):
    """A request inside a caller's transaction. It reads queues and jobs without locking them."""

    def __init__(self, link: Link, now: int, ahead: int, *, one_snapshot: bool) -> None:
        """`one_snapshot`: the transaction is REPEATABLE READ or SERIALIZABLE."""
        super().__init__(link, now, PostgresMemory(), ahead, writes=False)
        self.one_snapshot = one_snapshot
        self._own: set[tuple[int, str]] = set()  # jobs that this call has put

    def use_queue(self, name: QueueName) -> None:
        """Nobody can remove the queue until the transaction ends."""
        self.execute(SQL.hot["use_queue"], name)

    def ensure_queue(self, name: QueueName) -> QueueRow:
        if name not in self._queues:
            self.use_queue(name)
        row = self.queue(name)
        if row is not None and row.listed:
            return row
        if self.one_snapshot:
            raise ConfigError(
                f"queue {name.queue!r} was created after the snapshot of this transaction: roll "
                "the transaction back and repeat it"
            )
        raise QueueRemoved(f"queue {name.queue!r} was removed during the call: repeat it")

    def flush(self) -> None:
        """Write the event log. Rows of queues stay as they are: others would wait for them."""
        for row in self._qids.values():
            row.dirty = False
        super().flush()

    def insert_jobs(self, rows: Sequence[NewJob]) -> int:
        inserted = super().insert_jobs(rows)
        if inserted == len(rows):
            self._own.update((row.qid, row.id) for row in rows)
        given = [row._replace(state=COMPLETED) for row in rows if row.flags & GIVEN]
        if self.one_snapshot and inserted and given:
            self._try_ids(given)
        return inserted

    def _try_ids(self, rows: Sequence[NewJob]) -> None:
        """Fail if a job with one of these ids has ended after the snapshot of the transaction."""
        self.link.command(b"SAVEPOINT jobq_try")
        columns = [list(column) for column in zip(*rows, strict=True)]
        self.link.execute(SQL.hot["try_ids"], columns)
        self.link.command(b"ROLLBACK TO SAVEPOINT jobq_try")
        self.link.command(b"RELEASE SAVEPOINT jobq_try")

    def find_free(self, qid: int, id: str) -> Job | None:
        return self.find(qid, id)

    def job_free(self, pk: int) -> Job | None:
        return self.job(pk)

    def lock_as_read(self, job: Job) -> None:
        row = self.execute(SQL.hot["lock_job"], (job.pk,)).fetchone()
        if row is None or read(row, Job) != job:
            raise StatementFailed("40001", "the job has changed since it was read")

    def may_change(self, job: Job) -> bool:
        return (job.qid, job.id) in self._own

    def sleeping(self) -> list[Notice]:
        """The workers to wake and the log readers to notify when the transaction commits."""
        notices: list[Notice] = []
        for qid in {*self.woken, *self.soonest}:
            name = self.queue_by_qid(qid).qname
            # More than there are jobs: some may be busy when the transaction commits.
            most = min(self.woken.get(qid, 1) + 2, MOST_WOKEN)
            for worker, _, address in self.execute(self.sql.signals["sleepers"], (qid, most)):
                notices.append(Notice((address,), "work", *name, worker))
        for qid in self.logged:
            name = self.queue_by_qid(qid).qname
            for (address,) in self.execute(self.sql.signals["listeners"], (log_topic(qid),)):
                notices.append(Notice((address,), "log", *name, ""))
        return notices


class Caller:
    """See `CallerTransaction`."""

    def __init__(self, store: PostgresStore, connection: object) -> None:
        check_connection(connection)
        self._store = store
        self._connection = connection

    def put(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        specs = check_specs(specs)
        with self._forgetting(specs):
            return self._blocking(lambda tx: _put(tx, specs))

    async def put_async(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        specs = check_specs(specs)
        with self._forgetting(specs):
            return await self._awaited(lambda tx: _put(tx, specs))

    def complete(self, lease: LeaseRef, result: bytes | None) -> None:
        self._blocking(lambda tx: _complete(tx, lease, result))

    async def complete_async(self, lease: LeaseRef, result: bytes | None) -> None:
        await self._awaited(lambda tx: _complete(tx, lease, result))

    @contextmanager
    def _forgetting(self, specs: Sequence[JobSpec]) -> Iterator[None]:
        """If a queue was removed, prepare it again for the next call."""
        try:
            yield
        except QueueRemoved:
            self._store.forget_prepared({spec.queue for spec in specs})
            raise

    def _blocking(self, work: Callable[[CallerTx], T]) -> T:
        return self._locked(blocking(self._connection), work)

    def _locked(self, raw: psycopg.Connection[Any], work: Callable[[CallerTx], T]) -> T:
        while True:
            with raw.lock:
                if not must_begin(raw):
                    return self._run(raw, work)
            raw.execute("SELECT 1")  # psycopg sends BEGIN first

    async def _awaited(self, work: Callable[[CallerTx], T]) -> T:
        raw = await awaited(self._connection)
        if isinstance(raw, psycopg.Connection):
            return await _in_thread(partial(self._locked, raw, work))
        while True:
            async with raw.lock:
                if not must_begin(raw):
                    return await _in_thread(partial(self._run, raw, work))
            await raw.execute("SELECT 1")

    def _run(self, raw: Raw, work: Callable[[CallerTx], T]) -> T:
        """Run a call on the connection, which nobody else uses meanwhile."""
        address, pgconn = self._store.address, raw.pgconn
        link = CallerLink(pgconn, address.timeout)
        wakes = not two_phase(raw)
        pgconn.enter_pipeline_mode()
        try:
            return self._tried(link, work, wakes)
        except LOST as e:
            pgconn.finish()  # nobody knows where the conversation with the server stopped
            raise StoreUnavailable(f"the connection of jobq.transaction() is lost: {e}") from e
        finally:
            if pgconn.status == pq.ConnStatus.OK:
                pgconn.exit_pipeline_mode()

    def _tried(self, link: CallerLink, work: Callable[[CallerTx], T], wakes: bool) -> T:
        tries = 0
        while True:
            try:
                return self._once(link, work, wakes)
            except StatementFailed as e:
                _undo(link)
                tries += 1
                waited = e.sqlstate == failures.LOCK_TIMEOUT
                if e.sqlstate in failures.AGAIN and not waited and tries < TRIES:
                    continue
                raise self._translated(e) from e
            except LOST:
                raise
            except BaseException:
                _undo(link)
                raise

    def _once(self, link: CallerLink, work: Callable[[CallerTx], T], wakes: bool) -> T:
        store = self._store
        encoding = (link.pgconn.parameter_status(b"client_encoding") or _UTF8.encode()).decode()
        link.command(b"SAVEPOINT jobq_call")
        if encoding != _UTF8:
            link.command(_set({"client_encoding": _UTF8}))
        wanted = session.of_caller(store.address)
        before = link.execute(_session_sql(store.address.schema, tuple(wanted))).fetchone()
        assert before is not None
        if before[0] != store.log_id:
            raise ConfigError(
                f"jobq.transaction(): the connection leads to another database than {store.url}, "
                "which has the queue"
            )
        link.command(_set(wanted))
        isolation, *settings = before[1:]
        tx = CallerTx(link, *store.clock.read(), one_snapshot=isolation != "read committed")
        result = work(tx)
        notices = tx.sleeping() if wakes else []
        tx.flush()
        if notices:
            mailbox.send(link, notices)
        restored = dict(zip(wanted, settings, strict=True))
        if encoding != _UTF8:
            restored["client_encoding"] = encoding
        link.command(_set(restored))
        link.command(b"RELEASE SAVEPOINT jobq_call")
        link.wait()
        return result

    def _translated(self, error: StatementFailed) -> Exception:
        store = self._store
        if error.sqlstate == failures.LOCK_TIMEOUT:
            return failures.id_or_lock_held()
        if error.sqlstate in failures.AGAIN:
            return StoreUnavailable(
                f"jobq.transaction(): nothing was stored, because another transaction has changed "
                f"the same job: roll your transaction back and repeat it ({error})"
            )
        if error.sqlstate in failures.READ_ONLY:
            return ConfigError(
                f"jobq.transaction(): nothing can be stored in a read-only transaction: {error}"
            )
        if error.sqlstate in _MISSING:
            return ConfigError(
                f"jobq.transaction(): the connection leads to a database without the schema "
                f"{store.address.schema!r} of {store.url}: {error}"
            )
        return failures.translated(error, store.url, store.address.schema)


def _put(tx: CallerTx, specs: Sequence[JobSpec]) -> list[PutResult]:
    return put.put(tx, [_postponed(spec) for spec in specs], None)


def _complete(tx: CallerTx, lease: LeaseRef, result: bytes | None) -> None:
    tx.use_queue(lease.queue)
    try:
        complete(tx, lease, result)
    except StatementFailed as e:
        if not (tx.one_snapshot and e.sqlstate == failures.SERIALIZATION):
            raise
        raise StoreUnavailable(
            f"job {lease.id} was not completed: its lease was renewed after the snapshot of your "
            "transaction; at REPEATABLE READ and SERIALIZABLE, call complete_in first in the "
            f"transaction ({e})"
        ) from e


def _postponed(spec: JobSpec) -> JobSpec:
    """A job with a key becomes waiting after the commit: until then, it changes no key."""
    if spec.key is None or spec.delay_ms or spec.at_ms is not None:
        return spec
    return replace(spec, delay_ms=1)


def _undo(link: CallerLink) -> None:
    """Roll back to the beginning of the call, with the settings that it changed."""
    link.discard()
    link.command(b"ROLLBACK TO SAVEPOINT jobq_call")
    link.command(b"RELEASE SAVEPOINT jobq_call")
    link.wait()


@cache
def _session_sql(schema: str, names: tuple[str, ...]) -> str:
    """The statement that reads which store this is, the isolation of the transaction, and the
    settings to restore."""
    quoted = schema.replace('"', '""')
    found = f"(SELECT value FROM \"{quoted}\".meta WHERE name = 'log')"
    settings = [f"current_setting('{name}')" for name in ("transaction_isolation", *names)]
    return "SELECT " + ", ".join((found, *settings))


def _set(values: dict[str, str]) -> bytes:
    quoted = {name: value.replace("'", "''") for name, value in values.items()}
    calls = [f"set_config('{name}', '{value}', true)" for name, value in quoted.items()]
    return f"SELECT {', '.join(calls)}".encode()


@cache
def _never() -> int:
    """A descriptor that never becomes readable: a caller's connection is not stopped."""
    reading, _writing = os.pipe()
    return reading


@cache
def _threads() -> ThreadPoolExecutor:
    """The threads of calls from event loops. Each call has a connection of its own.

    The loop's own executor has few threads: calls that wait for another transaction would keep that
    one from going on."""
    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="jobq-transaction")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has no thread of its parent


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread. A cancelled caller waits for its end, which is bounded: the
    connection must not be used by two."""
    future = asyncio.get_running_loop().run_in_executor(_threads(), work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
