"""One connection to a server: statements are queued, and travel together when a reply is needed.

A `Link` uses libpq (through psycopg.pq) in pipeline mode. With psycopg's cursors and their
pipeline, a drain takes 1.5 times as long, and a single job 1.4 times from enqueue to result. If
each statement waits for its reply, a drain takes 1.14 times and a bulk enqueue 1.3 times as long,
although the server is on the same machine (`python -m bench.postgres_paths --only
pipeline,cursors`; docs/decisions/0017-libpq-without-cursors.md).

Every wait has a deadline and ends at once when the handle is closed. The server's own timeouts work
too, because each round trip ends with a Sync: a client that freezes inside a transaction is thrown
out by `idle_in_transaction_session_timeout`.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from jobq.stores.postgres.values import Encode, encoder

BINARY = 1
CANCEL_S = 1.0
"""Seconds that a request to cancel may take. The server's timeouts end the statement otherwise."""

_OK = frozenset((pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY))


class LinkLost(Exception):
    """The connection is lost, could not be made, or gave no reply in time."""


class LinkStopped(LinkLost):
    """The handle is being closed."""


LOST = (LinkLost, psycopg.Error)
"""What a link raises when its connection is lost: libpq refuses to queue more then."""


class StatementFailed(Exception):
    """The server refused a statement. `sqlstate` is PostgreSQL's code of the error."""

    def __init__(self, sqlstate: str, message: str, *, context: str = "") -> None:
        """`context`: what the server was doing, for example which row it waited for."""
        super().__init__(f"{message} (SQLSTATE {sqlstate})")
        self.sqlstate = sqlstate
        self.context = context


class Statement(NamedTuple):
    """A statement whose parameters are known: its name, their types and formats."""

    name: bytes
    types: list[int]
    formats: list[int]
    encoders: list[Encode]


class Reply:
    """The reply to a statement. Reading it sends what is queued, and waits for the server."""

    __slots__ = ("_link", "_result", "_rows", "ends", "quiet")

    def __init__(self, link: Link, *, ends: bool = False) -> None:
        self.quiet = False
        """True: an error of the statement is ignored."""
        self.ends = ends
        """True: the reply to a Sync."""
        self._link = link
        self._result: Any = None
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None: there is no more."""
        return next(self._iterator(), None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that were not read yet."""
        return list(self._iterator())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._iterator()

    def peek(self) -> list[tuple[Any, ...]]:
        """All rows, which stay to be read."""
        rows = self.fetchall()
        self._rows = iter(rows)
        return rows

    @property
    def changes(self) -> int:
        """How many rows the statement inserted, updated, deleted or returned."""
        return self.result().command_tuples or 0

    def _iterator(self) -> Iterator[tuple[Any, ...]]:
        if self._rows is None:
            self._rows = iter(self._link.rows(self.result()))
        return self._rows

    def result(self) -> Any:
        """libpq's result. Waits for it."""
        if self._result is None:
            self._link.wait(self)
            assert self._result is not None
        return self._result

    def receive(self, result: Any) -> None:
        """Keep the result."""
        self._result = result


class Link:
    """A connection of libpq in pipeline mode. One thread at a time may use it."""

    def __init__(
        self,
        pgconn: Any,
        stop: int,
        *,
        pooled: bool = False,
        described: dict[str, Statement] | None = None,
    ) -> None:
        """`stop`: a descriptor that becomes readable when the handle is closed.

        `pooled`: the connection's server may change between transactions, so that there are neither
        prepared statements nor settings of the session. `described`: the types of parameters that
        other pooled links have asked for, which this one shares.
        """
        self.pgconn = pgconn
        self.pooled = pooled
        self.deadline = 0.0
        self.notified: Callable[[str], None] | None = None
        """Called with the payload of each notification."""
        self._stop = stop
        self._transformer = Transformer()
        self._statements: dict[str, Statement] = {} if described is None else described
        self._prepared = 0
        self._pending: deque[Reply] = deque()
        self._poll = select.poll()
        self._events = select.POLLIN
        self._poll.register(stop, select.POLLIN)
        self._poll.register(pgconn.socket, self._events)

    # ── statements ────────────────────────────────────────────────────────────────────────────────

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Reply:
        """Queue a statement. Its error, if any, is raised by the next wait."""
        statement = self._statements.get(sql)
        if statement is None:
            statement = self._describe(sql)
        values = [
            None if value is None else encode(value)
            for encode, value in zip(statement.encoders, parameters, strict=True)
        ]
        if self.pooled:
            self.pgconn.send_query_params(
                sql.encode(), values, statement.types, statement.formats, BINARY
            )
        else:
            self.pgconn.send_query_prepared(statement.name, values, statement.formats, BINARY)
        return self._queued()

    def prepare(self, *statements: str) -> None:
        """Prepare statements that belong to one implicit transaction. A Sync would commit it."""
        for sql in statements:
            if sql not in self._statements:
                self._describe(sql)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> list[Reply]:
        """Queue a statement for each of these parameters."""
        return [self.execute(sql, row) for row in rows]

    def command(self, sql: bytes) -> Reply:
        """Queue a statement without parameters that is not worth preparing, such as BEGIN."""
        self.pgconn.send_query_params(sql, None)
        return self._queued()

    def sync(self) -> Reply:
        """Queue a Sync. Outside BEGIN and COMMIT, it commits the statements since the last one.

        They are committed when the reply to the Sync has arrived, not with their own replies."""
        self.pgconn.pipeline_sync()
        reply = Reply(self, ends=True)
        self._pending.append(reply)
        return reply

    def flush(self) -> None:
        """Send what is queued without waiting for a reply. A later wait reads the replies."""
        self.sync()
        self.send()

    def send(self) -> None:
        """Send what is queued, so that the server begins with it. Commits nothing."""
        with contextlib.suppress(psycopg.Error):  # the next wait finds the reason
            self.pgconn.flush()

    def wait(self, reply: Reply | None = None) -> None:
        """Send what is queued and receive the replies: all of them, or those up to this one.

        Raises the first error among them.
        """
        if self._pending and not self._pending[-1].ends:
            self.sync()
        self._flush()
        failed: StatementFailed | None = None
        while self._pending:
            at = self._pending.popleft()
            failure = self._receive(at)
            if failure is not None and failed is None and not at.quiet:
                failed = failure
            if at is reply is not None:
                break
        self._deliver()
        if failed is not None:
            raise failed

    def script(self, sql: str) -> None:
        """Run any number of statements that have no parameters, and wait for them."""
        self.wait()
        self.pgconn.exit_pipeline_mode()
        self.pgconn.send_query(sql.encode())
        self._flush()
        failed: StatementFailed | None = None
        while (result := self._next()) is not None:
            if result.status not in _OK and failed is None:
                failed = self._failure(result)
        self.pgconn.enter_pipeline_mode()
        if failed is not None:
            raise failed

    def discard(self) -> None:
        """Receive all replies that nobody reads, and ignore errors of statements."""
        with contextlib.suppress(StatementFailed):
            self.wait()

    def rows(self, result: Any) -> list[tuple[Any, ...]]:
        """The rows of a result as Python values."""
        n = result.ntuples
        if not n:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, n, tuple)

    # ── waiting ───────────────────────────────────────────────────────────────────────────────────

    def receive(self) -> None:
        """Read what has arrived while nobody waits: late replies, notifications, or the end."""
        self._consume()
        self.catch_up()
        if self.pgconn.status != pq.ConnStatus.OK:
            raise LinkLost(self._problem())

    def check(self) -> None:
        """Make sure that the server replies."""
        self.command(b"SELECT 1")
        self.wait()

    def catch_up(self) -> None:
        """Handle what is read already. Call this before a wait for the socket: it may stay silent.

        The replies are of statements that nobody waits for, so their errors are ignored.
        """
        while self._pending and not self.pgconn.is_busy():
            self._receive(self._pending.popleft())
        self._deliver()

    def cancel(self) -> None:
        """Ask the server to end the statement in flight. Best effort."""
        with contextlib.suppress(psycopg.Error, AttributeError, OSError):
            request = self.pgconn.cancel_conn()
            request.start()
            deadline = time.monotonic() + CANCEL_S
            while (state := request.poll()) not in (
                pq.PollingStatus.OK,
                pq.PollingStatus.FAILED,
            ):
                reading = state == pq.PollingStatus.READING
                if not ready(request.socket, reading, deadline - time.monotonic()):
                    break
            request.finish()

    def close(self) -> None:
        """Close the connection."""
        self.pgconn.finish()

    def _queued(self) -> Reply:
        reply = Reply(self)
        self._pending.append(reply)
        return reply

    def _describe(self, sql: str) -> Statement:
        """Prepare a statement, and ask for the types of its parameters. Once per connection."""
        self._prepared += 1  # also if this fails: the server may have the name already
        name = b"" if self.pooled else b"s%d" % self._prepared
        self.pgconn.send_prepare(name, sql.encode())
        self._queued()
        self.pgconn.send_describe_prepared(name)
        described = self._queued()
        self.wait()
        result = described.result()
        types = [result.param_type(i) for i in range(result.nparams)]
        encoders = [encoder(oid) for oid in types]
        statement = Statement(name, types, [f for _, f in encoders], [e for e, _ in encoders])
        self._statements[sql] = statement
        return statement

    def _receive(self, reply: Reply) -> StatementFailed | None:
        """Receive the result of one statement, or of a Sync. Returns its error."""
        result = self._next()
        if result is None:
            raise LinkLost(self._problem())
        if reply.ends:
            if result.status != pq.ExecStatus.PIPELINE_SYNC:
                raise LinkLost(self._problem())
            return None
        failure = None
        if result.status in _OK:
            reply.receive(result)
        elif result.status == pq.ExecStatus.PIPELINE_ABORTED:
            failure = StatementFailed("25P02", "a statement before this one has failed")
        else:
            failure = self._failure(result)
        self._next()  # None: the end of the statement's results
        return failure

    def _flush(self) -> None:
        """Send everything, and read meanwhile: a server that cannot send stops receiving."""
        while self.pgconn.flush():
            if self._wait(select.POLLIN | select.POLLOUT) & select.POLLIN:
                self._consume()

    def _next(self) -> Any:
        pgconn = self.pgconn
        while pgconn.is_busy():
            self._wait(select.POLLIN)
            self._consume()
        return pgconn.get_result()

    def _consume(self) -> None:
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            if not self._pending:
                raise LinkLost(self._problem()) from None
            # A result with the server's reason may have arrived before the end.

    def _wait(self, events: int) -> int:
        """Wait for the socket, and return which of the events happened."""
        if events != self._events:
            self._poll.modify(self.pgconn.socket, events)
            self._events = events
        left = self.deadline - time.monotonic()
        ready = self._poll.poll(max(0.0, left) * 1000)
        if not ready:
            raise LinkLost("the server did not reply in time")
        if len(ready) > 1 or ready[0][0] == self._stop:
            raise LinkStopped("the handle is being closed")
        return ready[0][1]

    def _deliver(self) -> None:
        while (notify := self.pgconn.notifies()) is not None:
            if self.notified is not None:
                self.notified(notify.extra.decode())

    def _failure(self, result: Any) -> StatementFailed:
        code = result.error_field(pq.DiagnosticField.SQLSTATE)
        severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
        text = (message or b"").decode(errors="replace") or one_line(result.get_error_message())
        if code is None or severity in (b"FATAL", b"PANIC"):
            raise LinkLost(text)
        context = result.error_field(pq.DiagnosticField.CONTEXT) or b""
        return StatementFailed(code.decode(), text, context=context.decode(errors="replace"))

    def _problem(self) -> str:
        return one_line(self.pgconn.get_error_message()) or "the server closed the connection"


def ready(socket: int, reading: bool, left: float, stop: int | None = None) -> bool:
    """Wait for one event of a socket. False: the time is over. LinkStopped: the handle closes."""
    poll = select.poll()
    poll.register(socket, select.POLLIN if reading else select.POLLOUT)
    if stop is not None:
        poll.register(stop, select.POLLIN)
    ready = poll.poll(max(0.0, left) * 1000)
    if any(descriptor == stop for descriptor, _ in ready):
        raise LinkStopped("the handle is being closed")
    return bool(ready)


def one_line(text: str) -> str:
    """A message of libpq without its explanations, which are the same every time."""
    lines = [line for line in text.splitlines() if not line.startswith("\t")]
    return " ".join(" ".join(lines).split())
