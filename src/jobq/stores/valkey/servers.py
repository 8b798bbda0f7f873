"""Which server a key lives on, and calls that reach it: one server, the primary that Sentinels name, or a Cluster.

A call goes out on a connection that is there, or on a new one; a server that went away is looked for anew with the next
call, so nothing has to be restarted by hand. A call that got lost on the way is never repeated from here: only its caller
knows what that means (every call of the contract may be repeated).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence

from jobq.errors import ConfigError, CorruptStore, JobqError, StoreUnavailable
from jobq.stores.valkey import keys, layout_version
from jobq.stores.valkey.address import Address, Node
from jobq.stores.valkey.functions import DIGEST, LIBRARY, VERSION, function
from jobq.stores.valkey.wire import Argument, Connection, Reply, ServerError, connect, pack

log = logging.getLogger("jobq.valkey")
_REDIRECTS = 5
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
"""Refusals that say nothing about the call: it did not act, and repeated it may. Taken for an answer to the call, a script
of somebody else's that keeps the server busy would cost workers the outcomes of jobs that have ended."""


class Servers:
    """Connections to primaries, by key. `Single`, `Sentinel` and `Cluster` find the primary."""

    one_slot_per_command = False
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

    # ── where ─────────────────────────────────────────────────────────────────────────────────────

    def known(self, key: str) -> Node | None:
        """Where a key lives, as far as that is known already."""
        raise NotImplementedError

    async def node_of(self, key: str) -> Node:
        """Where a key lives."""
        raise NotImplementedError

    async def primaries(self) -> list[Node]:
        """All primaries."""
        raise NotImplementedError

    def forget(self, node: Node | None) -> None:
        """A server was not where it should be: look for it anew."""

    async def connection(self, node: Node) -> Connection:
        """The connection that calls share, opened if there is none."""
        found = self._connections.get(node)
        if found is not None and not found.closed:
            return found
        async with self._connecting.setdefault(node, asyncio.Lock()):
            found = self._connections.get(node)
            if found is None or found.closed:
                try:
                    found = await self._opened(node)
                except (StoreUnavailable, ServerError, ConfigError) as e:
                    self.forget(node)
                    raise (
                        e
                        if isinstance(e, JobqError)
                        else StoreUnavailable(f"{node[0]}:{node[1]}: {e}")
                    ) from e
                self._connections[node] = found
        return found

    async def _opened(self, node: Node) -> Connection:
        connection = await self.open(node)
        try:
            await self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _prepare(self, connection: Connection) -> None:
        """Refuse a store that belongs to a newer jobq; then make sure that the library is there."""
        try:
            layout_version.check(self.address.shown, await self._read_layout(connection))
            self._layout_checked = True
        except (StoreUnavailable, ServerError):
            # In a Cluster, the key is on one node: this one is still of use while that one is down.
            if not self._layout_checked:
                raise
        await _load(connection)

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
        """A connection of one's own: for blocking commands and subscriptions."""
        return await connect(node, self.address)

    async def check(self) -> None:
        """Whether these servers can be trusted with jobs: see `ConfigError`."""
        for node in await self.primaries():
            connection = await self.connection(node)
            try:
                facts = [
                    (await connection.ask("INFO", section)).decode()
                    for section in ("server", "memory")
                ]
            except ServerError as e:
                raise StoreUnavailable(
                    f"{node[0]}:{node[1]} does not say whether it can keep jobs (INFO): {e}"
                ) from e
            _check(self.address, *facts)

    async def aclose(self) -> None:
        """End all connections."""
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(c.aclose() for c in connections))

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────

    def fcall(
        self, name: bytes, key: str, args: Sequence[Argument], *, confirmed: bool = False
    ) -> Awaitable[Reply]:
        """Call a function of the library where the key lives. `confirmed`: then wait for the replicas the URL asks for."""
        return self._send(
            key, pack((b"FCALL", name, b"1", key, *args)), self._wait if confirmed else None
        )

    def command(self, key: str, *command: Argument) -> Awaitable[Reply]:
        """One command, where the key lives."""
        return self._send(key, pack(command), None)

    async def _send(self, key: str, command: bytes, wait: bytes | None) -> Reply:
        node = self.known(key) or await self.node_of(key)
        asking = False
        for _ in range(_REDIRECTS):
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
            f"the servers of {self.address.shown} keep pointing at each other; the cluster is not settled"
        )

    def _confirm(self, reply: Reply, acknowledged: Reply) -> None:
        if isinstance(reply, ServerError):
            return
        if isinstance(acknowledged, ServerError) or acknowledged < self.address.wait:
            raise StoreUnavailable(
                f"{acknowledged} of {self.address.wait} replicas confirmed within {self.address.wait_timeout_ms} ms (?wait=): "
                "it may or may not survive a failover; repeating the call is safe under the same ids"
            )

    async def _recover(
        self, key: str, node: Node, connection: Connection, error: ServerError
    ) -> tuple[Node, bool]:
        """What an error reply asks for: another node, the library, or an exception."""
        text = str(error)
        word = text.split(" ", 1)[0]
        if word in ("MOVED", "ASK"):
            target = _target(text, node)
            if word == "MOVED":
                self.forget(None)
            return target, word == "ASK"
        if "unction not found" in text:  # FUNCTION FLUSH, or a failover to a node that was empty
            await self._prepare(connection)
            return node, False
        if word in _NOT_NOW:
            self.forget(node)
            if word in ("READONLY", "MASTERDOWN"):
                connection.close()
            raise StoreUnavailable(f"{node[0]}:{node[1]} cannot serve now: {text}")
        if word == "OOM" or "OOM" in text[:40]:
            raise StoreUnavailable(
                f"{node[0]}:{node[1]} is out of memory (maxmemory), and nothing of this call was stored "
                "(of a bulk, the calls before it were): raise maxmemory, or let workers drain the queue"
            )
        if "user_function" in text or "script" in text:
            raise CorruptStore(
                f"the server could not carry out a call on {key!r}, whose data it cannot read: {text}"
            )
        raise error


def _target(text: str, node: Node) -> Node:
    host, _, port = text.split(" ")[2].rpartition(":")
    return host or node[0], int(port)


async def _load(connection: Connection) -> None:
    """Make sure that the library is there. Several may try at once; all load the same text."""
    about = await connection.send("FCALL", function("about"), 0)
    if about == DIGEST.encode():
        return
    if isinstance(about, ServerError) and str(about).startswith(("NOAUTH", "NOPERM")):
        raise about  # of the library, which is long, a server that waits for a password says only that it is too long
    loaded = await connection.send("FUNCTION", "LOAD", "REPLACE", LIBRARY)
    if isinstance(loaded, ServerError):
        if str(loaded).startswith("ERR unknown command"):
            raise ConfigError(
                f"{connection.node[0]}:{connection.node[1]} has no functions: Redis 7.0 or Valkey 7.2 is needed"
            )
        raise loaded
    if not isinstance(about, ServerError):
        log.warning(
            "replaced another text of %s on %s:%d: two builds of one version share this server",
            VERSION,
            *connection.node,
        )


def _check(address: Address, server: str, memory: str) -> None:
    facts = dict(line.split(":", 1) for line in (server + memory).splitlines() if ":" in line)
    version = facts.get("valkey_version") or facts["redis_version"]
    if int(facts["redis_version"].split(".")[0]) < 7:
        raise ConfigError(
            f"{address.shown} is version {version}: Redis 7.0 or Valkey 7.2 is needed (it keeps jobs with functions)"
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if int(facts.get("maxmemory", "0")) > 0 and policy != "noeviction":
        raise ConfigError(
            f"{address.shown} evicts keys when memory runs out (maxmemory-policy {policy}), which would silently lose jobs: "
            "set maxmemory-policy to noeviction"
        )


class Single(Servers):
    """One server."""

    def known(self, key: str) -> Node:
        """There is only one."""
        return self.address.nodes[0]

    async def node_of(self, key: str) -> Node:
        """That one."""
        return self.address.nodes[0]

    async def primaries(self) -> list[Node]:
        """That one."""
        return [self.address.nodes[0]]


class Sentinel(Servers):
    """The primary that Sentinels name; after a failover, the new one."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._primary: Node | None = None

    def known(self, key: str) -> Node | None:
        """The primary, if a Sentinel has named it."""
        return self._primary

    async def node_of(self, key: str) -> Node:
        """The primary, asked for when it is not known."""
        if self._primary is None:
            self._primary = await self._ask()
        return self._primary

    async def primaries(self) -> list[Node]:
        """That one."""
        return [await self.node_of("")]

    def forget(self, node: Node | None) -> None:
        """Ask the Sentinels again."""
        self._primary = None

    async def _ask(self) -> Node:
        last: Exception | None = None
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
            if found is None:
                raise ConfigError(
                    f"the Sentinel at {node[0]}:{node[1]} knows no primary called {self.address.name!r}"
                )
            return found[0].decode(), int(found[1])
        raise StoreUnavailable(f"no Sentinel of {self.address.shown} answers: {last}")


class Cluster(Servers):
    """The nodes of a Cluster, by slot."""

    one_slot_per_command = True

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._slots: list[tuple[int, int, Node]] = []
        self._asking = asyncio.Lock()

    def known(self, key: str) -> Node | None:
        """The primary of the key's slot, if the slots are known."""
        slot = keys.slot_of(key)
        return next((node for first, last, node in self._slots if first <= slot <= last), None)

    async def node_of(self, key: str) -> Node:
        """The primary of the key's slot, asked for when it is not known."""
        if (node := self.known(key)) is None:
            self._slots = []
            await self._refresh()
            node = self.known(key)
        if node is None:
            raise StoreUnavailable(
                f"no node of {self.address.shown} serves the slot of {key!r}: the cluster is not complete"
            )
        return node

    async def primaries(self) -> list[Node]:
        """All of them."""
        if not self._slots:
            await self._refresh()
        return list(dict.fromkeys(node for _, _, node in self._slots))

    def forget(self, node: Node | None) -> None:
        """Slots have moved: ask again."""
        self._slots = []

    async def _refresh(self) -> None:
        async with self._asking:
            if self._slots:
                return
            last: Exception | None = None
            for node in (*self._connections, *self.address.nodes):
                try:
                    found = await self._ask(node)
                except (StoreUnavailable, ServerError) as e:
                    last = e
                    continue
                self._slots = [
                    (a, b, (primary[0].decode() or node[0], primary[1]))
                    for a, b, primary, *_ in found
                ]
                if self._slots:
                    return
            raise StoreUnavailable(f"no node of {self.address.shown} answers: {last}")

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
    """By kind."""
    return {"single": Single, "sentinel": Sentinel, "cluster": Cluster}[address.kind](address)
