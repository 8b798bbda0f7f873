"""Valkey: one server, Sentinels, a Cluster."""

from __future__ import annotations

from tests.faults.ledger.shimming import environment
from tests.faults.ledger.topologies import OneServer, Replicated
from tests.stores.valkey import servers
from tests.stores.valkey.servers import Server
from tests.waiting import wait_until

EVERYSEC_MS = 2_000
"""Milliseconds that `appendfsync everysec` may lose: it syncs every second, and postpones a write
for up to two while a sync is under way. A replica that nobody waits for lags by less."""
LOAD_S = 600
"""Seconds that a server may take to start: it reads a file of millions of commands."""
DOWN_MS = 5_000
"""Milliseconds without a reply after which Sentinels take a primary for dead. On a loaded machine,
shorter pauses are common, and a failover that nobody planned may lose data: see `Sentinel.follow`.
"""
FAILOVER_S = 180
"""Seconds that a failover may take. A new replica gets a copy of everything."""


class Valkey(OneServer[Server]):
    """One server that appends every write to a file."""

    durabilities = ("always", "everysec")
    weak = "everysec"
    weak_ms = EVERYSEC_MS
    damages = ("all", "end")

    def make(self) -> Server:
        options = ("--appendonly", "yes", "--appendfsync", self.durability)
        server = Server(servers.valkey_binary(), self.disk, *options)
        self.stack.callback(server.stop)
        return server

    def start(self) -> None:
        with environment(self.server_variables):
            self.server.start(seconds=LOAD_S)

    def works(self) -> bool:
        """With `always`, the server ends when it cannot write."""
        return b"PONG" in self.server.tell("PING")

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}?timeout=3"

    @property
    def reader_url(self) -> str:
        return f"{self.server.url}?timeout=10"


class ValkeyReplicas(Replicated[Server]):
    """Primaries and replicas without files. Calls wait for the replica (`?wait=1`), or do not."""

    durabilities = ("wait", "replicated")
    forks = True
    lag_ms = EVERYSEC_MS

    @property
    def loses(self) -> bool:
        return self.durability == "replicated"

    @property
    def options(self) -> str:
        """The options of the URL for workers and producers."""
        return "?timeout=3&wait=1" if self.durability == "wait" else "?timeout=3"

    def promote(self, replica: Server) -> None:
        wait_until(
            lambda: b"master" in replica.tell("ROLE"), "the promoted replica", seconds=FAILOVER_S
        )

    def follow(self, old: Server, new: Server) -> None:
        old.start()
        self.wait_for_copy(new)

    def wait_for_copy(self, new: Server) -> None:
        """Wait until a replica has copied everything and follows."""
        wait_until(
            lambda: b"state=online" in new.tell("INFO", "replication"),
            "the old primary to follow the new one",
            seconds=FAILOVER_S,
        )


class Sentinel(ValkeyReplicas):
    """A primary and a replica, watched by Sentinels."""

    def open(self) -> None:
        self.watched = self.stack.enter_context(
            servers.running_sentinel(self.disk, down_after_ms=DOWN_MS)
        )

    @property
    def url(self) -> str:
        return f"{self.watched.url}{self.options}"

    @property
    def reader_url(self) -> str:
        return f"{self.watched.url}?timeout=10"

    def roles(self) -> tuple[Server, Server]:
        """On a loaded machine, Sentinels may have changed the roles by themselves."""
        one, two = self.watched.primary, self.watched.replica
        return (one, two) if b"master" in one.tell("ROLE") else (two, one)

    def promote(self, replica: Server) -> None:
        super().promote(replica)
        address = str(replica.port).encode()
        for sentinel in self.watched.sentinels:
            sentinel.wait_until_info(address, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "jobs")

    def follow(self, old: Server, new: Server) -> None:
        """The old primary comes back with little data or none. Until it has copied everything, no
        Sentinel may promote it: that would lose what the new primary has."""
        old.start()
        old.tell("CONFIG", "SET", "replica-priority", "0")
        old.tell("REPLICAOF", "127.0.0.1", str(new.port))  # Sentinels say so too, but later
        self.wait_for_copy(new)
        old.tell("CONFIG", "SET", "replica-priority", "100")


class Cluster(ValkeyReplicas):
    """Three primaries with a replica each."""

    def open(self) -> None:
        self.cluster = self.stack.enter_context(servers.running_cluster(self.disk))

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.cluster.servers)
        return f"valkey+cluster://{hosts}{self.options}"

    def roles(self) -> tuple[Server, Server]:
        """The pair that has the queue."""
        pairs = list(zip(self.cluster.primaries, self.cluster.replicas, strict=True))
        one, two = max(pairs, key=lambda pair: _keys(pair[0]))
        return (one, two) if b"master" in one.tell("ROLE") else (two, one)


def _keys(server: Server) -> int:
    """How many keys a server has."""
    reply = server.tell("DBSIZE").strip()
    return int(reply[1:]) if reply.startswith(b":") else 0
