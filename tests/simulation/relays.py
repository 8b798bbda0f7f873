"""Where the relays of a world ship events: a list that survives them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jobq.core.records.events import EventRecord
from jobq.core.records.marks import Mark
from jobq.relay.targets import Rejected, TargetUnavailable
from tests.simulation.world import World


class Shipped:
    """What the target has stored, in order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.events: list[EventRecord] = []
        self.marks: list[tuple[int, Mark]] = []  # with how many events were there before


class Target:
    """A target of one relay. It stores part of a page before it fails, as real ones do."""

    name = "simulated"

    def __init__(self, shipped: Shipped, process: str) -> None:
        self._shipped = shipped
        self._process = process
        self._failures = 2 if process.endswith(".0") else 0

    async def open(self) -> None:
        """Nothing to open."""

    async def send(self, events: Sequence[EventRecord]) -> list[Rejected]:
        """Store events."""
        await asyncio.sleep(0.01)
        if self._failures:
            self._failures -= 1
            self._shipped.events += events[: len(events) // 2]
            raise TargetUnavailable("simulated")
        self._shipped.events += events
        self._shipped.world.tell(self._process, f"ships {len(events)} events")
        return []

    async def mark(self, marks: Sequence[Mark]) -> None:
        """Store marks."""
        self._shipped.marks += [(len(self._shipped.events), mark) for mark in marks]

    async def tick(self) -> None:
        """Nothing to do."""

    async def aclose(self) -> None:
        """Nothing to close."""
