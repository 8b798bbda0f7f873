"""How the bench does without a mechanism: by replacing parts of the store in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from bench.postgres_paths.cursors import CursorLink
from jobq.core.records.jobs import QueueName
from jobq.stores.postgres import address, caller, connection, fast
from jobq.stores.postgres import reads as reading
from jobq.stores.postgres import store as store_module
from jobq.stores.postgres.link import Link, Reply
from jobq.stores.postgres.queries import SQL
from jobq.stores.postgres.store import PostgresStore
from jobq.stores.relational import reads


class WaitingLink(Link):
    """Every statement waits for its reply. A Flush asks for it, which commits nothing."""

    _open = False  # whether a statement was sent after the last Sync

    def _queued(self) -> Reply:
        reply = super()._queued()
        self._open = True
        self.pgconn.send_flush_request()
        self._flush()
        while self._pending:
            if (failure := self._receive(self._pending.popleft())) is not None:
                self.sync()
                raise failure
        return reply

    def command(self, sql: bytes) -> Reply:
        if self._open and sql.startswith(b"BEGIN"):
            self.sync()
        return super().command(sql)

    def sync(self) -> Reply:
        self._open = False
        return super().sync()

    def wait(self, reply: Reply | None = None) -> None:
        if self._open:
            self.sync()
        super().wait(reply)


class LockingTx(caller.CallerTx):
    """A caller's request that locks the rows of queues, as those of the general way do."""

    def use_queue(self, name: QueueName) -> None:
        super().use_queue(name)
        self.execute(SQL.hot["lock_queue"], name)


Patch = tuple[object, str, Any]


class Without(NamedTuple):
    """What happens without a mechanism, how the bench does without it, and what is measured."""

    what: str
    patches: tuple[Patch, ...]
    measures: tuple[str, ...]


WITHOUT = {
    "pipeline": Without(
        "every statement waits for its reply",
        ((address, "Link", WaitingLink),),
        ("drain", "cpu", "request", "bulk", "keyed"),
    ),
    "cursors": Without(
        "psycopg's cursors and pipeline",
        ((address, "Link", CursorLink),),
        ("drain", "cpu", "request", "bulk", "keyed"),
    ),
    "ask ahead": Without("get reads job after job", ((reading, "get", reads.get),), ("get",)),
    "lanes": Without(
        "one connection per worker",
        ((connection, "MAX_CONNECTIONS", 1), (PostgresStore, "lanes", 1)),
        ("drain", "keyed"),
    ),
    "exchange": Without(
        "exchanges go the general way",
        ((fast, "may_exchange", lambda *_: False),),
        ("drain", "cpu", "workers", "request"),
    ),
    "put": Without(
        "puts go the general way",
        ((fast, "may_put", lambda _: False),),
        ("bulk", "single", "producers"),
    ),
    "parts": Without(
        "one statement for all jobs of a put",
        ((fast, "FIRST", fast.MOST), (fast, "PART", fast.MOST)),
        ("bulk",),
    ),
    "handover": Without(
        "no switch of threads after a put", ((store_module, "_MANY", 10**9),), ("bulk",)
    ),
    "caller": Without(
        "jobq.transaction() locks the queue",
        ((caller, "CallerTx", LockingTx),),
        ("beside",),
    ),
}


@contextmanager
def patched(patches: tuple[Patch, ...]) -> Iterator[None]:
    """Do without a mechanism."""
    with ExitStack() as stack:
        for where, name, value in patches:
            stack.enter_context(patch.object(where, name, value))
        yield
