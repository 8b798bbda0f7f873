"""What is stored with a queue, packed into one column."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from jobq.core.queues import Limits, RetentionData


class StoredSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Declared by code (limits with their version, retention, dead letters, event_meta) or changed
    at run time (`changed`)."""

    limits: Limits = Limits()
    version: int = 0
    changed: Limits | None = None
    retention: RetentionData = RetentionData()
    dead_letters: str | None = None
    max_stalls: dict[str, int] = {}  # by task name, where it is not the default
    frail: int = 0  # waiting jobs that have stalled: while there are none, claims need not look for last last_chances
    event_meta: tuple[str, ...] = ()

    @property
    def effective(self) -> Limits:
        """The limits in force."""
        return self.limits if self.changed is None else self.changed


DEFAULT = StoredSettings()
_decode = msgspec.msgpack.Decoder(StoredSettings).decode


@lru_cache(maxsize=1024)
def _unpack(data: bytes) -> StoredSettings:
    return _decode(data)


def unpack(data: bytes | None) -> StoredSettings:
    """Decoded once per content: every transaction asks."""
    return DEFAULT if data is None else _unpack(data)


def pack(settings: StoredSettings) -> bytes:
    """The other way."""
    return msgspec.msgpack.encode(settings)
