"""Features of a run: how it ends, and how the job goes on.

Each run ends with the outcome that the engine would send: `Scene.outcome` calls the same pure
function (`core.rules.decide`) with what the handler raised. tests/engine tests the engine's own
part: calling handlers, timers and gathering batches.
"""

from __future__ import annotations

from jobq.core.control import RateLimited, Reject, Snooze, WaitForSignal
from jobq.core.records.commands import SendSignal
from jobq.core.records.jobs import AnyOutcome, Lease, Note, RetryData
from jobq.core.records.states import Kind, State
from jobq.core.rules.decide import Raised, TimedOut
from jobq_conformance.kit import LEASE, SECOND, block, complete, ref
from tests.pairs.feature import Feature, Run
from tests.pairs.scene import Scene

BACKOFF_MS = 2 * SECOND
RETRIES = 1  # with two features that fail a run, the second failure is the last one
SNOOZE_MS = 3 * SECOND
HOLD_MS = 3 * SECOND
TIMEOUT_MS = 1 * SECOND


def ran(scene: Scene, feature: str) -> bool:
    """Whether the subject got as far as the runs of this feature."""
    return bool(scene.memory.get(f"ran {feature}"))


def reached(scene: Scene, feature: str, lease: Lease) -> None:
    """Remember that it did, unless it was asked to stop before: then it ends with this run."""
    scene.memory[f"ran {feature}"] = not scene.memory.get("asked")


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


async def _raises(scene: Scene, lease: Lease) -> AnyOutcome:
    reached(scene, "retry", lease)
    return scene.outcome(lease, Raised(ValueError("boom")))


def _was_retried(scene: Scene) -> None:
    if not ran(scene, "retry"):
        return
    retried = next(e for e in scene.of_subject(life=0) if e.reason == "error")
    if retried.failures > RETRIES:
        assert retried.kind is Kind.FAILED, "it had no retries left"
        return
    assert (retried.kind, retried.state) == (Kind.RETRIED, State.DELAYED)
    again = next(
        (
            e
            for e in scene.of_subject()
            if e.kind is Kind.STARTED and e.attempt == retried.attempt + 1
        ),
        None,
    )
    assert again is None or again.at_ms >= retried.at_ms + BACKOFF_MS, (
        "the retry came before its backoff was over"
    )


async def _times_out(scene: Scene, lease: Lease) -> AnyOutcome:
    assert lease.timeout_ms == TIMEOUT_MS
    reached(scene, "timeout", lease)
    return scene.outcome(lease, TimedOut(TIMEOUT_MS / 1000))


def _timed_out(scene: Scene) -> None:
    assert all(lease.timeout_ms == TIMEOUT_MS for lease in scene.leases), (
        "the timeout was lost on the way"
    )
    if ran(scene, "timeout"):
        assert [e.reason for e in scene.of_subject() if e.reason == "timeout"] == ["timeout"]


async def _rejects(scene: Scene, lease: Lease) -> AnyOutcome:
    reached(scene, "reject", lease)
    return scene.outcome(lease, Raised(Reject("no such tenant")))


def _failed_for_good(scene: Scene) -> None:
    if ran(scene, "reject"):
        last = scene.of_subject(life=0)[-1]
        assert (last.kind, last.reason) == (Kind.FAILED, "rejected")


# ── going on later ────────────────────────────────────────────────────────────────────────────────


async def _snoozes(scene: Scene, lease: Lease) -> AnyOutcome:
    reached(scene, "snooze", lease)
    scene.memory["snoozed"] = lease.attempt
    return scene.outcome(lease, Raised(Snooze(SNOOZE_MS / 1000, saved={"step": 2})))


def _was_snoozed(scene: Scene) -> None:
    if not ran(scene, "snooze"):
        return
    snoozed = next(e for e in scene.of_subject() if e.kind is Kind.SNOOZED)
    before = next(lease for lease in scene.leases if lease.attempt == snoozed.attempt)
    assert (snoozed.failures, snoozed.stalls) == (before.failures, before.stalls), (
        "a snooze costs nothing"
    )
    for lease in scene.leases:
        if lease.attempt == snoozed.attempt + 1 and lease.life == 0:
            assert lease.saved == b'{"step":2}', "what the snooze saved was lost"
            assert lease.started_ms >= snoozed.at_ms + SNOOZE_MS


async def _waits_for_signal(scene: Scene, lease: Lease) -> AnyOutcome:
    reached(scene, "signal", lease)
    scene.memory["waited for signal"] = lease.attempt
    return scene.outcome(lease, Raised(WaitForSignal("go", seen=len(lease.signals))))


async def _signals(scene: Scene) -> None:
    record = await scene.look()
    assert record is not None
    assert record.state is State.BLOCKED
    assert await scene.command(SendSignal(job=scene.key, name="go", value=b"7")) == "done"


def _was_signalled(scene: Scene) -> None:
    if ran(scene, "signal"):
        for lease in scene.leases:
            if lease.attempt > scene.memory["waited for signal"] and lease.life == 0:
                assert lease.signals == (("go", b"7"),)


async def _waits_for_child(scene: Scene, lease: Lease) -> AnyOutcome:
    reached(scene, "children", lease)
    child = await scene.put("child")
    scene.memory["child"], scene.memory["waited for child"] = child, lease.attempt
    return block(lease, after=(scene.desk.edge(child),))


async def _child_completes(scene: Scene) -> None:
    record = await scene.look()
    assert record is not None
    assert record.state is State.BLOCKED
    await work_off(scene, scene.memory["child"])


def _had_its_child(scene: Scene) -> None:
    if ran(scene, "children"):
        for lease in scene.leases:
            if lease.attempt > scene.memory["waited for child"] and lease.life == 0:
                assert (scene.memory["child"], b"7") in [(i.job.id, i.result) for i in lease.inputs]


async def work_off(scene: Scene, id: str) -> None:
    """Run a job of the subject's queue, and those before it. The subject cannot start meanwhile."""
    for _ in range(60):
        leases = await scene.desk.claim(1)
        for lease in leases:
            assert lease.id != scene.subject, "the subject started and should be blocked"
            await scene.desk.settle(complete(lease, b"7" if lease.id == id else b"1"))
            if lease.id == id:
                return
        if not leases:
            scene.clock.advance(SECOND)
    raise AssertionError(f"{id} is never claimed")


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────


async def _records_a_step(scene: Scene, lease: Lease) -> None:
    """Each run records one step."""
    name = f"run {lease.attempt}"
    state = "cancel" if scene.memory.get("asked") else "held"
    step = (name, name.encode())
    assert await scene.store.note([Note(lease=ref(lease), steps=(step,))]) == [state]
    scene.memory.setdefault("steps", []).append((lease.life, lease.attempt, step))


def _had_its_steps(scene: Scene) -> None:
    for lease in scene.leases:
        before = [
            step
            for life, attempt, step in scene.memory.get("steps", [])
            if life == lease.life and attempt < lease.attempt
        ]
        assert list(lease.steps) == before, "a run has the steps of all earlier runs of its life"


# ── limits met and leases lost ────────────────────────────────────────────────────────────────────


async def _meets_a_limit(scene: Scene, lease: Lease) -> AnyOutcome:
    reached(scene, "hold", lease)
    return scene.outcome(lease, Raised(RateLimited(HOLD_MS / 1000)))


def _was_held(scene: Scene) -> None:
    limited = next((e for e in scene.events if e.kind is Kind.LIMITED), None)
    if limited is None:
        assert not ran(scene, "hold")
        return
    for event in scene.events:
        if (
            event.kind is Kind.STARTED
            and event.key == limited.key
            and event.at_ms >= limited.at_ms
            and event is not limited
        ):
            after = scene.events.index(event) > scene.events.index(limited)
            assert not after or event.at_ms >= limited.at_ms + HOLD_MS, (
                f"{scene.short(event.job)} started during the hold"
            )


async def _loses_its_lease(scene: Scene, lease: Lease) -> None:
    reached(scene, "stall", lease)
    mates, scene.mates = scene.mates, []
    await scene.desk.settle(*map(complete, mates))
    await scene.pass_time(LEASE + SECOND)


def _stalled_once(scene: Scene) -> None:
    if ran(scene, "stall"):
        (stalled,) = [e for e in scene.of_subject() if e.kind is Kind.STALLED]
        assert (stalled.stalls, stalled.state) == (1, State.WAITING)


RUNS = (
    Feature(
        name="retry",
        options={"retry": RetryData(max_retries=RETRIES, base_ms=BACKOFF_MS, factor=1.0)},
        runs=(Run(end=_raises),),
        holds=_was_retried,
    ),
    Feature(
        name="timeout",
        options={"timeout_ms": TIMEOUT_MS},
        runs=(Run(end=_times_out),),
        holds=_timed_out,
    ),
    Feature(name="reject", runs=(Run(end=_rejects),), holds=_failed_for_good),
    Feature(name="snooze", runs=(Run(end=_snoozes),), holds=_was_snoozed),
    Feature(name="signal", runs=(Run(end=_waits_for_signal, then=_signals),), holds=_was_signalled),
    Feature(
        name="children",
        runs=(Run(end=_waits_for_child, then=_child_completes),),
        holds=_had_its_child,
    ),
    Feature(name="steps", running=_records_a_step, holds=_had_its_steps),
    Feature(name="hold", runs=(Run(end=_meets_a_limit),), holds=_was_held),
    Feature(name="stall", runs=(Run(end=_loses_its_lease),), holds=_stalled_once),
)
