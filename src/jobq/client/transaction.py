"""`jobq.transaction(conn)`: jobs that are enqueued in a block become part of the caller's
transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self

from jobq.client.connection import Session
from jobq.client.portal import run
from jobq.core.records.jobs import JobSpec, PutResult
from jobq.core.rules.new_jobs import check_specs
from jobq.errors import ConfigError
from jobq.stores.base import (
    CallerTransaction,
    QueueRemoved,
    Store,
    Transactional,
    transactional_of,
)

_current: ContextVar[Transaction | None] = ContextVar("jobq transaction", default=None)


def current() -> Transaction | None:
    """The transaction of the innermost block around the caller, if there is one."""
    return _current.get()


def put(session: Session, spec: JobSpec) -> Awaitable[PutResult]:
    """Store one job, in the transaction around the caller if there is one."""
    joined = _current.get()
    return session.sender.put(spec) if joined is None else joined.put_one(session.store, spec)


class Transaction:
    """A block whose jobs are enqueued on a caller's connection. See `transaction`."""

    def __init__(self, connection: object) -> None:
        self._connection = connection
        self._token: Token[Transaction | None] | None = None
        self._of_one_call = False
        self._thread = 0
        self._joined: dict[int, CallerTransaction] = {}  # by id() of the store

    @classmethod
    def of_one_call(cls, connection: object) -> Self:
        """The transaction that the connection is in, for one call of this thread, without a
        block."""
        joined = cls(connection)
        joined._of_one_call = True
        joined._thread = threading.get_ident()
        return joined

    def __enter__(self) -> Self:
        if self._token is not None:
            raise ConfigError("jobq.transaction(): the same block was entered twice")
        self._token = _current.set(self)
        self._thread = threading.get_ident()
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        self._token = None
        self._joined.clear()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(t, e, tb)

    async def put_one(self, store: Store, spec: JobSpec) -> PutResult:
        """Store one job."""
        (result,) = await self.put(store, [spec])
        return result

    async def put(self, store: Store, specs: Sequence[JobSpec]) -> list[PutResult]:
        """Store jobs in the transaction."""
        if threading.get_ident() != self._thread:  # the portal's: the connection is not for it
            raise ConfigError(
                "jobq.transaction(): only the thread of the block can use its connection, and "
                "another thread enqueues this job"
            )
        specs = check_specs(specs)  # before a queue is prepared for them
        transactional = self._transactional(store, specs)
        joined = self._joined_to(store, transactional)
        await _prepare(transactional, specs)
        try:
            return await joined.put_async(specs)
        except QueueRemoved:
            await _prepare(transactional, specs)
            return await joined.put_async(specs)

    def put_blocking(self, store: Store, specs: Sequence[JobSpec]) -> list[PutResult]:
        """The same for code without an event loop. The calling thread uses the connection."""
        specs = check_specs(specs)
        transactional = self._transactional(store, specs)
        joined = self._joined_to(store, transactional)
        run(_prepare(transactional, specs))
        try:
            return joined.put(specs)
        except QueueRemoved:
            run(_prepare(transactional, specs))
            return joined.put(specs)

    def refuse(self, what: str) -> None:
        """Raise ConfigError: this cannot work inside the block."""
        raise ConfigError(
            f"{what} inside jobq.transaction(): the job starts only after the transaction commits, "
            "so it would wait in vain; enqueue the job, and wait for it after the commit"
        )

    def _transactional(self, store: Store, specs: Sequence[JobSpec]) -> Transactional:
        if self._token is None and not self._of_one_call:
            raise ConfigError(
                "jobq.transaction(): the block has ended, and a task that was started in it still "
                "enqueues jobs: wait for the task inside the block"
            )
        transactional = transactional_of(store)
        if transactional is None:
            raise ConfigError(
                f"queue {specs[0].queue.queue!r} is stored in {store.url}: jobq.transaction() "
                "needs a queue that is stored in PostgreSQL; enqueue this job outside the block"
            )
        return transactional

    def _joined_to(self, store: Store, transactional: Transactional) -> CallerTransaction:
        joined = self._joined.get(id(store))
        if joined is None:
            joined = self._joined[id(store)] = transactional.join(self._connection)
        return joined


class AfterCommit:
    """A transaction of the caller that jobs cannot be part of: they are stored after its commit.

    `on_commit` takes a function and calls it in the caller's thread once the transaction has
    committed, and never if it rolls back.
    """

    def __init__(self, on_commit: Callable[[Callable[[], None]], object]) -> None:
        self.on_commit = on_commit

    def refuse(self, what: str) -> None:
        """Raise ConfigError: this cannot work inside the transaction."""
        raise ConfigError(
            f"{what} inside a transaction: the job is stored only after the commit, so it would "
            "wait in vain; enqueue the job, and wait for it after the commit"
        )


Surrounding = Transaction | AfterCommit
"""The transaction that a caller without an event loop is in."""


def transaction(connection: object) -> Transaction:
    """Enqueue the jobs of a block in the transaction of your own database connection.

    `with jobq.transaction(conn):` or `async with`. The queues must be stored in the PostgreSQL
    database that the connection leads to. Jobs, flows and their events are stored by the same
    commit as your own writes. If the transaction rolls back, there is no job, no event and no
    wake-up. The block neither begins nor ends the transaction.

    `connection` is a connection of psycopg 3, a Session or Connection of SQLAlchemy 2 with the
    psycopg driver, or `django.db.connection`. Async ones work with `await task.enqueue(…)`,
    blocking ones also with `task.sync.enqueue(…)`.

    If another open transaction holds the id or the unique lock of a job, the call waits for up to
    three seconds, then raises LockTimeout. Commands such as `job.cancel()` are not part of the
    transaction.
    """
    return Transaction(connection)


async def _prepare(transactional: Transactional, specs: Sequence[JobSpec]) -> None:
    for queue, keyed in {(spec.queue, spec.key is not None) for spec in specs}:
        await transactional.prepare_for_callers(queue, keyed=keyed)
