"""Options and failures of jobs as MessagePack, as the jobs table stores them."""

from __future__ import annotations

import msgspec

from jobq.core import meta
from jobq.core.call_options import NO_OPTIONS, CallOptions
from jobq.core.records import (
    ChildPolicy,
    Deferred,
    Failure,
    JobSpec,
    RetryData,
    UniqueMode,
    UniqueSpec,
)
from jobq.core.unknown import PutOff
from jobq.core.verdicts import unreadable


class StoredOptions(msgspec.Struct, array_like=True, omit_defaults=True, kw_only=True):
    """The options of a job that are seldom set. A job with defaults only stores NULL."""

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
    policy: ChildPolicy = "fail"
    schedule: str | None = None
    origin: str | None = None
    signal: str | None = None  # the signal that the blocked job waits for
    seen: int = 0  # signals of that name that its handler has received
    actor: str | None = None  # who asked to cancel it while it was active
    meta: dict[str, str] | None = None
    put_off: PutOff | None = None  # set if workers that claimed the job have deferred it
    deferred: Deferred | None = None  # how they did last; None: its arguments are new since


DEFAULT = StoredOptions()
BROKEN = StoredOptions()
"""Stands for options that cannot be read."""
_encode = msgspec.msgpack.Encoder().encode
_decode_options = msgspec.msgpack.Decoder(StoredOptions).decode
_decode_failure = msgspec.msgpack.Decoder(Failure).decode


def options_of(spec: JobSpec) -> StoredOptions:
    """The options of a spec as they are stored."""
    unique = spec.unique
    return StoredOptions(
        lifo=spec.lifo,
        delay_ms=spec.delay_ms,
        at_ms=spec.at_ms,
        ttl_ms=spec.ttl_ms,
        result_ttl_ms=spec.result_ttl_ms,
        retry=spec.retry,
        timeout_ms=spec.timeout_ms,
        max_stalls=spec.max_stalls,
        cost=spec.cost,
        lock=unique.lock if unique else None,
        lock_mode=unique.mode if unique else None,
        lock_ttl_ms=unique.ttl_ms if unique else None,
        policy=spec.on_child_failure,
        schedule=spec.schedule,
        origin=spec.origin,
        meta=spec.meta,
    )


def call_options(options: StoredOptions) -> CallOptions:
    """The options as readers see them."""
    if options is DEFAULT:
        return NO_OPTIONS
    unique = (
        None
        if options.lock is None
        else UniqueSpec(
            lock=options.lock, mode=options.lock_mode or "simple", ttl_ms=options.lock_ttl_ms
        )
    )
    return CallOptions(
        lifo=options.lifo,
        delay_ms=options.delay_ms,
        at_ms=options.at_ms,
        ttl_ms=options.ttl_ms,
        result_ttl_ms=options.result_ttl_ms,
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        max_stalls=options.max_stalls,
        cost=options.cost,
        unique=unique,
        on_child_failure=options.policy,
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
        return unreadable(attempt=0, worker=None, now_ms=0)
