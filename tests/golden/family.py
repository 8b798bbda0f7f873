"""A family of jobs, events and schedules that sets every field at least once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobq.core.records.commands import Cancel, SendSignal
from jobq.core.records.events import EventPage, EventRecord
from jobq.core.records.jobs import Edge, JobKey, JobSpec, QueueName, RetryData, UniqueSpec
from jobq.core.records.queues import JobDefaults, QueueConfig, RetentionData, ScheduleSpec
from jobq.core.records.states import Kind, QueueKind, State
from jobq.core.rules.options import FIELDS
from jobq.stores.base import Store
from jobq_conformance.kit import (
    BEGINNING,
    DAY,
    HOUR,
    LEASE,
    MINUTE,
    Desk,
    FakeClock,
    block,
    complete,
    defer,
    fail,
    retry,
    snooze,
)
from jobq_conformance.spec_values import example

QUEUE = QueueName("acme", "work")
KEYED = QueueName("acme", "keyed")
DEAD = "dead"
AT = BEGINNING + DAY

OPTIONS: dict[str, Any] = {
    "codec": "msgpack",
    "given_id": True,
    "priority": 7,
    "lifo": True,
    "delay_ms": MINUTE,
    "at_ms": AT,
    "ttl_ms": HOUR,
    "result_ttl_ms": DAY,
    "retry": RetryData(max_retries=7, base_ms=500, factor=1.5, jitter=0.25, delays_ms=(1, 20)),
    "timeout_ms": 1500,
    "max_stalls": 9,
    "key": "customer",
    "cost": 3,
    "unique": UniqueSpec(lock="abc", mode="throttle", ttl_ms=HOUR),
    "after": (Edge(JobKey(QUEUE, "plain"), data=False),),
    "on_child_failure": "continue",
    "schedule": "nightly",
    "origin": "billing/3",
    "meta": {"trace": "1-2-3", "höhe": "7"},
}
OPTIONS |= {
    option.field: example(option)
    for option in FIELDS
    if option.field not in OPTIONS and option.field != "reserved"
}
"""A value other than the default for every option of a spec."""


def specs() -> Iterator[JobSpec]:
    """A job without options, one per option, and one that has all of them."""
    yield spec("plain")
    yield spec("long", name="t" * 250, payload=b"x" * 300)
    for name, value in OPTIONS.items():
        yield spec(name, **{name: value})
    yield spec("simple", unique=UniqueSpec(lock="def"))
    yield spec("retries", retry=RetryData(max_retries=0))
    every = {name: value for name, value in OPTIONS.items() if name not in ("delay_ms", "key")}
    yield spec("every", **{**every, "unique": UniqueSpec(lock="ghi", mode="debounce")})
    yield spec("keyed", queue=KEYED, **{**OPTIONS, "at_ms": None, "after": ()})


def spec(id: str, **fields: Any) -> JobSpec:
    """A job of the family. One with a key is in a queue of its own."""
    queue = KEYED if "key" in fields else QUEUE
    return JobSpec(
        **{"queue": queue, "id": id, "name": "charge", "payload": b'[["a"],{}]', **fields}
    )


def events() -> Iterator[EventRecord]:
    """An event of every kind, in turn with few and with all fields."""
    kinds = (*Kind, *QueueKind, "gap")
    for n, kind in enumerate(kinds):
        every = n % 2 == 0
        yield EventRecord(
            id=f"log-{n}-0-run",
            number=n + 1,
            shard=n % 3,
            position=str(n),
            kind=kind,
            at_ms=BEGINNING + n,
            queue=QUEUE,
            job=f"job-{n}" if isinstance(kind, Kind) else "",
            life=n % 4,
            name="charge",
            key="customer" if every else None,
            attempt=n,
            failures=n % 5,
            stalls=n % 2,
            state=State.ACTIVE if every else None,
            previous=State.WAITING if every else None,
            worker="w1" if every else None,
            actor="ann" if every else None,
            reason="why" if every else None,
            error="ValueError: ü" if every else None,
            fingerprint="f00d" if every else None,
            created_ms=BEGINNING,
            due_ms=BEGINNING + 1 if every else None,
            started_ms=BEGINNING + 2 if every else None,
            finished_ms=BEGINNING + 3 if every else None,
            meta={"trace": "1"} if every else None,
        )


def page() -> EventPage:
    """All events as a store returns them."""
    return EventPage(events=tuple(events()), position="7")


def schedules() -> Iterator[ScheduleSpec]:
    """Schedules whose templates have every option that a schedule allows."""
    yield ScheduleSpec(queue=QUEUE, id="plain", template=spec("plain"), every_ms=HOUR)
    out = ("given_id", "delay_ms", "at_ms", "after", "schedule", "origin", "key")
    every = {name: value for name, value in OPTIONS.items() if name not in out}
    yield ScheduleSpec(
        queue=QUEUE,
        id="every",
        template=spec("every", **every),
        cron="0 9 * * 1-5",
        tz="Europe/Berlin",
        after_complete=True,
        start_ms=BEGINNING,
        end_ms=BEGINNING + 30 * DAY,
        limit=12,
        catch_up="all",
    )


async def play(store: Store, clock: FakeClock) -> None:
    """Store the family, and let jobs meet the outcomes that store something with them."""
    config = QueueConfig(
        limits_version=1,
        dead_letters=DEAD,
        event_meta=("trace",),
        retention=RetentionData(completed_ms=DAY, failed_ms=DAY, cancelled_ms=DAY, count=1000),
        defaults=JobDefaults(max_retries=2, ttl_ms=DAY),
        max_stalls={"charge": 4},
    )
    q, beside = Desk(store, QUEUE, clock), Desk(store, QueueName("acme", "runs"), clock)
    await store.declare(QUEUE, config)
    for each in specs():
        await store.put([each])
    for schedule in schedules():
        await store.put_schedule(schedule, next_ms=AT, actor="ann")
    for ending in (
        complete,
        lambda lease: retry(lease, MINUTE),
        fail,
        lambda lease: snooze(lease, MINUTE, b"saved"),
        lambda lease: defer(lease, MINUTE, "unfit", "too few"),
        lambda lease: block(lease, signal="approved", timeout_ms=HOUR, saved=b"so far"),
    ):
        await beside.put_one(f"run-{clock() - BEGINNING}", meta={"trace": "9"})
        await beside.settle(ending(await beside.take()))
        clock.advance(1)
    await beside.put_one("asked")
    lease = await beside.take()
    await store.alter([Cancel(job=beside.key("asked"), reason="no", actor="ann")])
    await store.alter([SendSignal(job=beside.key("asked"), name="go", value=b"1", actor="ann")])
    assert lease.expires_ms == clock() + LEASE
    await q.tick()
