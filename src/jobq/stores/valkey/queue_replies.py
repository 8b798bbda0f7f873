"""Queues in replies: their settings, and a peek at their counters."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from jobq.core.queues import JobDefaults, Limits, LimitsRecord, QueueRecord, RetentionData
from jobq.core.records import QueueName
from jobq.stores.valkey.keys import queue_of
from jobq.stores.valkey.lua_names import texts

_FIELD = texts("SETTING")
# lua/counters.lua: of 21 doubles, `waiting` is the first; `timer`, `leases` and `seen` are the
# eighth, the ninth and the twelfth.
_waiting = Struct(">d").unpack_from
_timers = Struct(">56xdd16xd").unpack_from


class QueuePeek(NamedTuple):
    """Whether a claim may find a job now; if not, in how many ms one may become claimable."""

    ready: bool
    due_in: int | None


def peek(counters: bytes | None, now: int) -> QueuePeek:
    """What the counters of a queue say about claiming from it."""
    if counters is None:
        return QueuePeek(False, None)
    (waiting,), (*timers, seen) = _waiting(counters), _timers(counters)
    times = [int(t) for t in timers if t]
    due = max(0, min(times) - now) if times else None
    if now < seen:  # the clock was set back: only the server knows what is due
        return QueuePeek(True, due)
    return QueuePeek(waiting > 0 or due == 0, due)


def queue_record(
    queue: QueueName, flat: Sequence[bytes], of_keys: Sequence[bytes] = ()
) -> QueueRecord:
    """A queue from its settings, and the limits of its keys."""
    stored = {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}
    m = {name: stored[field] for name, field in _FIELD.items() if field in stored}
    changed = m.get("changed")
    return QueueRecord(
        queue=queue,
        mode=m.get("mode"),  # type: ignore[arg-type]
        limits=LimitsRecord(
            declared=_limits(m.get("declared", "{}")),
            version=int(m.get("version", 0)),
            changed=None if changed is None else _limits(changed),
            keys=_key_limits(of_keys),
        ),
        partitions=int(m.get("partitions", 1)),
        retention=_retention(m),
        dead_letters=_dead_letters(m.get("dead")),
        max_stalls=msgspec.json.decode(m.get("max_stalls", "{}"), type=dict[str, int]),
        event_meta=tuple(name for name in m.get("event_meta", "").split("\n") if name),
        paused=m.get("paused") == "1",
        defaults=JobDefaults(
            max_retries=_number(m.get("retries", "")), ttl_ms=_number(m.get("ttl", ""))
        ),
    )


def _key_limits(flat: Sequence[bytes]) -> dict[str, Limits]:
    """Limits by key (KEY.key_limits): "\\n" and the key are the field of the limits as JSON."""
    fields = {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}
    return {key[1:]: _limits(text) for key, text in fields.items() if key.startswith("\n")}


def _retention(m: dict[str, str]) -> RetentionData:
    if "keep_completed" not in m:
        return RetentionData()
    return RetentionData(
        completed_ms=_number(m["keep_completed"]),
        failed_ms=_number(m["keep_failed"]),
        cancelled_ms=_number(m["keep_cancelled"]),
        count=_number(m["count"]),
    )


def _dead_letters(stored: str | None) -> str | None:
    """The name of the dead-letter queue, from "<its prefix>\\n<name of this queue>"."""
    if stored is None:
        return None
    prefix, _, _ = stored.partition("\n")
    return prefix and queue_of(prefix).queue


def _limits(text: str) -> Limits:
    return msgspec.json.decode(text, type=Limits)


def _number(text: str) -> int | None:
    return int(text) if text else None
