"""Events that a target will never take (too large for its broker, say): written down with the reason, then passed over."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from jobq.core import wire
from jobq.relay.targets import Rejected


class RejectedEvents:
    """A file of JSON lines, {"at_ms", "target", "why", "event"}. What is in it can be sent by hand once the reason is gone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def keep(self, target: str, refused: Sequence[Rejected]) -> None:
        """Append and fsync; an OSError means that nothing may be passed over."""
        await asyncio.to_thread(self._write, target, refused)

    def _write(self, target: str, refused: Sequence[Rejected]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        now = int(time.time() * 1000)
        with self.path.open("ab") as file:
            for event, why in refused:
                line = {
                    "at_ms": now,
                    "target": target,
                    "why": why,
                    "event": msgspec.Raw(wire.encode(event)),
                }
                file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
