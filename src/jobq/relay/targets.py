"""Where a relay sends events: `kafka://host:9092/topic` or `files:///folder`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from jobq.core.event_records import EventRecord
from jobq.core.marks import Mark
from jobq.core.redact import redacted_url
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
        """Store marks (`core.marks`), so that a consumer of a mark can read all events before it.

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
