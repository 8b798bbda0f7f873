"""Where events go: `kafka://host:9092/topic` or `files:///folder`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from jobq.core.event_records import EventRecord
from jobq.core.redact import redacted_url
from jobq.errors import ConfigError, JobqError


class TargetUnavailable(JobqError, ConnectionError):
    """The target took none, or not all, of the events; sending the same ones again is right and in order."""


class Rejected(NamedTuple):
    """An event that the target will never take, and why."""

    event: EventRecord
    why: str


class Target(Protocol):
    """Takes events. One call at a time per queue; calls for several queues may overlap."""

    name: str

    async def open(self) -> None:
        """Get ready. A target that is down now is not an error: events wait."""
        ...

    async def send(self, events: Sequence[EventRecord]) -> list[Rejected]:
        """Store the events for good, in order per job; returns when that is certain, with those that can never be stored.

        Raises TargetUnavailable if it cannot be known for all of them: the caller sends them again."""
        ...

    async def tick(self) -> None:
        """Called every now and then, also when there is nothing to send."""
        ...

    async def aclose(self) -> None:
        """Give back what is held; what was sent stays sent."""
        ...


_KINDS = {
    "kafka": ("jobq.relay.kafka", "KafkaTarget"),
    "files": ("jobq.relay.files", "FilesTarget"),
}


def open_target(url: str) -> Target:
    """The target at a URL, not yet opened. ConfigError says what to type."""
    scheme = urlsplit(url).scheme
    if scheme not in _KINDS:
        raise ConfigError(
            f"no target for {redacted_url(url)!r}: kafka://host:9092/topic or files:///folder"
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
