"""Connections to servers, and calls that reach the server a key lives on.

A call uses the open connection or opens a new one. A server that was lost is looked for again with
the next call, so nothing has to be restarted by hand. A call whose reply was lost is not repeated
here: its caller decides (every call of the contract may be repeated).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from jobq.errors import ConfigError, CorruptStore, JobqError, PayloadTooLarge, StoreUnavailable
from jobq.stores.valkey import keys, layout_version
from jobq.stores.valkey.address import Address, Node
from jobq.stores.valkey.server_checks import check_server, load_library
from jobq.stores.valkey.wire import Argument, Connection, Reply, ServerError, connect, pack

_MAX_REDIRECTS = 5
"""Servers that one call is sent to. While a Cluster moves a slot, two are enough."""
_NOT_NOW = frozenset(
    {
        "READONLY",
        "LOADING",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
        "UNBLOCKED",
        "BUSY",
        "MISCONF",
        "NOAUTH",
        "NOPERM",
    }
)
"""Errors with which a server refuses every call for now. The call had no effect and may be
repeated.

If they counted as refusals of the call itself, a worker would lose the outcomes of ended jobs
whenever another user's script keeps the server busy.
"""

_DENIED = ("ACL failure in script", "The user executing the script can't")
"""The user may call a function, but lacks a permission that the function needs. Its call may have
had an effect and may be repeated, as one whose reply was lost. The second text is Redis 7.0's.
"""


class Servers:
    """Connections to primaries, by key. `topologies.py` has the classes that find the primary."""

    one_hash_slot_per_command = False
    """Whether all keys of one command must be in one slot."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._layout = keys.Space(address.prefix).layout
        self._layout_checked = False
        self._connections: dict[Node, Connection] = {}
        self._connecting: dict[Node, asyncio.Lock] = {}
        self._wait = (
            None if not address.wait else pack(("WAIT", address.wait, address.wait_timeout_ms))
        )

    # ── which server ──────────────────────────────────────────────────────────────────────────────

    def known(self, key: str) -> Node | None:
        """The server of a key, if it is known without asking."""
        raise NotImplementedError

    async def node_of(self, key: str) -> Node:
        """The server of a key."""
        raise NotImplementedError

    async def primaries(self) -> list[Node]:
        """All primaries."""
        raise NotImplementedError

    def forget(self, node: Node | None) -> None:
        """Look for a server again that was not where it should be. None: for all of them."""

    # ── connections ───────────────────────────────────────────────────────────────────────────────

    async def connection(self, node: Node) -> Connection:
        """The connection that calls share. It is opened if there is none."""
        found = self._connections.get(node)
        if found is not None and not found.closed:
            return found
        async with self._connecting.setdefault(node, asyncio.Lock()):
            found = self._connections.get(node)
            if found is None or found.closed:
                found = self._connections[node] = await self._open_prepared(node)
        return found

    async def _open_prepared(self, node: Node) -> Connection:
        """A connection that is ready for calls."""
        try:
            connection = await self.open(node)
            try:
                await self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            return connection
        except (StoreUnavailable, ServerError, ConfigError) as e:
            self.forget(node)
            if isinstance(e, JobqError):
                raise
            raise _unavailable(node, e) from e

    async def _prepare(self, connection: Connection) -> None:
        """Refuse a store of a newer jobq, then make sure that the library is loaded."""
        try:
            layout_version.check(self.address.shown, await self._read_layout(connection))
            self._layout_checked = True
        except (StoreUnavailable, ServerError):
            # In a Cluster the key is on one node. While that node is down, the others can serve.
            if not self._layout_checked:
                raise
        await load_library(connection)

    async def _read_layout(self, connection: Connection) -> Reply:
        stored = await connection.send("GET", self._layout)
        word = str(stored).partition(" ")[0] if isinstance(stored, ServerError) else ""
        if word in ("MOVED", "ASK"):
            other = await self.open(_target(str(stored), connection.node))
            try:
                if word == "ASK":
                    other.send("ASKING")
                return await other.ask("GET", self._layout)
            finally:
                await other.aclose()
        if isinstance(stored, ServerError):
            raise stored
        return stored

    async def open(self, node: Node) -> Connection:
        """A new connection that is not shared, for blocking commands and subscriptions."""
        return await connect(node, self.address)

    async def ask(self, connection: Connection, *command: Argument, patience: float = 0.0) -> Reply:
        """Send one command on such a connection. StoreUnavailable if the server refuses it."""
        try:
            return await connection.ask(*command, patience=patience)
        except ServerError as e:
            raise _unavailable(connection.node, e) from e

    async def check(self) -> None:
        """Raise ConfigError if a primary may lose jobs silently, or is too old.

        In a Cluster, each primary is checked on a connection that is closed again. A call opens the
        connection it needs. Otherwise every worker would keep a connection to every primary.
        """
        primaries = await self.primaries()
        if len(primaries) == 1:
            await check_server(await self.connection(primaries[0]), self.address.shown)
            return
        for node in primaries:
            connection = await self._open_prepared(node)
            try:
                await check_server(connection, self.address.shown)
            finally:
                await connection.aclose()

    async def aclose(self) -> None:
        """Close all shared connections."""
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(c.aclose() for c in connections))

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────

    def fcall(
        self, name: bytes, key: str, args: Sequence[Argument], *, confirmed: bool = False
    ) -> Awaitable[Reply]:
        """Call a function of the library on the server of a key.

        `confirmed`: then wait for the replicas that the URL asks for.
        """
        return self._send(
            key, pack((b"FCALL", name, b"1", key, *args)), self._wait if confirmed else None
        )

    def command(self, key: str, *command: Argument) -> Awaitable[Reply]:
        """Send one command to the server of a key."""
        return self._send(key, pack(command), None)

    async def get_all(self, names: Sequence[str]) -> list[Reply]:
        """The values of strings on any servers. Each server gets one write.

        In place of a value whose server is unavailable is the error.
        """
        found: list[Reply] = [None] * len(names)
        by_node: dict[Node, list[int]] = {}
        for n, key in enumerate(names):
            try:
                by_node.setdefault(self.known(key) or await self.node_of(key), []).append(n)
            except StoreUnavailable as e:
                found[n] = e
        sent: list[tuple[int, asyncio.Future[Reply]]] = []
        for node, positions in by_node.items():
            try:
                connection = await self.connection(node)
            except StoreUnavailable as e:
                for n in positions:
                    found[n] = e
                continue
            futures = connection.send_all([pack(("GET", names[n])) for n in positions])
            sent += zip(positions, futures, strict=True)
        for n, future in sent:
            try:
                found[n] = await future
                if type(found[n]) is ServerError:  # moved, or refused for now: the usual way
                    found[n] = await self.command(names[n], "GET", names[n])
            except StoreUnavailable as e:
                found[n] = e
        return found

    async def _send(self, key: str, command: bytes, wait: bytes | None) -> Reply:
        node = self.known(key) or await self.node_of(key)
        asking = False
        for _ in range(_MAX_REDIRECTS):
            connection = self._connections.get(node)
            if connection is None or connection.closed:
                connection = await self.connection(node)
            if asking:
                connection.send(b"ASKING")
            if wait is None:
                reply = await connection.send_packed(command)
            else:
                reply, acknowledged = await asyncio.gather(
                    connection.send_packed(command), connection.send_packed(wait)
                )
                self._confirm(reply, acknowledged)
            if type(reply) is not ServerError:
                return reply
            node, asking = await self._recover(key, node, connection, reply)
        raise StoreUnavailable(
            f"the nodes of {self.address.shown} redirected one call {_MAX_REDIRECTS} times: "
            "the Cluster is being reconfigured; try again"
        )

    def _confirm(self, reply: Reply, acknowledged: Reply) -> None:
        if isinstance(reply, ServerError):
            return
        if isinstance(acknowledged, ServerError) or acknowledged < self.address.wait:
            raise StoreUnavailable(
                f"{acknowledged} of {self.address.wait} replicas confirmed the call within "
                f"{self.address.wait_timeout_ms} ms (?wait=): it may not survive a failover; "
                "repeating it with the same ids is safe"
            )

    async def _recover(
        self, key: str, node: Node, connection: Connection, error: ServerError
    ) -> tuple[Node, bool]:
        """Where to send a call again that got an error reply, and whether to send ASKING first.

        Raises an exception if it should not be sent again.
        """
        text = str(error)
        word = text.split(" ", 1)[0]
        if word in ("MOVED", "ASK"):
            target = _target(text, node)
            if word == "MOVED":
                self.forget(None)
            return target, word == "ASK"
        if "unction not found" in text:  # FUNCTION FLUSH, or a failover to a node that was empty
            try:
                await self._prepare(connection)
            except ServerError as e:  # no memory or no permission to load them
                raise _unavailable(node, e) from e
            return node, False
        if any(denied in text for denied in _DENIED):
            raise _unavailable(node, error)
        if text.startswith("ERR Protocol error"):
            connection.close()  # the server does so too, and the next call must not meet that
            raise PayloadTooLarge(
                f"{node[0]}:{node[1]} does not accept values of this size ({text}): raise "
                "proto-max-bulk-len, or store the data elsewhere and pass a reference"
            )
        if word in _NOT_NOW:
            self.forget(node)
            if word in ("READONLY", "MASTERDOWN"):
                connection.close()
            raise _unavailable(node, error)
        if word == "OOM" or "OOM" in text[:40]:
            raise StoreUnavailable(
                f"{node[0]}:{node[1]} is out of memory (maxmemory). Nothing of this call was "
                "stored (of a bulk, earlier calls were). Raise maxmemory, or let workers drain "
                "the queue"
            )
        if word == "WRONGTYPE" or "user_function" in text or "script" in text:
            raise CorruptStore(f"the server cannot read the data of a call on {key!r}: {text}")
        raise error


def _unavailable(node: Node, error: ServerError) -> StoreUnavailable:
    return StoreUnavailable(f"{node[0]}:{node[1]} cannot serve now: {error}")


def _target(text: str, node: Node) -> Node:
    """The node that a MOVED or ASK error names."""
    host, _, port = text.split(" ")[2].rpartition(":")
    return host or node[0], int(port)
