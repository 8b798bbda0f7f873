"""Jobs that a worker defers, for either reason: each deferral is recorded with its reason, and the
two reasons have clocks of their own (core/rules/deferral.py).
"""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from jobq.core.records.commands import Promote, Rerun, Reschedule, Update
from jobq.core.records.jobs import DeferReason, Deferred, UniqueSpec
from jobq.core.records.states import State
from jobq.core.rules import deferral
from jobq.core.rules.deferral import PutOff, sentence
from jobq_conformance.kit import (
    HOUR,
    LEASE,
    SECOND,
    Desk,
    complete,
    defer,
    fail,
    release,
    retry,
)

REASONS: tuple[DeferReason, ...] = get_args(DeferReason)
TEXT = "argument n of charge: expected int, not str\tü\n"


async def put_off(q: Desk, id: str, *reasons: DeferReason, key: str | None = None) -> None:
    """Workers claim the job one after the other, a second apart, and defer it."""
    for reason in reasons:
        lease = await q.take("old")
        assert lease.id == id
        await q.settle(
            defer(lease, SECOND, reason, TEXT if reason == "unfit" else ""), worker="old"
        )
        q.clock.advance(SECOND)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("reason", REASONS)
async def test_a_deferred_job_says_so_and_why(
    q: Desk, reason: DeferReason, key: str | None
) -> None:
    await q.put_one("a", key=key)
    now = q.clock.now_ms
    await q.settle(defer(await q.take("old"), SECOND, reason, TEXT), worker="old")
    record = await q.get("a")
    assert record.deferred == Deferred(reason, TEXT, 1, now if reason == "unfit" else 0)
    assert record.state is (State.WAITING if key else State.DELAYED)
    assert (record.failures, record.stalls, record.started_ms) == (0, 0, None)
    assert (sentence(record) or "").startswith("deferred, because ")
    event = await q.last_event("a")
    assert (event.kind, event.reason, event.previous) == ("snoozed", reason, State.ACTIVE)


@pytest.mark.parametrize("reasons", [r for n in (1, 2, 3, 4) for r in product(REASONS, repeat=n)])
async def test_each_reason_has_its_own_clock(q: Desk, reasons: tuple[DeferReason, ...]) -> None:
    """The store records what core's functions say, whatever one deploy after the other finds."""
    await q.put("a")
    kept, last = PutOff(), None
    for n, reason in enumerate(reasons, 1):
        now = q.clock.now_ms
        await put_off(q, "a", reason)
        text = TEXT if reason == "unfit" else ""
        kept = kept.again(reason, now_ms=now, due_ms=1)
        last = deferral.deferred(last, reason, text, attempt=n, now_ms=now)
    assert last is not None
    assert (await q.get("a")).deferred == last
    for _ in range(2):
        settled = await q.exchange(call="once", then=q.claiming(5))
        (lease,) = settled.leases
        assert (lease.unknown_ms, lease.unfit_ms) == (kept.since_ms, last.unfit_ms or None)
        assert lease.attempt == len(reasons) + 1


async def test_a_worker_that_finds_it_unfit_begins_the_hour_of_unknown_again(q: Desk) -> None:
    await q.put("a")
    await put_off(q, "a", "unknown")
    q.clock.advance(HOUR - 2 * SECOND)
    known = q.clock.now_ms
    await put_off(q, "a", "unfit")
    q.clock.advance(3 * SECOND)
    assert (await q.take()).unknown_ms == known


async def test_a_worker_that_does_not_know_it_leaves_the_five_minutes_of_unfit_going(
    q: Desk,
) -> None:
    await q.put("a")
    first = q.clock.now_ms
    await put_off(q, "a", "unfit", "unknown", "unknown", "unfit", "unknown")
    assert (await q.take()).unfit_ms == first


async def test_given_up_it_fails_as_unfit(q: Desk) -> None:
    await q.put("a")
    await put_off(q, "a", "unfit")
    await q.settle(fail(await q.take(), TEXT, "unfit"))
    record = await q.get("a")
    assert record.failure is not None
    assert (record.state, record.failure.reason) == (State.FAILED, "unfit")
    assert record.failure.message == TEXT
    assert sentence(record) is None
    assert (await q.last_event("a")).reason == "unfit"


# ── when it is deferred no more ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("after", ["active", "retried", "released", "stalled", "completed"])
async def test_once_a_worker_runs_it_it_is_deferred_no_more(
    q: Desk, reason: DeferReason, after: str
) -> None:
    await q.put("a")
    await put_off(q, "a", reason)
    lease = await q.take(lease_ms=LEASE)
    match after:
        case "retried":
            await q.settle(retry(lease, SECOND))
        case "released":
            await q.settle(release(lease))
        case "completed":
            await q.settle(complete(lease))
        case "stalled":
            q.clock.advance(LEASE + 1)
            await q.tick()
    record = await q.get("a")
    assert record.attempt == 2
    assert sentence(record) is None


@pytest.mark.parametrize("how", ["update", "debounce", "keep_last"])
async def test_new_arguments_begin_the_five_minutes_again(q: Desk, how: str) -> None:
    lock = None if how == "update" else UniqueSpec(lock="l", mode=how)  # type: ignore[arg-type]
    await q.put_one("a", unique=lock)
    first = q.clock.now_ms
    await q.settle(defer(await q.take("old"), SECOND, "unfit", TEXT), worker="old")
    q.clock.advance(SECOND // 2)
    if lock is None:
        await q.alter(Update(job=q.key("a"), payload=b"[[1],{}]"))
    else:
        assert (await q.put_one("b", unique=lock, payload=b"[[1],{}]")).duplicate
    record = await q.get("a")
    assert (record.payload, record.deferred, sentence(record)) == (b"[[1],{}]", None, None)
    q.clock.advance(SECOND)
    lease = await q.take("old")
    assert (lease.payload, lease.unknown_ms, lease.unfit_ms) == (b"[[1],{}]", first, None)
    again = q.clock.now_ms
    await q.settle(defer(lease, SECOND, "unfit", TEXT), worker="old")
    assert (await q.get("a")).deferred == Deferred("unfit", TEXT, 2, again)


async def test_rerun_begins_everything_again(q: Desk) -> None:
    await q.put("a")
    await put_off(q, "a", "unfit", "unknown", "unfit")
    await q.settle(fail(await q.take(), TEXT, "unfit"))
    await q.alter(Rerun(job=q.key("a")))
    assert (await q.get("a")).deferred is None
    lease = await q.take()
    assert (lease.unknown_ms, lease.unfit_ms) == (None, None)


@pytest.mark.parametrize("command", ["promote", "reschedule"])
async def test_a_new_time_leaves_its_clock_going(q: Desk, command: str) -> None:
    await q.put("a")
    first = q.clock.now_ms
    await q.settle(defer(await q.take("old"), 30 * SECOND, "unfit", TEXT), worker="old")
    await q.alter(
        Promote(job=q.key("a"))
        if command == "promote"
        else Reschedule(job=q.key("a"), delay_ms=SECOND)
    )
    q.clock.advance(SECOND)
    assert (await q.take()).unfit_ms == first
