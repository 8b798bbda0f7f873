"""Two jq-servers on one store, each behind a network that can fail."""

from __future__ import annotations

import os
import random
import signal

from tests.faults.ledger.places import CLIENTS, NETWORK, SERVER, Place, Sqlite
from tests.faults.ledger.places_postgres import Postgres
from tests.faults.ledger.places_valkey import Valkey
from tests.server.processes import ServerProcess


class JqServers(Place):
    """Two jq-servers. A kill ends one of them, or the server of their store."""

    kinds = CLIENTS | SERVER | NETWORK
    behind: type[Place] = Sqlite
    durabilities = Sqlite.durabilities

    def open(self) -> None:
        below = self.folder / "below"
        below.mkdir()
        self.store = self.behind(below, self.durability, frozenset(), 0)
        self.stack.callback(self.store.close)
        self.servers = [
            ServerProcess(self.store.reader_url, beat_ms=500, deaf_ms=2_000) for _ in range(2)
        ]
        self._frozen: ServerProcess | None = None
        for server in self.servers:
            self.stack.callback(server.kill)
            server.start()
        self._ports = [self.proxied(server.port) for server in self.servers]

    @property
    def url(self) -> str:
        return "grpc://" + ",".join(f"127.0.0.1:{port}" for port in self._ports) + "?timeout=5"

    @property
    def reader_url(self) -> str:
        servers = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"grpc://{servers}?timeout=10"

    @property
    def loses(self) -> bool:
        return self.store.loses

    def kill(self, rng: random.Random) -> int | None:
        if "kill server" in self.store.kinds and rng.random() < 0.3:
            return self.store.kill(rng)
        rng.choice(self.servers).restart()
        return None

    def freeze(self, rng: random.Random) -> None:
        self._frozen = rng.choice(self.servers)
        os.kill(self._frozen.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._frozen is not None
        os.kill(self._frozen.pid, signal.SIGCONT)


class JqServersOnValkey(JqServers):
    """Two jq-servers on Valkey."""

    behind = Valkey
    durabilities = Valkey.durabilities


class JqServersOnPostgres(JqServers):
    """Two jq-servers on PostgreSQL."""

    behind = Postgres
    durabilities = Postgres.durabilities
