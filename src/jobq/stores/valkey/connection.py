"""One connection to one server. Replies come in the order of the commands, and any number of
commands may be under way.

docs/decisions/0005-a-lean-connection.md compares it with redis-py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores.valkey.address import Address, Node
from jobq.stores.valkey.library import DIGEST, LIBRARY, VERSION, function

log = logging.getLogger("jobq.valkey")

Reply = Any
Argument = str | bytes | int
# The stub of pack_command knows only commands of one word.
pack: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
ServerError = hiredis.ReplyError
_NOT_YET = object()


class Connection(asyncio.Protocol):
    """A socket that speaks RESP2. A watchdog closes it when a reply is overdue."""

    def __init__(self, node: Node, timeout: float) -> None:
        self.node = node
        self.closed = False
        self.on_message: Callable[[list[Any]], None] | None = None
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)
        self._waiting: deque[tuple[asyncio.Future[Reply], float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()

    # ── asyncio.Protocol ──────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio calls this when the socket is connected."""
        # The transport of uvloop has the methods of asyncio.Transport, but not that base class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass each reply to the caller that waited longest, and each message to `on_message`."""
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        while True:
            try:
                reply = reader.gets()
            except hiredis.ProtocolError as e:
                self.close(
                    StoreUnavailable(f"{self._peer} does not speak the Valkey protocol: {e}")
                )
                return
            if reply is _NOT_YET:
                return
            if self.on_message is not None and type(reply) is list and reply[0] in _PUSHED:
                self._pass_on(self.on_message, reply)
            elif waiting:
                future, _ = waiting.popleft()
                if not future.done():
                    future.set_result(reply)

    def _pass_on(self, on_message: Callable[[list[Any]], None], message: list[Any]) -> None:
        """Anyone may publish to a channel: what cannot be read must not end the connection."""
        try:
            on_message(message)
        except Exception as e:
            log.warning("%s: a message on %r is not jobq's: %r", self._peer, message[1], e)

    def connection_lost(self, exc: Exception | None) -> None:
        """Callers that still wait get StoreUnavailable: whether their commands acted is unknown."""
        self.close(
            StoreUnavailable(f"the connection to {self._peer} was lost{f': {exc}' if exc else ''}")
        )
        if not self._gone.done():
            self._gone.set_result(None)

    # ── callers ───────────────────────────────────────────────────────────────────────────────────

    def send(self, *command: Argument, patience: float = 0.0) -> asyncio.Future[Reply]:
        """Send one command. A blocking command gets `patience`: seconds added to the timeout."""
        return self.send_packed(pack(command), patience)

    def send_packed(self, data: bytes, patience: float = 0.0) -> asyncio.Future[Reply]:
        """The same with a packed command."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self.closed or self._transport is None:
            future.set_exception(StoreUnavailable(f"the connection to {self._peer} is closed"))
            return future
        self._waiting.append((future, self._loop.time() + self._timeout + patience))
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._timeout / 4, self._watch)
        self._transport.write(data)
        return future

    def send_all(self, commands: Sequence[bytes]) -> list[asyncio.Future[Reply]]:
        """Send packed commands with one write, which costs the server one read."""
        if not commands:
            return []
        first = self.send_packed(b"".join(commands))
        if first.done():  # the connection is closed
            return [first] * len(commands)
        deadline = self._waiting[-1][1]
        rest: list[asyncio.Future[Reply]] = [self._loop.create_future() for _ in commands[1:]]
        self._waiting.extend((future, deadline) for future in rest)
        return [first, *rest]

    async def ask(self, *command: Argument, patience: float = 0.0) -> Reply:
        """Send one command and return its reply. An error reply is raised."""
        reply = await self.send(*command, patience=patience)
        if isinstance(reply, ServerError):
            raise reply
        return reply

    def close(self, error: Exception | None = None) -> None:
        """Close the connection. Callers that wait get the error."""
        if self.closed:
            return
        self.closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._transport is not None:
            self._transport.abort() if error else self._transport.close()
        error = error or StoreUnavailable(f"the connection to {self._peer} was closed")
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # no warning if the caller has gone
        self._waiting.clear()
        if self.on_message is not None:
            self.on_message([b"closed"])

    async def aclose(self) -> None:
        """Close the connection, and wait until the socket is closed."""
        self.close()
        if self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.shield(self._gone)

    def _watch(self) -> None:
        self._watchdog = None
        if not self._waiting or self.closed:
            return
        if (
            min(deadline for _, deadline in (self._waiting[0], self._waiting[-1]))
            < self._loop.time()
        ):
            self.close(
                StoreUnavailable(
                    f"{self._peer} did not reply within {self._timeout:g} s; "
                    "whether it applied the call is unknown"
                )
            )
            return
        self._watchdog = self._loop.call_later(self._timeout / 4, self._watch)

    @property
    def _peer(self) -> str:
        return f"{self.node[0]}:{self.node[1]}"


_PUSHED = frozenset({b"message", b"smessage"})


async def connect(
    node: Node, address: Address, setup: Sequence[tuple[Argument, ...]] = ()
) -> Connection:
    """Open a connection, authenticate and send `setup`.

    StoreUnavailable if the server does not reply or refuses the connection.
    """
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        async with asyncio.timeout(address.timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(node, address.timeout), node[0], node[1], ssl=address.context()
            )
            for command in (*_greeting(address), *setup):
                await connection.ask(*command)
    except BaseException as e:
        if connection is not None:
            connection.close(e if isinstance(e, Exception) else None)
        if isinstance(e, ServerError):
            raise StoreUnavailable(
                f"{node[0]}:{node[1]} refuses the connection ({address.shown}): {e}"
            ) from e
        if isinstance(e, OSError | TimeoutError) and not isinstance(e, StoreUnavailable):
            raise StoreUnavailable(
                f"no reply from {node[0]}:{node[1]} ({address.shown}): {e or type(e).__name__}"
            ) from e
        raise
    return connection


def _greeting(address: Address) -> list[tuple[Argument, ...]]:
    commands: list[tuple[Argument, ...]] = []
    if address.password is not None:
        commands.append(
            ("AUTH", address.user, address.password) if address.user else ("AUTH", address.password)
        )
    if address.db:
        commands.append(("SELECT", address.db))
    return commands


# What a new connection makes sure of: the library is loaded, and the server can be trusted.


async def load_library(connection: Connection) -> None:
    """Load the function library if it is missing.

    Several handles may do so at once: all load the same.
    """
    about = await connection.send("FCALL", function("about"), 0)
    if about == DIGEST.encode():
        return
    if isinstance(about, ServerError) and str(about).startswith(("NOAUTH", "NOPERM")):
        # A server that wants a password refuses the library only as too long: raise the clear
        # error.
        raise about
    loaded = await connection.send("FUNCTION", "LOAD", "REPLACE", LIBRARY)
    host, port = connection.node
    if isinstance(loaded, ServerError):
        if str(loaded).startswith("ERR unknown command"):
            raise ConfigError(f"{host}:{port} has no functions: use Redis 7.0, Valkey 7.2 or newer")
        raise loaded
    if not isinstance(about, ServerError):
        log.warning(
            "replaced another build of the function library %s on %s:%d: different builds of jobq "
            "use this server",
            VERSION,
            host,
            port,
        )


async def check_server(connection: Connection, shown: str) -> None:
    """Raise ConfigError if the server is too old or evicts keys.

    `shown` is the URL without password.
    """
    host, port = connection.node
    try:
        sections = [
            (await connection.ask("INFO", section)).decode() for section in ("server", "memory")
        ]
    except ServerError as e:
        raise StoreUnavailable(
            f"{host}:{port} does not let jobq check its version and memory policy (INFO): {e}"
        ) from e
    lines = "".join(sections).splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    version = facts.get("valkey_version") or facts["redis_version"]
    if int(facts["redis_version"].split(".")[0]) < 7:
        raise ConfigError(
            f"{shown} is version {version}, which has no functions: "
            "use Redis 7.0, Valkey 7.2 or newer"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if int(facts.get("maxmemory", "0")) > 0 and policy != "noeviction":
        raise ConfigError(
            f"{shown} evicts keys when memory runs out (maxmemory-policy {policy}), which would "
            "silently lose jobs: set maxmemory-policy to noeviction"
        )
