"""What operators do to a queue is in its log, without a job, with the name of who did it."""

from __future__ import annotations

from jobq.core.records.commands import (
    AnyCommand,
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
    Reschedule,
    SendSignal,
    Update,
)
from jobq.core.records.events import EventRecord
from jobq.core.records.queues import Limits, QueueConfig, ScheduleSpec, Window
from jobq.core.records.states import QueueKind, State
from jobq_conformance.kit import MINUTE, SECOND, Desk, block, complete, fail, release, retry
from jobq_conformance.roles import needs

pytestmark = needs("events", "operators")


async def done(q: Desk) -> list[tuple[str, str | None, str | None]]:
    """What was done to the queue: kind, reason, actor."""
    return [
        (str(e.kind), e.reason, e.actor) for e in await q.events() if isinstance(e.kind, QueueKind)
    ]


def schedule(q: Desk, id: str = "nightly", every_ms: int = MINUTE) -> ScheduleSpec:
    return ScheduleSpec(queue=q.queue, id=id, template=q.spec("template"), every_ms=every_ms)


async def test_an_event_of_a_queue_has_no_job(q: Desk) -> None:
    await q.put("a")
    await q.store.pause(q.queue, actor="ann")
    event = (await q.events())[-1]
    assert event == EventRecord(
        id=event.id,
        number=2,
        shard=0,
        position=event.position,
        kind=QueueKind.PAUSED,
        at_ms=q.clock.now_ms,
        queue=q.queue,
        job="",
        life=0,
        name="",
        key=None,
        attempt=0,
        failures=0,
        stalls=0,
        state=None,
        previous=None,
        worker=None,
        actor="ann",
        reason=None,
        error=None,
        fingerprint=None,
        created_ms=q.clock.now_ms,
        due_ms=None,
        started_ms=None,
        finished_ms=None,
    )


async def test_pause_and_resume_are_recorded_when_they_change_something(q: Desk) -> None:
    await q.store.resume(q.queue, actor="ann")
    await q.store.pause(q.queue, actor="ann")
    await q.store.pause(q.queue, actor="bob")
    await q.store.resume(q.queue)
    await q.store.resume(q.queue, actor="bob")
    assert await done(q) == [("paused", None, "ann"), ("resumed", None, None)]


async def test_limits_that_change_are_recorded_with_their_values(q: Desk) -> None:
    limits = Limits(limit=5, rate=Window(limit=3, per_ms=SECOND))
    await q.store.set_limits(q.queue, limits, actor="ann")
    await q.store.set_limits(q.queue, limits, actor="bob")
    await q.store.set_limits(q.queue, None, actor="cat")
    await q.store.set_limits(q.queue, None, actor="dan")
    assert await done(q) == [
        ("limits", '{"limit":5,"rate":["window",3,1000]}', "ann"),
        ("limits", "reset", "cat"),
    ]


async def test_limits_of_a_key_are_recorded_with_the_key(q: Desk) -> None:
    await q.put_one("a", key="acme")
    for limits in (Limits(key_limit=2), Limits(key_limit=2), None):
        await q.store.set_limits(q.queue, limits, key="acme", actor="ann")
    assert await done(q) == [
        ("limits", 'key acme: {"key_limit":2}', "ann"),
        ("limits", "key acme: reset", "ann"),
    ]


async def test_limits_are_recorded_when_a_higher_version_declares_them(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(mode="plain"))
    for version in (1, 1, 2):
        await q.store.declare(
            q.queue, QueueConfig(limits=Limits(limit=version), limits_version=version)
        )
    await q.store.declare(q.queue, QueueConfig(limits=Limits(limit=1), limits_version=1))
    assert await done(q) == [
        ("limits", 'version 1: {"limit":1}', None),
        ("limits", 'version 2: {"limit":2}', None),
    ]


async def test_clear_says_how_many_and_who(q: Desk) -> None:
    await q.put("a", "b", "c")
    await q.put_one("later", delay_ms=SECOND)
    assert await q.store.purge_pending(q.queue, limit=2, actor="ann") == 2
    assert await q.store.purge_pending(q.queue, delayed=True, actor="bob") == 2
    assert await q.store.purge_pending(q.queue, delayed=True, actor="cat") == 0
    assert await done(q) == [("cleared", "2 jobs", "ann"), ("cleared", "2 jobs", "bob")]
    cancelled = [(e.job, e.actor) for e in await q.events() if e.kind == "cancelled"]
    assert sorted(cancelled) == [("a", "ann"), ("b", "ann"), ("c", "bob"), ("later", "bob")]


async def test_purge_ended_says_how_many_of_which_state(q: Desk) -> None:
    await q.run("a")
    await q.put("b", "c")
    await q.settle(*(fail(lease) for lease in await q.claim(2)))
    assert await q.store.purge_ended(q.queue, State.FAILED, actor="ann") == 2
    assert await q.store.purge_ended(q.queue, State.FAILED, actor="bob") == 0
    assert await q.store.purge_ended(q.queue, State.COMPLETED) == 1
    assert await done(q) == [
        ("purged", "2 failed jobs", "ann"),
        ("purged", "1 completed job", None),
    ]


async def test_records_removed_by_commands_are_purged(q: Desk) -> None:
    for id in ("a", "b", "c"):
        await q.run(id)
    await q.put("waiting")
    await q.store.alter(
        [Remove(job=q.key(id), actor="ann") for id in ("a", "b", "nobody", "waiting")]
    )
    await q.alter(Remove(job=q.key("c")))
    assert await done(q) == [("purged", "2 jobs", "ann"), ("purged", "1 job", None)]
    assert ((await q.last_event("waiting")).reason, (await q.last_event("waiting")).actor) == (
        "removed",
        "ann",
    )


async def test_schedules_are_recorded_when_they_change(q: Desk) -> None:
    for every_ms in (MINUTE, MINUTE, 2 * MINUTE):
        await q.store.put_schedule(
            schedule(q, every_ms=every_ms), next_ms=q.clock.now_ms + every_ms, actor="ann"
        )
    for paused in (True, True, False):
        assert await q.store.pause_schedule(q.queue, "nightly", paused=paused, actor="bob")
    assert await q.store.drop_schedule(q.queue, "nightly", actor="cat")
    await q.store.drop_schedule(q.queue, "nightly", actor="cat")
    assert await done(q) == [
        ("schedule", "put nightly", "ann"),
        ("schedule", "put nightly", "ann"),
        ("schedule", "paused nightly", "bob"),
        ("schedule", "resumed nightly", "bob"),
        ("schedule", "dropped nightly", "cat"),
    ]


async def test_obliterate_is_the_last_thing_recorded(q: Desk) -> None:
    await q.put("a", "b", "c")
    await q.take()
    while not await q.store.obliterate(q.queue, force=True, limit=2, actor="ann"):
        pass
    assert await q.store.obliterate(q.queue, actor="bob")
    events = await q.events()
    assert [(e.job, e.actor) for e in events if e.kind == "cancelled"] == [
        (id, "ann") for id in [e.job for e in events[4:7]]
    ]
    assert [(str(e.kind), e.actor) for e in events[7:]] == [("obliterated", "ann")]


async def test_a_queue_that_never_was_leaves_no_trace_of_its_end(q: Desk) -> None:
    assert await q.store.obliterate(q.queue, actor="ann")
    assert await q.events() == []


# ── actors ────────────────────────────────────────────────────────────────────────────────────────


async def test_commands_say_who_gave_them(q: Desk) -> None:
    await q.put_one("a", delay_ms=MINUTE)
    job = q.key("a")
    commands: list[AnyCommand] = [
        Reprioritise(job=job, priority=3, actor="ann"),
        Update(job=job, payload=b"[[1],{}]", actor="bob"),
        Reschedule(job=job, delay_ms=SECOND, actor="cat"),
        Promote(job=job, actor="dan"),
        Cancel(job=job, actor="eve"),
        Rerun(job=job, actor="fay"),
    ]
    for command in commands:
        assert await q.alter(command)
    recorded = [(str(e.kind), e.actor) for e in await q.events("a")]
    assert recorded == [
        ("accepted", None),
        ("changed", "ann"),
        ("changed", "bob"),
        ("changed", "cat"),
        ("promoted", "dan"),
        ("cancelled", "eve"),
        ("rerun", "fay"),
    ]


async def test_each_command_of_a_call_has_its_own_actor(q: Desk) -> None:
    await q.put("a", "b", "c")
    await q.store.alter(
        [
            Cancel(job=q.key(id), actor=actor)
            for id, actor in (("a", "ann"), ("b", None), ("c", "cat"))
        ]
    )
    assert [(e.job, e.actor) for e in (await q.events())[3:]] == [
        ("a", "ann"),
        ("b", None),
        ("c", "cat"),
    ]


async def test_a_signal_that_wakes_a_job_says_who_sent_it(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go"))
    await q.alter(SendSignal(job=q.key("a"), name="go", actor="ann"))
    event = await q.last_event("a")
    assert (str(event.kind), event.actor) == ("unblocked", "ann")


async def test_a_running_job_that_is_cancelled_ends_with_the_name_of_who_asked(
    q_twice: tuple[Desk, Desk],
) -> None:
    first, second = q_twice
    await first.put("fails", "retries", "released", "stalls")
    leases = {lease.id: lease for lease in await first.claim(4, lease_ms=MINUTE)}
    await second.store.alter([Cancel(job=second.key(id), actor=f"{id}-ann") for id in leases])
    await second.store.alter([Cancel(job=second.key(id), actor="too late") for id in leases])
    await first.settle(fail(leases["fails"]), retry(leases["retries"]), release(leases["released"]))
    first.clock.advance(2 * MINUTE)
    await second.tick()
    for id in leases:
        event = await first.last_event(id)
        assert (str(event.kind), event.actor) == ("cancelled", f"{id}-ann")


async def test_a_job_that_completes_though_cancelled_has_no_actor(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a"), actor="ann"))
    await q.settle(complete(lease))
    assert (await q.last_event("a")).actor is None


async def test_the_next_life_does_not_remember_who_asked_for_the_last_ones_end(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a"), actor="ann"))
    await q.settle(release(lease))
    await q.alter(Rerun(job=q.key("a")))
    lease = await q.take()
    await q.alter(Cancel(job=q.key("a")))
    await q.settle(release(lease))
    assert [(str(e.kind), e.actor) for e in (await q.events("a"))[2:]] == [
        ("cancelled", "ann"),
        ("rerun", None),
        ("started", None),
        ("cancelled", None),
    ]


async def test_a_cascade_names_the_actor_in_every_job_it_cancels(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("child", "running")
    await beside.put("far")
    await q.put_one("middle", after=(q.edge("child"), q.edge("running"), beside.edge("far")))
    await q.put_one("top", after=(q.edge("middle"),))
    leases = [lease for lease in await q.claim(2) if lease.id == "running"]
    await q.alter(Cancel(job=q.key("top"), cascade=True, actor="ann"))
    await q.tick()
    await q.settle(*(release(lease) for lease in leases))
    for desk, id in ((q, "top"), (q, "middle"), (q, "running"), (beside, "far")):
        event = await desk.last_event(id)
        assert (str(event.kind), event.actor) == ("cancelled", "ann"), id


async def test_events_that_follow_from_a_command_have_no_actor(q: Desk) -> None:
    await q.put("child")
    await q.put_one("parent", after=(q.edge("child"),))
    await q.alter(Cancel(job=q.key("child"), actor="ann"))
    event = await q.last_event("parent")
    assert (str(event.kind), event.actor) == ("failed", None)
