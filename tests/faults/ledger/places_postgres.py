"""PostgreSQL: one server, and a primary with a synchronous replica."""

from __future__ import annotations

import random

from scripts.postgres import FAST, Server
from tests.faults.ledger.facts import now_ms
from tests.faults.ledger.places import CLIENTS, CLOCKS, NETWORK, SERVER, Place
from tests.faults.ledger.shimming import environment
from tests.stores.postgres.servers import ask
from tests.waiting import wait_until

OFF_MS = 1_000
"""Milliseconds that `synchronous_commit = off` may lose: three times `wal_writer_delay` (200 ms) by
PostgreSQL's documentation, and the rest for a loaded machine."""
SETTINGS = {
    **FAST,
    "fsync": "on",
    "full_page_writes": "on",
    "max_wal_size": "256MB",  # checkpoints during the run, and a disk that can be small
    "checkpoint_timeout": "30s",
}


class Postgres(Place):
    """One server whose commits are durable."""

    kinds = CLIENTS | SERVER | NETWORK | CLOCKS | {"disk full", "power cut"}
    durabilities = ("on", "off")

    def open(self) -> None:
        settings = {**SETTINGS, "synchronous_commit": self.durability}
        self.server = Server(settings, within=self.disk)
        self.stack.callback(self.server.remove)
        self._start()
        self._port = self.proxied(self.server.port)

    def _start(self) -> None:
        with environment(self.server_variables):
            self.server.start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres?timeout=5"

    @property
    def reader_url(self) -> str:
        return f"{self.server.url}?timeout=10"

    @property
    def loses(self) -> bool:
        return self.durability == "off"

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
        self._cut(rng, "all", "some")
        self._start()
        return forgets

    def repair(self) -> None:
        """A server that cannot write its log ends."""
        try:
            ask(self.server.url, "select 1")
        except Exception:
            self.server.kill()
            self._start()

    def _forgets(self) -> int | None:
        return now_ms() - OFF_MS if self.loses else None


class PostgresPair(Place):
    """A primary and a synchronous replica, which is promoted when the primary is killed."""

    kinds = CLIENTS | {"failover"}
    durabilities = ("on",)

    def open(self) -> None:
        self._settings = {**SETTINGS, "synchronous_commit": "on"}
        self.primary = Server(self._settings, within=self.disk)
        self.stack.callback(lambda: self.primary.remove())
        self.primary.start()
        self.replica = Server(self._settings, within=self.disk, copy_of=self.primary)
        self.stack.callback(lambda: self.replica.remove())
        self._follow()
        # Every address is known from the beginning: a new replica gets the place of the old one.
        self._ports = (self.primary.port, self.replica.port)

    def _follow(self) -> None:
        self.replica.start()
        streams = "select 1 from pg_stat_replication where state = 'streaming'"
        wait_until(lambda: ask(self.primary.url, streams), "the replica to stream", seconds=60)
        ask(self.primary.url, "alter system set synchronous_standby_names = '*'")
        ask(self.primary.url, "select pg_reload_conf()")
        in_sync = "select 1 from pg_stat_replication where sync_state = 'sync'"
        wait_until(lambda: ask(self.primary.url, in_sync), "a synchronous replica", seconds=60)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&timeout=5"

    def failover(self, rng: random.Random) -> int | None:
        """Kill the primary, promote its replica, and make a new replica of that."""
        old = self.primary
        old.kill()
        assert ask(self.replica.url, "select pg_promote(true, 30)") == [(True,)]
        ask(self.replica.url, "alter system set synchronous_standby_names = ''")
        ask(self.replica.url, "select pg_reload_conf()")
        self.primary = self.replica
        old.remove()
        self.replica = Server(self._settings, within=self.disk, copy_of=self.primary)
        self.replica.port = old.port
        self._follow()
        return None
