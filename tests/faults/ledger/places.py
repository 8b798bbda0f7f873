"""The stores that a run can use, and what can be done to their servers."""

from __future__ import annotations

import os
import random
import subprocess
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.faults.ledger import plan
from tests.faults.ledger.facts import now_ms
from tests.faults.ledger.shimming import Clock, Damage, Loss, Missing, Power, together
from tests.stores.postgres.proxy import Proxy, proxy_to

CLIENTS = frozenset(
    {"kill worker", "kill producer", "freeze worker", "freeze producer", "terminate worker"}
)
"""Faults of the processes that use a store. Every store has them."""
NETWORK = frozenset(kind for kind in plan.OTHERS if kind.startswith("network"))
CLOCKS = frozenset({"clock forward", "clock back"})
SERVER = frozenset({"kill server", "freeze server"})
DISK_BASE = 768
"""Megabytes of a disk that can be filled, apart from what jobs need."""
DISK_PER_JOB = 3
"""Kilobytes of it per job."""


class Place(ABC):
    """A store with its servers, which run until `close`."""

    kinds: frozenset[str] = CLIENTS
    """The faults that are possible here."""
    durabilities: tuple[str, ...] = ()
    """What DURABILITY may be. The first one is the default."""
    forks = False
    """After a failover, readers may have seen calls that were never acknowledged and are undone."""
    shares_machine = False
    """Clients write the store's files, so a power cut ends them too."""

    def __init__(
        self, folder: Path, durability: str | None, wanted: frozenset[str], jobs: int
    ) -> None:
        """`wanted` are the kinds of faults that the run may have."""
        self.folder = folder
        self.durability = durability or self.durabilities[0]
        self.left_out: dict[str, str] = {}
        """Faults that this machine cannot have, and why."""
        self.wanted = wanted & self.kinds
        self.stack = ExitStack()
        self.proxies: list[Proxy] = []
        self.power: Power | None = None
        self.clocks: dict[str, Clock] = {}
        self.disk = self._disk(jobs)
        self._set_shims()
        try:
            self.open()
        except BaseException:
            self.stack.close()
            raise

    @abstractmethod
    def open(self) -> None:
        """Start the servers."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for workers and producers."""

    @property
    def reader_url(self) -> str:
        """The URL for the reader of the event log."""
        return self.url

    @property
    def loses(self) -> bool:
        """Whether the durability class allows to lose acknowledged calls."""
        return False

    def may_undo(self, kind: str) -> bool:
        """Whether a fault of this kind may undo what readers have seen."""
        if kind == "failover":
            return self.forks or self.loses
        return self.loses and kind in ("kill server", "power cut")

    def close(self) -> None:
        """Stop the servers."""
        self.stack.close()

    def _disk(self, jobs: int) -> Path:
        """The folder of the store's files. If the disk is to be filled, a small one."""
        folder = self.folder / "disk"
        folder.mkdir()
        folder.chmod(0o777)
        if "disk full" in self.wanted:
            size = DISK_BASE + jobs * DISK_PER_JOB // 1024
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=777", "tmpfs", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
            if done.returncode != 0:
                self._leave_out(
                    f"a small disk cannot be mounted: {done.stderr.strip()}", "disk full"
                )
            else:
                self.stack.callback(
                    subprocess.run, ["umount", "--lazy", str(folder)], check=True, timeout=20
                )
        return folder

    def _set_shims(self) -> None:
        if "power cut" in self.wanted:
            try:
                self.power = Power(self.disk, self.folder)
            except Missing as missing:
                self._leave_out(str(missing), "power cut")
        if self.wanted & CLOCKS:
            try:
                self.clocks = {name: Clock(name, self.folder) for name in ("server", "clients")}
            except Missing as missing:
                self._leave_out(str(missing), *CLOCKS)

    def _leave_out(self, why: str, *kinds: str) -> None:
        self.wanted -= set(kinds)
        self.left_out |= dict.fromkeys(kinds, why)

    @property
    def server_variables(self) -> dict[str, str]:
        """The environment of servers: their shims."""
        return together(
            self.power.variables if self.power else {},
            self.clocks["server"].variables if self.clocks else {},
        )

    @property
    def client_variables(self) -> dict[str, str]:
        """The environment of workers and producers."""
        return together(
            self.power.variables if self.power and self.shares_machine else {},
            self.clocks["clients"].variables if self.clocks else {},
        )

    def proxied(self, port: int) -> int:
        """A port that leads to this one, through a network that can fail."""
        proxy = self.stack.enter_context(proxy_to(port))
        self.proxies.append(proxy)
        return proxy.port

    # ── faults ────────────────────────────────────────────────────────────────────────────────────

    def kill(self, rng: random.Random) -> int | None:
        """kill -9 of a server, and a new start.

        Returns since when acknowledged calls may be lost (ms), or None: this one loses nothing."""
        raise NotImplementedError

    def freeze(self, rng: random.Random) -> None:
        """Stop a server from running."""
        raise NotImplementedError

    def thaw(self) -> None:
        """Let it go on."""
        raise NotImplementedError

    def failover(self, rng: random.Random) -> int | None:
        """Lose the primary and promote a replica. Returns what `kill` does."""
        raise NotImplementedError

    def power_cut(self, rng: random.Random) -> int | None:
        """Kill everything that writes the files, and take unsynced writes back.

        Returns what `kill` does. The caller has killed the clients if they share the machine."""
        raise NotImplementedError

    def repair(self) -> None:
        """Start servers that a full disk has ended."""

    def fill(self) -> None:
        """Fill the disk."""
        with suppress(OSError), (self.disk / "filler").open("wb") as file:
            at, step = 0, 64 << 20
            while step >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), at, step)
                    at += step
                except OSError:
                    step //= 2

    def empty(self) -> None:
        """Make room again."""
        (self.disk / "filler").unlink(missing_ok=True)

    def _cut(self, rng: random.Random, *damages: Damage) -> list[Loss]:
        assert self.power is not None
        return self.power.cut(rng.choice(damages), rng)


class Sqlite(Place):
    """A file that workers and producers write themselves."""

    kinds = CLIENTS | CLOCKS | {"disk full", "power cut"}
    durabilities = ("full", "normal")
    shares_machine = True

    def open(self) -> None:
        self.file = self.disk / "jobs.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}?synchronous={self.durability}"

    @property
    def loses(self) -> bool:
        return self.durability == "normal"

    def power_cut(self, rng: random.Random) -> int | None:
        before = now_ms()
        losses = self._cut(rng, "all", "some")
        if self.durability == "full":
            return None
        synced = [loss.synced_ms for loss in losses if loss.path.name == "jobs.db-wal"]
        return min(synced, default=before)
