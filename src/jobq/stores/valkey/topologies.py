"""How the server of a key is found: one server, the primary that Sentinels name, or a Cluster."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from operator import itemgetter

from jobq.errors import ConfigError, StoreUnavailable
from jobq.stores.valkey import keys
from jobq.stores.valkey.address import Address, Node
from jobq.stores.valkey.servers import Servers
from jobq.stores.valkey.wire import Reply, ServerError, connect

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
