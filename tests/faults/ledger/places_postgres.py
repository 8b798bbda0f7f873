"""PostgreSQL: one server, and a primary with a synchronous replica."""

from __future__ import annotations

from scripts.postgres import FAST, Server
from tests.faults.ledger.shimming import environment
from tests.faults.ledger.topologies import OneServer, Replicated
from tests.stores.postgres.servers import ask
from tests.waiting import wait_until

FOLLOW_S = 120
"""Seconds until a new replica streams. It copies the whole database first."""
SETTINGS = {
    **FAST,
    "fsync": "on",
    "full_page_writes": "on",
    "max_wal_size": "256MB",  # checkpoints during the run, and a disk that can be small
    "checkpoint_timeout": "30s",
}


class Postgres(OneServer[Server]):
    """One server whose commits are durable."""

    durabilities = ("on", "off")
    weak = "off"
    weak_ms = 1_000  # three times wal_writer_delay (200 ms), and the rest for a loaded machine
    damages = ("all", "some")

    def make(self) -> Server:
        server = Server({**SETTINGS, "synchronous_commit": self.durability}, within=self.disk)
        self.stack.callback(server.remove)
        return server

    def start(self) -> None:
        with environment(self.server_variables):
            self.server.start()

    def works(self) -> bool:
        try:
            ask(self.server.url, "select 1")
        except Exception:
            return False
        return True

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?timeout=5"

    @property
    def reader_url(self) -> str:
        return f"{self.server.url}?timeout=10"


class PostgresPair(Replicated[Server]):
    """A primary and a synchronous replica, which is promoted when the primary is killed."""

    durabilities = ("on",)

    def open(self) -> None:
        self._settings = {**SETTINGS, "synchronous_commit": "on"}
        self.primary = Server(self._settings, within=self.disk)
        self.stack.callback(lambda: self.primary.remove())
        self.primary.start()
        self.replica = Server(self._settings, within=self.disk, copy_of=self.primary)
        self.stack.callback(lambda: self.replica.remove())
        self._synchronize()
        # Every address is known from the beginning: a new replica gets the place of the old one.
        self._ports = (self.primary.port, self.replica.port)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&timeout=5"

    def roles(self) -> tuple[Server, Server]:
        return self.primary, self.replica

    def promote(self, replica: Server) -> None:
        assert ask(replica.url, "select pg_promote(true, 30)") == [(True,)]
        ask(replica.url, "alter system set synchronous_standby_names = ''")
        ask(replica.url, "select pg_reload_conf()")

    def follow(self, old: Server, new: Server) -> None:
        """The files of the old primary are of no use: it becomes a copy of the new one."""
        self.primary = new
        old.remove()
        self.replica = Server(self._settings, within=self.disk, copy_of=new)
        self.replica.port = old.port
        self._synchronize()

    def _synchronize(self) -> None:
        """Start the replica, and let commits wait for it as soon as it streams."""
        self.replica.start()
        primary = self.primary.url
        streams = "select 1 from pg_stat_replication where state = 'streaming'"
        wait_until(lambda: ask(primary, streams), "the replica to stream", seconds=FOLLOW_S)
        ask(primary, "alter system set synchronous_standby_names = '*'")
        ask(primary, "select pg_reload_conf()")
        in_sync = "select 1 from pg_stat_replication where sync_state = 'sync'"
        wait_until(lambda: ask(primary, in_sync), "a synchronous replica", seconds=FOLLOW_S)
