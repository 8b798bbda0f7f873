"""Where a relay sends events, `kafka://…` or `files://…`, and the file of what they reject."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from jobq.core.records import wire
from jobq.core.records.events import EventRecord
from jobq.core.records.marks import Mark
from jobq.core.values.printable import redacted_url
from jobq.errors import ConfigError, JobqError


class TargetUnavailable(JobqError, ConnectionError):
    """The target may not have stored all events. Send the same events again, in order."""


class Rejected(NamedTuple):
    """An event that the target will never accept, and why."""

    event: EventRecord
    why: str


class Target(Protocol):
    """Stores events. `send` calls of one queue follow each other; those of several may overlap."""

    name: str

    async def open(self) -> None:
        """Prepare for `send`. A target that is down is not an error: events wait for it."""
        ...

    async def send(self, events: Sequence[EventRecord]) -> list[Rejected]:
        """Store the events durably, in order per job. Returns those it rejects for good.

        Raises TargetUnavailable unless every other event is known to be stored. The caller then
        sends all of them again."""
        ...

    async def mark(self, marks: Sequence[Mark]) -> None:
        """Store marks (`core.records.marks`), so that a consumer of a mark can read all events
        before it.

        Raises TargetUnavailable unless they are stored, or will be without another call."""
        ...

    async def tick(self) -> None:
        """Do periodic work. Called in every pass, also when there is nothing to send."""
        ...

    async def aclose(self) -> None:
        """Release resources. Events that were sent stay sent."""
        ...


_KINDS = {
    "kafka": ("jobq.relay.kafka", "KafkaTarget"),
    "files": ("jobq.relay.files", "FilesTarget"),
}


def open_target(url: str) -> Target:
    """Create the target for a URL, without opening it. Raises ConfigError for a bad URL."""
    scheme = urlsplit(url).scheme
    if scheme not in _KINDS:
        raise ConfigError(
            f"unknown target {redacted_url(url)!r}: use kafka://host:9092/topic or files:///folder"
        )
    module, name = _KINDS[scheme]
    try:
        kind = getattr(import_module(module), name)
    except ImportError as e:
        raise ConfigError(
            f"{scheme}:// needs a driver that is not installed: pip install 'jobq[{scheme}]'"
        ) from e
    target: Target = kind(url)
    return target


# The file of events that a target rejects for good, e.g. because they are too large.
#
# The relay writes an event and the reason to this file before it skips the event.


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
