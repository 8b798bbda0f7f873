"""What an outcome, an expired lease and a command do to a job is what core/rules/outcomes.py and
core/records/commands.py say.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from jobq.core.records.commands import (
    APPLIES,
    AnyCommand,
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
    Reschedule,
    Revive,
    SendSignal,
    Update,
    applies,
)
from jobq.core.records.jobs import AnyOutcome, JobKey, Lease
from jobq.core.records.states import State
from jobq.core.rules import outcomes
from jobq_conformance.examples import examples
from jobq_conformance.kit import (
    LEASE,
    SECOND,
    Desk,
    block,
    complete,
    fail,
    hold,
    release,
    retry,
    snooze,
)
from tests.rules.kit import Table

KINDS = sorted(
    outcomes.EFFECTS.keys() - {"defer"}
)  # how long a job is put off is not its outcome's choice: core/rules/deferral.py
DELAYS = st.sampled_from([0, SECOND])


def outcome(kind: str, lease: Lease, delay_ms: int) -> AnyOutcome:
    made: dict[str, AnyOutcome] = {
        "complete": complete(lease),
        "fail": fail(lease),
        "retry": retry(lease, delay_ms),
        "snooze": snooze(lease, delay_ms),
        "release": release(lease),
        "hold": hold(lease, delay_ms),
        "block": block(lease, signal="go"),
    }
    return made[kind]


async def line_up(q: Desk, keyed: bool, lifo: bool) -> Lease:
    """A job that runs, and two behind it."""
    key = "k" if keyed else None
    await q.put_one("j", key=key, lifo=lifo, max_stalls=1)
    lease = await q.take(lease_ms=LEASE)
    await q.put_one("a", key=key)
    await q.put_one("b", key=key)
    return lease


async def order(q: Desk) -> list[str]:
    """All that can be claimed, in the order it comes."""
    ids: list[str] = []
    while leases := await q.claim(1, lease_ms=LEASE):
        ids.append(leases[0].id)
        await q.settle(complete(leases[0]))
    return ids


EXPECTED_ORDER = {"front": ["j", "a", "b"], "back": ["a", "b", "j"], "first": ["j", "a", "b"]}


@examples(60)
@given(
    kind=st.sampled_from(KINDS),
    delay=DELAYS,
    asked=st.booleans(),
    keyed=st.booleans(),
    lifo=st.booleans(),
)
def test_an_outcome_does_what_core_says(
    table: Table, kind: str, delay: int, asked: bool, keyed: bool, lifo: bool
) -> None:
    async def play(q: Desk) -> None:
        lease = await line_up(q, keyed, lifo)
        if asked:
            await q.alter(Cancel(job=q.key("j")))
        await q.settle(outcome(kind, lease, delay))
        effect = outcomes.effect(kind, delay_ms=delay, cancel_asked=asked)
        record = await q.get("j")
        assert (record.state, record.failures, record.stalls, record.attempt) == (
            effect.state,
            int(effect.failed),
            0,
            1,
        )
        event = await q.last_event("j")
        assert (event.kind, event.state, event.previous) == (
            effect.kind,
            effect.state,
            State.ACTIVE,
        )
        if effect.state in (State.WAITING, State.DELAYED):
            q.clock.advance(delay)
            await q.tick()
            queue_end = (
                "front"
                if effect.returns
                else outcomes.queue_end_when_due(
                    "keyed" if keyed else "plain", started=True, lifo=lifo
                )
            )
            assert await order(q) == EXPECTED_ORDER[queue_end]

    table.play(play)


@examples(25)
@given(max_stalls=st.integers(0, 3), asked_at=st.integers(0, 5))
def test_expired_leases_do_what_core_says(table: Table, max_stalls: int, asked_at: int) -> None:
    async def play(q: Desk) -> None:
        await q.put_one("j", max_stalls=max_stalls)
        for stalls in range(1, 6):
            await q.take(lease_ms=LEASE)
            asked = stalls > asked_at
            if asked:
                await q.alter(Cancel(job=q.key("j")))
            q.clock.advance(LEASE)
            await q.tick()
            effect = outcomes.stall(stalls=stalls, max_stalls=max_stalls, cancel_asked=asked)
            record, event = await q.get("j"), await q.last_event("j")
            assert (record.state, record.stalls, record.failures) == (effect.state, stalls, 0)
            assert (event.kind, event.state) == (effect.kind, effect.state)
            if effect.state.ended:
                return

    table.play(play)


@examples(25)
@given(delay=DELAYS, lifo=st.booleans(), keyed=st.booleans(), blocked=st.booleans())
def test_a_job_that_becomes_due_goes_where_core_says(
    table: Table, delay: int, lifo: bool, keyed: bool, blocked: bool
) -> None:
    async def play(q: Desk) -> None:
        key = "k" if keyed else None
        child: dict[str, Any] = {}
        if blocked:
            await q.put_one("child", key="other" if keyed else None)
            running = await q.take()
            child = {"after": (q.edge("child"),)}
        await q.put_one("j", key=key, lifo=lifo, delay_ms=delay, **child)
        await q.put_one("a", key=key)
        await q.put_one("b", key=key)
        if blocked:
            await q.settle(complete(running))
        elif not delay:
            return
        due = outcomes.due_ms(now_ms=q.clock.now_ms, delay_ms=delay)
        assert (await q.get("j")).due_ms == due
        q.clock.advance(delay)
        await q.tick()
        queue_end = outcomes.queue_end_when_due(
            "keyed" if keyed else "plain", started=False, lifo=lifo
        )
        assert await order(q) == EXPECTED_ORDER[queue_end]

    table.play(play)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────

WAYS = [
    "delayed",
    "blocked",
    "waiting",
    "active",
    "completed",
    "failed",
    "cancelled",
    "retried",
    "retried later",
    "snoozed",
    "released",
    "blocked again",
    "rerun",
]


async def bring(q: Desk, way: str) -> None:
    """A job in the state that `way` names."""
    if way == "blocked":
        await q.put_one("child", delay_ms=SECOND)
    await q.put_one(
        "j",
        delay_ms=SECOND if way == "delayed" else 0,
        after=(q.edge("child"),) if way == "blocked" else (),
    )
    if way in ("delayed", "blocked", "waiting"):
        return
    if way == "cancelled":
        await q.alter(Cancel(job=q.key("j")))
        return
    lease = await q.take()
    ends: dict[str, AnyOutcome] = {
        "completed": complete(lease),
        "rerun": complete(lease),
        "failed": fail(lease),
        "retried": retry(lease),
        "retried later": retry(lease, SECOND),
        "snoozed": snooze(lease, SECOND),
        "released": release(lease),
        "blocked again": block(lease, signal="go"),
    }
    if way in ends:
        await q.settle(ends[way])
    if way == "rerun":
        await q.alter(Rerun(job=q.key("j")))


def command(tag: str, key: JobKey) -> AnyCommand:
    made: dict[str, AnyCommand] = {
        "cancel": Cancel(job=key),
        "rerun": Rerun(job=key),
        "revive": Revive(job=key),
        "promote": Promote(job=key),
        "reprioritise": Reprioritise(job=key, priority=3),
        "reschedule": Reschedule(job=key, delay_ms=SECOND),
        "update": Update(job=key, payload=b"new"),
        "remove": Remove(job=key),
        "signal": SendSignal(job=key, name="x"),
    }
    return made[tag]


@examples(len(WAYS) * len(APPLIES))
@given(
    way=st.sampled_from(WAYS),
    tag=st.sampled_from(sorted(APPLIES)),
    life=st.sampled_from([None, 0, 1]),
)
def test_a_command_applies_when_core_says_so(
    table: Table, way: str, tag: str, life: int | None
) -> None:
    async def play(q: Desk) -> None:
        await bring(q, way)
        before = await q.get("j")
        given_ = replace(command(tag, q.key("j")), life=life)
        fits = applies(given_, before.state, before.attempt, before.life)
        expected = "done" if fits else "late"
        assert await q.store.alter([given_]) == [expected]
        if expected == "late":
            assert await q.get("j") == before

    table.play(play)
