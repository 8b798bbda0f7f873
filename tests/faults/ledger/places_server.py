"""Two jq-servers on one store, each behind a network that can fail."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from tests.faults.ledger.places import CLIENTS, CLOCKS, NETWORK, SERVER, Place, Sqlite
from tests.faults.ledger.places_postgres import Postgres
from tests.faults.ledger.places_valkey import Valkey
from tests.faults.ledger.shimming import environment
from tests.server.processes import ServerProcess

DISK = frozenset({"disk full", "power cut"})
"""Faults of the machine that has the store's files."""


class JqServers(Place):
    """Two jq-servers. A kill ends one of them, or the server of their store."""

    kinds = CLIENTS | SERVER | NETWORK | CLOCKS | DISK
    behind: type[Place] = Sqlite
    durabilities = Sqlite.durabilities

    def __init__(
        self, folder: Path, durability: str | None, wanted: frozenset[str], jobs: int
    ) -> None:
        self._below = wanted & self.behind.kinds & (CLOCKS | DISK), jobs
        super().__init__(folder, durability, wanted - DISK, jobs)

    def open(self) -> None:
        below = self.folder / "below"
        below.mkdir()
        self.store = self.behind(below, self.durability, *self._below)
        self.stack.callback(self.store.close)
        self.wanted |= self.store.wanted
        self.left_out |= self.store.left_out
        if self.clocks and self.store.clocks:  # the store's, that of jq-servers, and that of others
            self.clocks = {**self.clocks, "server": self.store.clocks["server"]}
            self.clocks["jq-servers"] = self.store.clocks["clients"]
        self.servers = [
            ServerProcess(self.store.reader_url, beat_ms=500, deaf_ms=2_000) for _ in range(2)
        ]
        self._frozen: ServerProcess | None = None
        for server in self.servers:
            self.stack.callback(server.kill)
            self._start(server)
        self._ports = [self.proxied(server.port) for server in self.servers]

    def _start(self, server: ServerProcess) -> None:
        with environment(self.store.client_variables):
            server.start()

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
        server = rng.choice(self.servers)
        server.kill()
        self._start(server)
        return None

    def power_cut(self, rng: random.Random) -> int | None:
        if not self.store.shares_machine:
            return self.store.power_cut(rng)
        for server in self.servers:
            server.kill()
        forgets = self.store.power_cut(rng)
        for server in self.servers:
            self._start(server)
        return forgets

    def freeze(self, rng: random.Random) -> None:
        self._frozen = rng.choice(self.servers)
        os.kill(self._frozen.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._frozen is not None
        os.kill(self._frozen.pid, signal.SIGCONT)

    def fill(self) -> None:
        self.store.fill()

    def empty(self) -> None:
        self.store.empty()

    def repair(self) -> None:
        self.store.repair()


class JqServersOnValkey(JqServers):
    """Two jq-servers on Valkey."""

    behind = Valkey
    durabilities = Valkey.durabilities


class JqServersOnPostgres(JqServers):
    """Two jq-servers on PostgreSQL."""

    behind = Postgres
    durabilities = Postgres.durabilities
