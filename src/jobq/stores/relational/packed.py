"""Options, failures and queue settings as MessagePack, as the tables store them."""

from __future__ import annotations

from functools import lru_cache
from typing import TypedDict, Unpack

import msgspec

from jobq.core.records.jobs import (
    NO_OPTIONS,
    CallOptions,
    ChildPolicy,
    Deferred,
    Failure,
    JobSpec,
    RetryData,
    UniqueMode,
    UniqueSpec,
    call_options,
)
from jobq.core.records.queues import NO_DEFAULTS, JobDefaults, Limits, RetentionData
from jobq.core.rules.deferral import PutOff
from jobq.core.rules.outcomes import unreadable_failure
from jobq.core.values import meta


class StoreFields(TypedDict, total=False):
    """What the store itself remembers of a job in the same column, beside its options."""

    signal: str | None  # the signal that the blocked job waits for
    seen: int  # signals of that name that its handler has received
    actor: str | None  # who asked to cancel it while it was active
    put_off: PutOff | None  # set if workers that claimed the job have deferred it
    deferred: Deferred | None  # how they did last; None: its arguments are new since


STORE_FIELDS_AT = {"signal": 15, "seen": 16, "actor": 17, "put_off": 19, "deferred": 20}
"""The positions of these fields in the array. The others are in core/rules/options.py
(`packed`)."""


class StoredOptions(msgspec.Struct, array_like=True, kw_only=True):
    """The column `options`: the options of a job that are seldom set, and the fields of the store.

    A job with defaults only stores NULL.
    """

    # begin scripts/options.py: packed
    lifo: bool = False
    delay_ms: int = 0
    at_ms: int | None = None
    ttl_ms: int | None = None
    result_ttl_ms: int | None = None
    retry: RetryData | None = None
    timeout_ms: int | None = None
    max_stalls: int | None = None
    cost: int = 1
    lock: str | None = None
    lock_mode: UniqueMode | None = None
    lock_ttl_ms: int | None = None
    on_child_failure: ChildPolicy = "fail"
    schedule: str | None = None
    origin: str | None = None
    signal: str | None = None
    seen: int = 0
    actor: str | None = None
    meta: dict[str, str] | None = None
    put_off: PutOff | None = None
    deferred: Deferred | None = None
    # end scripts/options.py

    @property
    def unique(self) -> UniqueSpec | None:
        """The unique lock, which is stored in three parts."""
        if self.lock is None:
            return None
        return UniqueSpec(lock=self.lock, mode=self.lock_mode or "simple", ttl_ms=self.lock_ttl_ms)


DEFAULT = StoredOptions()
BROKEN = StoredOptions()
"""Stands for options that cannot be read."""
_encode = msgspec.msgpack.Encoder().encode
_decode_options = msgspec.msgpack.Decoder(StoredOptions).decode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode


def has_defaults(spec: JobSpec) -> bool:
    """Whether the column of a new job is NULL.

    Written out, as in `core.rules.new_jobs.has_no_options`: this runs for every job.
    """
    return (
        # begin scripts/options.py: is_null
        spec.lifo is False
        and spec.delay_ms is _ZERO
        and spec.at_ms is None
        and spec.ttl_ms is None
        and spec.result_ttl_ms is None
        and spec.retry is None
        and spec.timeout_ms is None
        and spec.max_stalls is None
        and spec.cost is _ONE
        and spec.unique is None
        and spec.schedule is None
        and spec.origin is None
        and spec.meta is None
        and spec.on_child_failure == "fail"
        # end scripts/options.py
    )


_ZERO, _ONE = 0, 1


def options_of(spec: JobSpec) -> StoredOptions:
    """The options of a spec as they are stored."""
    unique = spec.unique
    return StoredOptions(
        # begin scripts/options.py: pack
        lifo=spec.lifo,
        delay_ms=spec.delay_ms,
        at_ms=spec.at_ms,
        ttl_ms=spec.ttl_ms,
        result_ttl_ms=spec.result_ttl_ms,
        retry=spec.retry,
        timeout_ms=spec.timeout_ms,
        max_stalls=spec.max_stalls,
        cost=spec.cost,
        on_child_failure=spec.on_child_failure,
        schedule=spec.schedule,
        origin=spec.origin,
        meta=spec.meta,
        # end scripts/options.py
        lock=unique.lock if unique else None,
        lock_mode=unique.mode if unique else None,
        lock_ttl_ms=unique.ttl_ms if unique else None,
    )


def pack_options(options: StoredOptions) -> bytes | None:
    """Options as the column stores them; None if all have their defaults."""
    return None if options == DEFAULT else _encode(options)


def unpack_options(data: bytes | None) -> StoredOptions:
    """The options in a column. BROKEN if they cannot be read: the job is claimed as unreadable."""
    if data is None:
        return DEFAULT
    try:
        return _decode_options(data)
    except (msgspec.MsgspecError, TypeError):
        return BROKEN


def with_store_fields(data: bytes | None, **fields: Unpack[StoreFields]) -> bytes | None:
    """The column with other values of these fields."""
    return pack_options(msgspec.structs.replace(unpack_options(data), **fields))


def given_options(options: StoredOptions) -> CallOptions:
    """The options as readers see them."""
    return NO_OPTIONS if options is DEFAULT else call_options(options)


def event_meta(packed: bytes | None, names: tuple[str, ...]) -> dict[str, str] | None:
    """The part of a job's meta that its events carry: the names that the queue allows."""
    return None if packed is None else meta.event_meta(unpack_options(packed).meta, names)


def pack_failure(failure: Failure) -> bytes:
    """A failure as the column stores it."""
    return _encode(failure)


def unpack_failure(data: bytes | None) -> Failure | None:
    """The failure in a column. One that cannot be read is replaced by an `Unreadable` failure."""
    if data is None:
        return None
    try:
        return _decode_failure(data)
    except (msgspec.MsgspecError, TypeError):
        return unreadable_failure(attempt=0, worker=None, now_ms=0)


# The settings of a queue as MessagePack, as the queues table stores them.


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


DEFAULT_SETTINGS = StoredSettings()
NO_SETTINGS = (None, msgspec.msgpack.encode(DEFAULT_SETTINGS))
"""What the column has if all settings have their defaults: nothing, or an empty map once code has
declared the queue."""
_decode = msgspec.msgpack.Decoder(StoredSettings).decode


@lru_cache(maxsize=1024)
def unpack_settings(data: bytes) -> StoredSettings:
    """The settings in a column. Decoded once per content, because every transaction needs them."""
    return _decode(data)


def pack_settings(settings: StoredSettings) -> bytes:
    """The settings as the column stores them."""
    return msgspec.msgpack.encode(settings)
