"""Notices that somebody holds a snapshot open, and looks for jobs below the floors meanwhile.

The leader does this with its tick and publishes what it finds in `looks`. All handles read the
newest row of it every few seconds, and use floors (floors.py) while it is fresh. If the leader is
gone, they read from the beginning again: that is slow and always correct.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jobq.stores.postgres.floors import BLOCKS, Block
from jobq.stores.postgres.queries import FLOORS

if TYPE_CHECKING:
    from jobq.stores.postgres.link import Link, Reply
    from jobq.stores.postgres.memory import PostgresMemory
    from jobq.stores.postgres.tx import PostgresTx

HELD_S = 4.0
"""Seconds after which a snapshot counts as held. Calls of jobq, and queries of a web application,
end sooner. The leader looks every 5 s."""
ASK_S = 2.0
"""Seconds between two looks of a handle at what the leader has published."""
FRESH_S = 20.0
"""Seconds for which handles rely on what the leader has published: four of its ticks."""
FULL_S = 5.0
"""Seconds between two looks from the beginning, at the least."""
SHARE = 10
"""A look from the beginning is repeated after this many times its own duration. So it takes a tenth
of one core's time, however many dead entries it reads past."""
SLOW_S = 0.02
"""Seconds. Handles keep their floors until a look from the beginning is faster than this: the first
look after the end of the snapshot marks the dead entries, and later ones skip them."""
MOST_BLOCKS = 4_000
"""Blocks of places that a look reports of all queues together."""

Blocks = Mapping[int, Sequence[Block]]


class Held:
    """What the leader knows about snapshots."""

    def __init__(self) -> None:
        self.held = False
        self.known = False  # whether the looks so far tell: a new leader does not know yet
        self.blocks: list[tuple[int, int, int]] = []
        self._seen: list[tuple[float, int]] = []  # when, and the next transaction at that time
        self.next_full = 0.0
        self._cost = 0.0  # seconds, of the last look from the beginning

    def saw(self, upcoming: int, age: int | None, now: float) -> None:
        """`upcoming` is the number of the next transaction, and the oldest snapshot is `age`
        transactions older."""
        long_ago = [seen for seen in self._seen if now - seen[0] >= HELD_S]
        self.known = bool(long_ago)
        self.held = age is not None and bool(long_ago) and upcoming - age < long_ago[-1][1]
        self._seen = [*long_ago[-1:], *self._seen[len(long_ago) :], (now, upcoming)]
        if not self.held and self._cost < SLOW_S:
            self._cost = self.next_full = 0.0

    @property
    def floors(self) -> bool:
        """Whether handles should use floors."""
        return self.held or self._cost >= SLOW_S

    def full(self, now: float) -> bool:
        """Whether it is time to look from the beginning."""
        return not self.floors or now >= self.next_full

    def scanned(self, began: float, ended: float) -> None:
        """A look from the beginning took this time."""
        self._cost = ended - began
        self.next_full = ended + max(FULL_S, SHARE * self._cost)


# ── the leader ────────────────────────────────────────────────────────────────────────────────────


def find_snapshots(tx: PostgresTx) -> Held:
    """Find out whether somebody holds a snapshot."""
    held = tx.memory.held
    upcoming, age = tx.execute(FLOORS["snapshots"]).fetchone()
    held.saw(upcoming, age, time.monotonic())
    return held


def find_heads(tx: PostgresTx) -> list[tuple[int, int, int]]:
    """Where the first jobs wait, from the very beginning: queue, priority and block."""
    return list(tx.execute(FLOORS["heads"], (BLOCKS, MOST_BLOCKS)).fetchall())


def publish(tx: PostgresTx, blocks: list[tuple[int, int, int]]) -> None:
    """Tell all handles to use floors, and where to look besides."""
    tx.execute(FLOORS["publish"], (json.dumps(blocks),))
    tx.memory.floors.start(_by_queue(blocks), FRESH_S)


def sweep(tx: PostgresTx) -> None:
    """Once nobody holds a snapshot, delete what was published, so that no handle uses floors.

    A new leader leaves what the last one has published until it knows."""
    held = tx.memory.held
    if held.known and not held.floors:
        tx.execute(FLOORS["sweep"])
        tx.memory.floors.stop()


# ── all handles ───────────────────────────────────────────────────────────────────────────────────


def ask(link: Link, memory: PostgresMemory) -> Reply | None:
    """Queue the question what the leader has published, if it is time to ask."""
    now = time.monotonic()
    if now < memory.floors.next_ask:
        return None
    memory.floors.next_ask = now + ASK_S
    return link.execute(FLOORS["newest"], (FRESH_S,))


def heard(memory: PostgresMemory, reply: Reply | None) -> bool:
    """Begin or cease to use floors, as the reply says.

    Returns whether jobs wait in other blocks than it said the last time."""
    if reply is None:
        return False
    row = reply.fetchone()
    if row is None:
        memory.floors.stop()
        return False
    return memory.floors.start(_by_queue(row[0]), FRESH_S)


def _by_queue(blocks: Sequence[Sequence[int]]) -> Blocks:
    found: dict[int, list[Block]] = {}
    for qid, priority, block in blocks:
        found.setdefault(qid, []).append(Block(priority, block))
    return found
