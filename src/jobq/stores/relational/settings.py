"""The settings of a queue as MessagePack, as the queues table stores them."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from jobq.core.queues import NO_DEFAULTS, JobDefaults, Limits, RetentionData


class StoredSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What code declares for a queue, and the limits that operators set instead."""

    limits: Limits = Limits()
    version: int = 0  # of the declared limits: the highest version is in force
    changed: Limits | None = None  # set by an operator
    retention: RetentionData = RetentionData()
    dead_letters: str | None = None
    max_stalls: dict[str, int] = {}  # by task, if not the default
    frail: int = 0  # waiting jobs that have stalled; 0: claims do not look for last chances
    event_meta: tuple[str, ...] = ()
    defaults: JobDefaults = NO_DEFAULTS

    @property
    def effective(self) -> Limits:
        """The limits in force: those that an operator has set, else the declared ones."""
        return self.limits if self.changed is None else self.changed


DEFAULT = StoredSettings()
NONE = (None, msgspec.msgpack.encode(DEFAULT))
"""What the column has if all settings have their defaults: nothing, or an empty map once code has
declared the queue."""
_decode = msgspec.msgpack.Decoder(StoredSettings).decode


@lru_cache(maxsize=1024)
def unpack(data: bytes) -> StoredSettings:
    """The settings in a column. Decoded once per content, because every transaction needs them."""
    return _decode(data)


def pack(settings: StoredSettings) -> bytes:
    """The settings as the column stores them."""
    return msgspec.msgpack.encode(settings)
