"""A connection by psycopg's own cursors: what jobq would use instead of its `Link`.

It has neither deadlines nor an end of waits when the handle is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import psycopg

from jobq.stores.postgres.link import Link, Reply, StatementFailed


class CursorReply(Reply):
    """The reply to a statement of a cursor, or to a Sync."""

    __slots__ = ("cursor",)

    def __init__(self, link: Link, cursor: Any = None) -> None:
        super().__init__(link, ends=cursor is None)
        self.cursor = cursor

    def result(self) -> Any:
        if self.cursor.pgresult is None:
            self._link.wait(self)
        return self.cursor.pgresult

    def _iterator(self) -> Any:
        if self._rows is None:
            has_rows = self.result().nfields > 0
            self._rows = iter(self.cursor.fetchall() if has_rows else ())
        return self._rows


class CursorLink(Link):
    """A connection of psycopg in its pipeline mode."""

    def __init__(self, pgconn: Any, stop: int, **named: Any) -> None:
        super().__init__(pgconn, stop, **named)
        pgconn.exit_pipeline_mode()
        self.connection: psycopg.Connection[Any] = psycopg.Connection(pgconn)
        self.connection._autocommit = True
        self.connection.prepare_threshold = 0
        self.connection.prepared_max = 10_000
        self.connection.add_notify_handler(self._hear)
        self._queue = self.connection._pipeline = psycopg.Pipeline(self.connection)
        self._queue.__enter__()
        self._ended = True  # whether the last thing that was queued is a Sync

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Reply:
        values = [list(value) if isinstance(value, tuple) else value for value in parameters]
        return self._run(sql, values)

    def command(self, sql: bytes) -> Reply:
        return self._run(sql, None)

    def _run(self, sql: Any, values: Any) -> Reply:
        cursor = psycopg.RawCursor(self.connection)
        self._ended = False
        with _translated():
            cursor.execute(sql, values, binary=True)
        return CursorReply(self, cursor)

    def prepare(self, *statements: str) -> None:
        """A cursor prepares a statement together with its first execution."""

    def sync(self) -> Reply:
        self._queue._enqueue_sync()
        self._ended = True
        return CursorReply(self)

    def send(self) -> None:
        with _translated():
            self.connection.wait(self._queue._communicate_gen())

    def wait(self, reply: Reply | None = None) -> None:
        if not self._ended:
            self.sync()
        self.send()
        with _translated():
            self.connection.wait(self._queue._fetch_gen(flush=False))
        self._deliver()

    def catch_up(self) -> None:
        with contextlib.suppress(StatementFailed):
            self.wait()

    def _hear(self, notify: Any) -> None:
        if self.notified is not None:
            self.notified(notify.payload)


@contextlib.contextmanager
def _translated() -> Any:
    try:
        yield
    except psycopg.Error as e:
        if e.sqlstate is None:
            raise
        raise StatementFailed(e.sqlstate, str(e), context=e.diag.context or "") from e
