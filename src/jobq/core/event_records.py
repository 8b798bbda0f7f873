"""Events as readers receive them from a store."""

from __future__ import annotations

from typing import Literal

import msgspec

from jobq.core.records import QueueName
from jobq.core.states import Kind, QueueKind, State


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One transition of a job, or one operation on a queue, with all its data.

    The events of one job are in order. `kind="gap"` has no job: events before it were dropped
    unread. An operation on a queue (`QueueKind`) has no job either, and is in shard 0.

    `number` counts the events of one shard of the queue's log, from 1 without gaps, and continues
    after `obliterate`. Two ids under one number are a fork: the store lost its last writes and
    assigned the number again. 0 is an event from before events were numbered. `shard` is the
    partition of a partitioned queue, else 0. `actor` is who gave the command.
    """

    id: str
    number: int
    shard: int
    position: str
    kind: Kind | QueueKind | Literal["gap"]
    at_ms: int
    queue: QueueName
    job: str
    life: int
    name: str
    key: str | None
    attempt: int
    failures: int
    stalls: int
    state: State | None
    previous: State | None
    worker: str | None
    actor: str | None
    reason: str | None
    error: str | None
    fingerprint: str | None
    created_ms: int
    due_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    meta: dict[str, str] | None = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a queue's log. `position` continues after it, even if `events` is empty."""

    events: tuple[EventRecord, ...]
    position: str
