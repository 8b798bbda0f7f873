"""Connections to servers: one server, Sentinel's primary or a Cluster; calls reach the server of a
key.

A call uses the open connection or opens a new one. A server that was lost is looked for again with
the next call, so nothing has to be restarted by hand. A call whose reply was lost is not repeated
here: its caller decides (every call of the contract may be repeated).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Sequence
from operator import itemgetter

from jobq.errors import ConfigError, CorruptStore, JobqError, PayloadTooLarge, StoreUnavailable
from jobq.stores.valkey import keys
from jobq.stores.valkey.address import Address, Node
from jobq.stores.valkey.connection import (
    Argument,
    Connection,
    Reply,
    ServerError,
    check_server,
    connect,
    load_library,
    pack,
)
from jobq.stores.valkey.layout import check_layout

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
    """Connections to primaries, by key. The subclasses below find the primary."""

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
            check_layout(self.address.shown, await self._read_layout(connection))
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


# How the server of a key is found: one server, the primary that Sentinels name, or a Cluster.

_first = itemgetter(0)


class Single(Servers):
    """One server."""

    def known(self, key: str) -> Node:
        """The server."""
        return self.address.nodes[0]

    async def node_of(self, key: str) -> Node:
        """The server."""
        return self.address.nodes[0]

    async def primaries(self) -> list[Node]:
        """The server."""
        return [self.address.nodes[0]]


class Sentinel(Servers):
    """The primary that Sentinels name. After a failover, that is another one."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._primary: Node | None = None
        self._found = False  # a Sentinel has named the primary before

    def known(self, key: str) -> Node | None:
        """The primary, if a Sentinel has named it."""
        return self._primary

    async def node_of(self, key: str) -> Node:
        """The primary. Asks the Sentinels if it is not known."""
        if self._primary is None:
            self._primary = await self._ask()
        return self._primary

    async def primaries(self) -> list[Node]:
        """The primary."""
        return [await self.node_of("")]

    def forget(self, node: Node | None) -> None:
        """Ask the Sentinels again."""
        self._primary = None

    async def _ask(self) -> Node:
        last: Exception | None = None
        unknown: list[Node] = []
        for node in self.address.nodes:
            try:
                connection = await connect(
                    node, self.address._replace(user=None, password=None, db=0)
                )
            except StoreUnavailable as e:
                last = e
                continue
            try:
                found = await connection.ask(
                    "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.name or ""
                )
            except (StoreUnavailable, ServerError) as e:
                last = e
                continue
            finally:
                await connection.aclose()
            if found is not None:
                self._found = True
                return found[0].decode(), int(found[1])
            unknown.append(node)  # it may have restarted without its configuration
        if not unknown:
            raise StoreUnavailable(f"no Sentinel of {self.address.shown} responds: {last}")
        names = ", ".join(f"{host}:{port}" for host, port in unknown)
        if self._found:
            raise StoreUnavailable(
                f"the Sentinels at {names} have forgotten the primary {self.address.name!r}"
            )
        raise ConfigError(
            f"the Sentinels at {names} know no primary named {self.address.name!r}: check the name "
            "in the URL"
        )


class Cluster(Servers):
    """The nodes of a Cluster, by slot."""

    one_hash_slot_per_command = True

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._hash_slots: list[tuple[int, int, Node]] = []  # first, last and primary, in order
        self._asking = asyncio.Lock()

    def known(self, key: str) -> Node | None:
        """The primary of the key's slot, if the slots are known."""
        hash_slot = keys.hash_slot_of(key)
        n = bisect_right(self._hash_slots, hash_slot, key=_first) - 1
        return self._hash_slots[n][2] if n >= 0 and hash_slot <= self._hash_slots[n][1] else None

    async def node_of(self, key: str) -> Node:
        """The primary of the key's slot. Asks the Cluster if it is not known."""
        if (node := self.known(key)) is None:
            self._hash_slots = []
            await self._refresh()
            node = self.known(key)
        if node is None:
            raise StoreUnavailable(
                f"no node of {self.address.shown} serves the slot of {key!r}: "
                "the Cluster is incomplete"
            )
        return node

    async def primaries(self) -> list[Node]:
        """All primaries."""
        if not self._hash_slots:
            await self._refresh()
        return list(dict.fromkeys(node for _, _, node in self._hash_slots))

    def forget(self, node: Node | None) -> None:
        """Ask for all slots again: some have moved."""
        self._hash_slots = []

    async def _refresh(self) -> None:
        async with self._asking:
            if self._hash_slots:
                return
            last: Exception | None = None
            for node in (*self._connections, *self.address.nodes):
                try:
                    found = await self._ask(node)
                except (StoreUnavailable, ServerError) as e:
                    last = e
                    continue
                self._hash_slots = sorted(
                    (a, b, (primary[0].decode() or node[0], primary[1]))
                    for a, b, primary, *_ in found
                )
                if self._hash_slots:
                    return
            raise StoreUnavailable(f"no node of {self.address.shown} responds: {last}")

    async def _ask(self, node: Node) -> Reply:
        shared = self._connections.get(node)
        if shared is not None and not shared.closed:
            return await shared.ask("CLUSTER", "SLOTS")
        connection = await self.open(node)
        try:
            return await connection.ask("CLUSTER", "SLOTS")
        finally:
            await connection.aclose()


def servers_at(address: Address) -> Servers:
    """The servers of an address."""
    return {"single": Single, "sentinel": Sentinel, "cluster": Cluster}[address.kind](address)
