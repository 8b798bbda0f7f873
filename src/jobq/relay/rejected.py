"""The file of events that a target rejects for good, e.g. because they are too large.

The relay writes an event and the reason to this file before it skips the event."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from jobq.core import wire
from jobq.relay.targets import Rejected


class Rejects(Protocol):
    """Where rejected events are kept."""

    @property
    def where(self) -> str:
        """The place, for log lines."""
        ...

    async def keep(self, target: str, rejected: Sequence[Rejected]) -> None:
        """Store the events durably. After an OSError the relay must not skip them."""
        ...


class RejectedEvents:
    """A file of JSON lines with the keys `at_ms`, `target`, `why` and `event`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)

    async def keep(self, target: str, rejected: Sequence[Rejected]) -> None:
        """Append the events and fsync. After an OSError the relay must not skip them."""
        await asyncio.to_thread(self._write, target, rejected)

    def _write(self, target: str, rejected: Sequence[Rejected]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        now = int(time.time() * 1000)
        with self.path.open("ab") as file:
            for event, why in rejected:
                line = {
                    "at_ms": now,
                    "target": target,
                    "why": why,
                    "event": msgspec.Raw(wire.encode(event)),
                }
                file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
