"""Valkey: one server, Sentinels, a Cluster."""

from __future__ import annotations

import random

from tests.faults.ledger.facts import now_ms
from tests.faults.ledger.places import CLIENTS, CLOCKS, NETWORK, SERVER, Place
from tests.faults.ledger.shimming import environment
from tests.stores.valkey import servers
from tests.waiting import wait_until

EVERYSEC_MS = 2_000
"""Milliseconds that `appendfsync everysec` may lose: it syncs every second, and postpones a write
for up to two while a sync is under way."""
LOAD_S = 600
"""Seconds that a server may take to start: it reads a file of millions of commands."""
FAILOVER_S = 60
"""Seconds that a failover may take."""


class Valkey(Place):
    """One server that appends every write to a file."""

    kinds = CLIENTS | SERVER | NETWORK | CLOCKS | {"disk full", "power cut"}
    durabilities = ("always", "everysec")

    def open(self) -> None:
        options = ("--appendonly", "yes", "--appendfsync", self.durability)
        self.server = servers.Server(servers.valkey_binary(), self.disk, *options)
        self.stack.callback(self.server.stop)
        self._start()
        self._port = self.proxied(self.server.port)

    def _start(self) -> None:
        with environment(self.server_variables):
            self.server.start(seconds=LOAD_S)

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self._port}?timeout=3"

    @property
    def reader_url(self) -> str:
        return f"{self.server.url}?timeout=10"

    @property
    def loses(self) -> bool:
        return self.durability == "everysec"

    def kill(self, rng: random.Random) -> int | None:
        forgets = self._forgets()
        self.server.kill()
        self._start()
        return forgets

    def freeze(self, rng: random.Random) -> None:
        self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def power_cut(self, rng: random.Random) -> int | None:
        forgets = self._forgets()
        self.server.kill()
        self._cut(rng, "all", "end")
        self._start()
        return forgets

    def repair(self) -> None:
        """With `always`, the server ends when it cannot write."""
        if b"PONG" not in self.server.tell("PING"):
            self.server.kill()
            self._start()

    def _forgets(self) -> int | None:
        return now_ms() - EVERYSEC_MS if self.loses else None


class Sentinel(Place):
    """A primary and a replica, watched by Sentinels. Calls wait for the replica (`?wait=1`)."""

    kinds = CLIENTS | {"failover"}
    durabilities = ("wait", "replicated")
    forks = True

    def open(self) -> None:
        self.watched = self.stack.enter_context(servers.running_sentinel(self.disk))

    @property
    def url(self) -> str:
        wait = "&wait=1" if self.durability == "wait" else ""
        return f"{self.watched.url}?timeout=3{wait}"

    @property
    def reader_url(self) -> str:
        return f"{self.watched.url}?timeout=10"

    @property
    def loses(self) -> bool:
        return self.durability == "replicated"

    def failover(self, rng: random.Random) -> int | None:
        """Kill the primary. It comes back as a replica of the promoted one."""
        watched = self.watched
        forgets = now_ms() - EVERYSEC_MS if self.loses else None
        primary, replica = watched.primary, watched.replica
        primary.kill()
        wait_until(
            lambda: b"master" in replica.tell("ROLE"), "the promoted replica", seconds=FAILOVER_S
        )
        primary.start()
        wait_until(
            lambda: b"state=online" in replica.tell("INFO", "replication"),
            "the old primary to follow the new one",
            seconds=FAILOVER_S,
        )
        watched.primary, watched.replica = replica, primary
        return forgets


class Cluster(Place):
    """Three primaries with a replica each. Calls wait for the replica (`?wait=1`)."""

    kinds = CLIENTS | {"failover"}
    durabilities = ("wait", "replicated")
    forks = True

    def open(self) -> None:
        self.cluster = self.stack.enter_context(servers.running_cluster(self.disk))

    @property
    def url(self) -> str:
        wait = "&wait=1" if self.durability == "wait" else ""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.cluster.servers)
        return f"valkey+cluster://{hosts}?timeout=3{wait}"

    @property
    def loses(self) -> bool:
        return self.durability == "replicated"

    def failover(self, rng: random.Random) -> int | None:
        """Kill the primary that has the queue. Its replica takes over, and it comes back as one."""
        forgets = now_ms() - EVERYSEC_MS if self.loses else None
        pairs = list(zip(self.cluster.primaries, self.cluster.replicas, strict=True))
        lost = max(range(3), key=lambda n: _keys(pairs[n][0]))
        primary, replica = pairs[lost]
        primary.kill()
        wait_until(
            lambda: b"master" in replica.tell("ROLE"), "the promoted replica", seconds=FAILOVER_S
        )
        primary.start()
        wait_until(
            lambda: b"state=online" in replica.tell("INFO", "replication"),
            "the old primary to follow the new one",
            seconds=FAILOVER_S,
        )
        self.cluster.primaries[lost], self.cluster.replicas[lost] = replica, primary
        return forgets


def _keys(server: servers.Server) -> int:
    """How many keys a server has."""
    reply = server.tell("DBSIZE").strip()
    return int(reply[1:]) if reply.startswith(b":") else 0
