"""What stores with servers of their own share: one server, and a primary with a replica."""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import ClassVar, Generic, Protocol, TypeVar

from tests.faults.ledger.facts import now_ms
from tests.faults.ledger.places import CLIENTS, CLOCKS, NETWORK, SERVER, Place
from tests.faults.ledger.shimming import Damage


class Server(Protocol):
    """A server process, which starts again on the same port and files."""

    port: int

    def kill(self) -> None:
        """kill -9."""

    def freeze(self) -> None:
        """SIGSTOP."""

    def thaw(self) -> None:
        """SIGCONT."""


S = TypeVar("S", bound=Server)


class OneServer(Place, Generic[S]):
    """One server, whose files are on the disk, behind a network that can fail."""

    kinds = CLIENTS | SERVER | NETWORK | CLOCKS | {"disk full", "power cut"}
    weak: ClassVar[str]
    """The durability that may lose the last moments."""
    weak_ms: ClassVar[int]
    """How long these moments are."""
    damages: ClassVar[tuple[Damage, ...]]
    """What a power cut may do to the files."""

    def open(self) -> None:
        self.server = self.make()
        self.start()
        self.port = self.proxied(self.server.port)

    @abstractmethod
    def make(self) -> S:
        """The server, not started yet. It ends with the place."""

    @abstractmethod
    def start(self) -> None:
        """Start the server, with its shims, and wait until it is ready."""

    @abstractmethod
    def works(self) -> bool:
        """Whether the server replies."""

    @property
    def loses(self) -> bool:
        return self.durability == self.weak

    def kill(self, rng: random.Random) -> int | None:
        return self._restart(rng, ())

    def power_cut(self, rng: random.Random) -> int | None:
        return self._restart(rng, self.damages)

    def _restart(self, rng: random.Random, damages: tuple[Damage, ...]) -> int | None:
        forgets = now_ms() - self.weak_ms if self.loses else None
        self.server.kill()
        if damages:
            self._cut(rng, *damages)
        self.start()
        return forgets

    def freeze(self, rng: random.Random) -> None:
        self.server.freeze()

    def thaw(self) -> None:
        self.server.thaw()

    def repair(self) -> None:
        """A server that cannot write may end."""
        if not self.works():
            self.server.kill()
            self.start()


class Replicated(Place, Generic[S]):
    """Primaries with a replica each. A failover kills a primary, whose replica takes over."""

    kinds = CLIENTS | {"failover"}
    lag_ms: ClassVar[int]
    """Milliseconds of acknowledged calls that a replica may lack, if calls do not wait for it."""

    @abstractmethod
    def roles(self) -> tuple[S, S]:
        """A primary, and its replica."""

    @abstractmethod
    def promote(self, replica: S) -> None:
        """Wait until the replica is the primary."""

    @abstractmethod
    def follow(self, old: S, new: S) -> None:
        """Start the old primary again, as a replica of the new one, and wait until it follows."""

    def failover(self, rng: random.Random) -> int | None:
        forgets = now_ms() - self.lag_ms if self.loses else None
        primary, replica = self.roles()
        primary.kill()
        self.promote(replica)
        self.follow(primary, replica)
        return forgets
