"""The features of a job, one small record each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobq.core.records.commands import Cancel, Rerun, Revive, Update
from jobq.core.records.jobs import (
    Edge,
    JobKey,
    Lease,
)
from jobq.core.records.queues import RetentionData, Tokens, Window
from jobq.core.records.states import Kind as Happened
from jobq.core.records.states import State
from jobq.core.values.checks import MAX_PRIORITY
from jobq_conformance.kit import SECOND, complete, fail, ref
from tests.pairs.claims import first_start
from tests.pairs.feature import Feature, Kind
from tests.pairs.runs import RUNS, work_off
from tests.pairs.scene import Scene
from tests.pairs.unique import UNIQUE, lock_now

DELAY_MS = 3 * SECOND
TTL_MS = 8 * SECOND
SHORT_TTL_MS = 5 * SECOND
WINDOW = Window(limit=1, per_ms=10 * SECOND)
BUCKET = Tokens(capacity=5, refill=1.0)
RETENTION = RetentionData(completed_ms=10 * SECOND, failed_ms=12 * SECOND, cancelled_ms=8 * SECOND)


# ── when it starts ────────────────────────────────────────────────────────────────────────────────


def _waited(scene: Scene) -> None:
    """The subject started no earlier than its delay after it was put, replaced or unblocked."""
    start = first_start(scene)
    if start is None:
        return
    delays = [e for e in scene.of_subject() if e.state is State.DELAYED and e.attempt == 0]
    assert delays, "it was never delayed"
    assert start.at_ms >= delays[-1].at_ms + scene.options["delay_ms"], (
        "it started before its delay was over"
    )


def _started_in_time(scene: Scene) -> None:
    """ttl counts from due to the first start; later starts do not matter."""
    ttl_ms = scene.options["ttl_ms"]
    start = first_start(scene)
    if start is not None:
        assert start.due_ms is not None
        assert start.at_ms < start.due_ms + ttl_ms, "it started past its ttl"
    for event in scene.of_subject():
        if event.reason == "expired":
            assert (event.attempt, event.previous) == (0, State.WAITING), (
                "a job that has started cannot expire"
            )
            assert event.due_ms is not None
            assert event.at_ms >= event.due_ms + ttl_ms, "it expired too early"


async def _blocked_past_its_ttl(scene: Scene) -> None:
    record = await scene.look()
    if record is not None and record.state is State.BLOCKED:
        await scene.pass_time(SHORT_TTL_MS + TTL_MS)
        assert (await scene.desk.get(scene.subject)).state is State.BLOCKED, (
            "ttl counts from unblocked"
        )


async def _not_started_in_time(scene: Scene) -> None:
    """Nothing is claimed while its ttl passes."""
    await scene.store.pause(scene.desk.queue)
    record = await scene.look()
    if record is not None and record.state is State.WAITING:
        assert record.due_ms is not None
        left = record.due_ms + scene.options["ttl_ms"] - scene.clock.now_ms
        if left > 1:
            await scene.pass_time(left - 1)
            assert (await scene.desk.get(scene.subject)).state is State.WAITING, (
                "it expired too early"
            )
        await scene.pass_time(2)
        record = await scene.desk.get(scene.subject)
        assert (record.state, record.failure and record.failure.reason) == (State.FAILED, "expired")
    await scene.store.resume(scene.desk.queue)


async def _put_low(scene: Scene) -> None:
    await scene.put("low", priority=0)


async def _put_older(scene: Scene) -> None:
    await scene.put("older", priority=scene.options.get("priority", 0))


async def _put_mates_of_its_key(scene: Scene) -> None:
    await scene.put("mate", priority=scene.options.get("priority", 0))
    other = scene.spec("other-key", key="x")
    await scene.note_put(await scene.store.put([other]))


# ── limits ────────────────────────────────────────────────────────────────────────────────────────


def _one_at_a_time(kind: Kind) -> Mapping[str, Any]:
    return {"key_limit": 1} if kind == "partitioned-keyed" else {"limit": 1}


def _rated(kind: Kind) -> Mapping[str, Any]:
    return {"key_rate": WINDOW} if kind == "partitioned-keyed" else {"rate": WINDOW}


def _paid(kind: Kind) -> Mapping[str, Any]:
    """On a keyed queue the bucket limits the key, beside a window that limits the queue."""
    return {"key_rate": BUCKET} if kind.endswith("keyed") else {"rate": BUCKET}


async def _taken(scene: Scene) -> None:
    """Another job has the only place: the subject waits for it to end."""
    if await scene.ended():
        return
    busy = await scene.first("busy")
    await _not_now(scene, "its only place is taken")
    await scene.desk.settle(complete(busy))


async def _used_up(scene: Scene) -> None:
    if not await scene.ended():
        await scene.desk.settle(complete(await scene.first("early")))
        if WINDOW in (scene.limits.rate, scene.limits.key_rate):
            await _not_now(scene, "its window is used up")


async def _spent(scene: Scene) -> None:
    if await scene.ended():
        return
    await scene.desk.settle(complete(await scene.first("spender", cost=3)))
    if BUCKET in (scene.limits.rate, scene.limits.key_rate):
        await _not_now(scene, "the bucket cannot pay for it yet")


async def _not_now(scene: Scene, why: str) -> None:
    for lease in await scene.claim(5):
        assert lease.id != scene.subject, f"the subject started and {why}"
        await scene.desk.settle(complete(lease))


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────


def _wait_for(scene: Scene, name: str, child: Any) -> None:
    scene.memory.setdefault("children", []).append(child)
    scene.memory[name] = child
    scene.options["after"] = (*scene.options.get("after", ()), Edge(JobKey(child.queue, child.id)))


async def _after_one_of_its_queue(scene: Scene) -> None:
    _wait_for(scene, "flow child", scene.spec(scene.name("member"), priority=MAX_PRIORITY))


async def _after_one_elsewhere(scene: Scene) -> None:
    _wait_for(scene, "across child", scene.elsewhere().spec("far"))


async def _member_completes(scene: Scene) -> None:
    if not await scene.ended():
        assert (await scene.desk.get(scene.subject)).state is State.BLOCKED
    await work_off(scene, scene.memory["flow child"].id)


async def _far_one_fails(scene: Scene) -> None:
    lease = await scene.elsewhere().take()
    await scene.elsewhere().settle(fail(lease, "far away"))
    await scene.desk.tick()


def _had_its_member(scene: Scene) -> None:
    for lease in scene.leases:
        assert (scene.memory["flow child"].id, b"7") in [
            (i.job.id, i.result) for i in lease.inputs
        ], "the result was lost"


def _had_the_failure(scene: Scene) -> None:
    for lease in scene.leases:
        (failure,) = [i.failure for i in lease.inputs if i.job.id == "far"]
        assert failure is not None
        assert failure.message.endswith("far away")


# ── operators ─────────────────────────────────────────────────────────────────────────────────────


async def _cancel_it(scene: Scene) -> None:
    over = await scene.ended()
    assert await scene.command(Cancel(job=scene.key)) == ("late" if over else "done")
    if not over:
        record = await scene.desk.get(scene.subject)
        assert (record.state, record.reason) == (State.CANCELLED, "cancelled"), (
            "a job that has not started is cancelled at once"
        )


async def _ask_it_to_stop(scene: Scene, lease: Lease) -> None:
    if scene.memory.get("asked"):
        return
    assert await scene.command(Cancel(job=scene.key)) == "done"
    assert await scene.store.extend(
        [ref(lease)], lease_ms=lease.expires_ms - scene.clock.now_ms
    ) == ["cancel"]
    scene.memory["asked"] = True


def _stopped(scene: Scene) -> None:
    """A run that then succeeds stays completed. Any other end makes the job cancelled at once."""
    if not scene.memory.get("asked"):
        return
    last = scene.of_subject(life=0)[-1]
    assert last.attempt == 1, "it ran again though it was asked to stop"
    runs = any(f.runs for f in scene.features)
    assert last.kind is (Happened.CANCELLED if runs else Happened.COMPLETED)


async def _rerun_it(scene: Scene) -> None:
    """From any ended state; not if its lock is another's."""
    before = await scene.look()
    lock = await lock_now(scene) if "unique" in scene.options else None
    answer = await scene.command(Rerun(job=scene.key))
    if before is None:
        assert answer == "missing"
        return
    free = lock is None or lock.holder in (None, scene.subject)
    assert answer == ("done" if free else "late"), f"the lock is held by {lock and lock.holder}"
    if not free:
        return
    record = await scene.desk.get(scene.subject)
    counters = (record.state, record.life, record.failures, record.stalls, record.attempt)
    assert counters == (State.WAITING, before.life + 1, 0, 0, before.attempt)
    if lock is not None:
        unique = scene.options["unique"]
        lock.holder, lock.follower = scene.subject, None
        lock.until_ms = scene.clock.now_ms + unique.ttl_ms if unique.mode == "throttle" else None
    await scene.phase("between")
    await _second_life(scene)


async def _revive_it(scene: Scene) -> None:
    """From failed and cancelled; not if its lock is another's. What it had saved stays."""
    before = await scene.look()
    lock = await lock_now(scene) if "unique" in scene.options else None
    answer = await scene.command(Revive(job=scene.key))
    if before is None:
        assert answer == "missing"
        return
    free = lock is None or lock.holder in (None, scene.subject)
    applies = free and before.state is not State.COMPLETED
    assert answer == ("done" if applies else "late"), f"the lock is held by {lock and lock.holder}"
    if not applies:
        return
    record = await scene.desk.get(scene.subject)
    counters = (record.state, record.life, record.failures, record.stalls, record.attempt)
    assert counters == (State.WAITING, before.life + 1, 0, 0, before.attempt)
    assert record.saved == before.saved
    if lock is not None:
        unique = scene.options["unique"]
        lock.holder, lock.follower = scene.subject, None
        lock.until_ms = scene.clock.now_ms + unique.ttl_ms if unique.mode == "throttle" else None
    lease = await scene.start()
    if lease is None:
        again = await scene.desk.get(scene.subject)
        assert (again.attempt, again.failure and again.failure.reason) == (0, "expired")
        return
    assert (lease.failures, lease.stalls, lease.saved) == (0, 0, before.saved)
    await scene.desk.settle(complete(lease), *map(complete, scene.mates))
    scene.mates = []
    assert (await scene.desk.get(scene.subject)).state is State.COMPLETED


async def _second_life(scene: Scene) -> None:
    lease = await scene.start()
    if lease is None:  # a job that has never started still has its ttl
        record = await scene.desk.get(scene.subject)
        assert (record.attempt, record.failure and record.failure.reason) == (0, "expired")
        return
    assert (lease.failures, lease.stalls, lease.saved, lease.signals) == (0, 0, None, ()), (
        "its last life shows"
    )
    await scene.desk.settle(complete(lease), *map(complete, scene.mates))
    scene.mates = []
    assert (await scene.desk.get(scene.subject)).state is State.COMPLETED


async def _update_it(scene: Scene) -> None:
    """New arguments, as long as it has never started."""
    record = await scene.look()
    payload = b'["updated"]'
    answer = await scene.command(Update(job=scene.key, payload=payload))
    assert record is not None
    if record.life == 0:
        fresh = not record.state.ended and record.attempt == 0
        assert answer == ("done" if fresh else "late"), (
            f"update of a job that is {record.state}, attempt {record.attempt}"
        )
    if answer == "done":
        scene.payload = payload


async def _update_it_while_running(scene: Scene, lease: Lease) -> None:
    assert await scene.command(Update(job=scene.key, payload=b'["late"]')) == "late"


async def _let_it_go(scene: Scene) -> None:
    """The record is kept for its time, and is gone after it."""
    record = await scene.look()
    if record is None or record.finished_ms is None:
        return
    age = {
        State.COMPLETED: RETENTION.completed_ms,
        State.FAILED: RETENTION.failed_ms,
        State.CANCELLED: RETENTION.cancelled_ms,
    }
    until = record.finished_ms + (age[record.state] or 0)
    if until - 1 > scene.clock.now_ms:
        await scene.pass_time(until - 1 - scene.clock.now_ms)
        assert await scene.look() is not None, "its record went too early"
    scene.clock.advance(max(until + 1 - scene.clock.now_ms, 0))
    assert await scene.look() is None, "its record should be gone"
    await scene.desk.tick()
    assert await scene.look() is None


# ── batches, schedules ────────────────────────────────────────────────────────────────────────────


async def _join_a_batch(scene: Scene) -> None:
    """One call claims the subject with its batch and one settles them, as a worker does for a batch
    task."""
    await scene.put("batch-a", priority=scene.options.get("priority", 0))
    await scene.put("batch-b", priority=scene.options.get("priority", 0))
    scene.claim_size = 4


def _mates_completed(scene: Scene) -> None:
    for mate in ("batch-a", "batch-b"):
        kinds = [e.kind for e in scene.events if scene.short(e.job) == mate]
        assert not kinds or kinds == [Happened.ACCEPTED, Happened.STARTED, Happened.COMPLETED], (
            f"{mate}: {kinds}"
        )


def _came_by_the_clock(scene: Scene) -> None:
    first = scene.of_subject()[0]
    assert (first.kind, first.state) == (Happened.ACCEPTED, State.WAITING), (
        "a scheduled job is made when it fires, never delayed"
    )
    assert scene.recorded[0] == "fired [True]" or "fired [True]" in scene.recorded


FEATURES: tuple[Feature, ...] = (
    *UNIQUE,
    *RUNS,
    Feature(name="delay", options={"delay_ms": DELAY_MS}, holds=_waited),
    Feature(name="priority", options={"priority": 5}, before=_put_low),
    Feature(name="lifo", options={"lifo": True}, before=_put_older),
    Feature(
        name="ttl",
        options={"ttl_ms": TTL_MS},
        pending=_blocked_past_its_ttl,
        holds=_started_in_time,
    ),
    Feature(
        name="expired",
        options={"ttl_ms": SHORT_TTL_MS},
        ripe=_not_started_in_time,
        holds=_started_in_time,
    ),
    Feature(
        name="key",
        options={"key": "k"},
        limits=lambda kind: {"key_limit": 1},
        ripe=_put_mates_of_its_key,
    ),
    Feature(name="limits", limits=_one_at_a_time, ripe=_taken),
    Feature(name="rate", limits=_rated, ripe=_used_up),
    Feature(name="cost", options={"cost": 4}, limits=_paid, ripe=_spent),
    Feature(
        name="flow",
        before=_after_one_of_its_queue,
        pending=_member_completes,
        holds=_had_its_member,
    ),
    Feature(
        name="flow-across",
        options={"on_child_failure": "continue"},
        before=_after_one_elsewhere,
        pending=_far_one_fails,
        holds=_had_the_failure,
    ),
    Feature(name="batch", ripe=_join_a_batch, holds=_mates_completed),
    Feature(name="schedule", holds=_came_by_the_clock),
    Feature(name="cancel", pending=_cancel_it),
    Feature(name="cancel-running", running=_ask_it_to_stop, holds=_stopped),
    Feature(name="rerun", after=_rerun_it),
    Feature(name="revive", after=_revive_it),
    Feature(
        name="update", pending=_update_it, running=_update_it_while_running, between=_update_it
    ),
    Feature(name="retention", retention=RETENTION, after=_let_it_go),
)
