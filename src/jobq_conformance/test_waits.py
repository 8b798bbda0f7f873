"""Runs that end in a wait: for children that were added, or for a signal."""

from __future__ import annotations

from jobq.core.records.commands import Cancel, Rerun, SendSignal
from jobq.core.records.defaults import MAX_SIGNALS
from jobq.core.records.states import State
from jobq.core.rules.waits import child_note
from jobq_conformance.kit import (
    DAY,
    SECOND,
    Desk,
    block,
    complete,
    fail,
    ref,
    release,
    retry,
)
from jobq_conformance.roles import needs

pytestmark = needs("waits")

# ── for children ──────────────────────────────────────────────────────────────────────────────────


async def test_a_run_may_end_by_waiting_for_children(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1", "p/2")
    await q.settle(block(lease, after=(q.edge("p/1"), q.edge("p/2")), saved=b"half"))
    record = await q.get("p")
    assert (record.state, record.failures, record.stalls, record.saved) == (
        State.BLOCKED,
        0,
        0,
        b"half",
    )
    assert record.children == (q.key("p/1"), q.key("p/2"))
    one, two = await q.claim(5)
    await q.settle(complete(one, b"1"), complete(two, b"2"))
    again = await q.take()
    assert (again.id, again.attempt, again.saved) == ("p", 2, b"half")
    assert {i.job.id: i.result for i in again.inputs} == {"p/1": b"1", "p/2": b"2"}
    assert await q.kinds("p") == ["accepted", "started", "blocked", "unblocked", "started"]


async def test_with_all_children_ended_it_goes_straight_back_to_waiting(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.run("p/1")
    await q.settle(block(lease, after=(q.edge("p/1"),)))
    assert await q.state("p") is State.WAITING
    assert {i.job.id: i.result for i in (await q.take()).inputs} == {"p/1": b"1"}


async def test_a_lease_that_ended_in_a_wait_is_lost(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.settle(block(lease, signal="go"))
    assert await q.store.extend([ref(lease)], lease_ms=SECOND) == ["lost"]
    assert len((await q.exchange(complete(lease))).stale) == 1


async def test_a_failed_child_fails_the_parent_that_waits_for_it(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    await q.settle(block(lease, after=(q.edge("p/1"),)))
    await q.settle(fail(await q.take(), "child trouble"))
    record = await q.get("p")
    assert record.state is State.FAILED
    assert record.failure is not None
    assert (record.failure.reason, record.failure.message.count("child trouble")) == ("child", 1)


async def test_a_parent_that_ignores_failures_goes_on(q: Desk) -> None:
    await q.put_one("p", on_child_failure="ignore")
    lease = await q.take()
    await q.put("p/1")
    await q.settle(block(lease, after=(q.edge("p/1"),)))
    await q.settle(fail(await q.take()))
    assert (await q.take()).id == "p"


async def test_a_second_wait_adds_to_the_first(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    await q.settle(block(lease, after=(q.edge("p/1"),)))
    await q.settle(complete(await q.take(), b"1"))
    lease = await q.take()
    await q.put("p/1", "p/2")  # the handler starts from its top: the first is a duplicate
    await q.settle(block(lease, after=(q.edge("p/1"), q.edge("p/2"))))
    assert await q.state("p") is State.BLOCKED
    await q.settle(complete(await q.take(), b"2"))
    assert {i.job.id: i.result for i in (await q.take()).inputs} == {"p/1": b"1", "p/2": b"2"}


async def test_a_job_blocked_on_children_can_be_cancelled(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    await q.settle(block(lease, after=(q.edge("p/1"),)))
    assert await q.alter(Cancel(job=q.key("p"), cascade=True))
    assert await q.states("p", "p/1") == ["cancelled", "cancelled"]


async def test_a_cascade_reaches_children_that_a_running_job_has_added_and_does_not_wait_for_yet(
    q: Desk,
) -> None:
    beside = q.beside("other")
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    await beside.put("p/2")
    for n, child in enumerate((q.key("p/1"), beside.key("p/2"), q.key("never put"))):
        assert await q.alter(child_note(q.key("p"), f"{n}", child))
    assert await q.alter(Cancel(job=q.key("p"), cascade=True))
    await q.tick()
    assert (await q.states("p", "p/1"), await beside.states("p/2")) == (
        ["active", "cancelled"],
        ["cancelled"],
    )
    await q.settle(fail(lease))
    assert await q.state("p") is State.CANCELLED


async def test_a_cascade_over_a_job_that_has_ended_leaves_its_children_alone(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    assert await q.alter(child_note(q.key("p"), "0", q.key("p/1")))
    await q.settle(complete(lease))
    assert not await q.alter(Cancel(job=q.key("p"), cascade=True))
    assert await q.state("p/1") is State.WAITING


async def test_children_of_an_earlier_life_are_not_reached(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    assert await q.alter(child_note(q.key("p"), "0", q.key("p/1")))
    await q.settle(complete(lease))
    assert await q.alter(Rerun(job=q.key("p")))
    assert await q.alter(Cancel(job=q.key("p"), cascade=True))
    assert await q.states("p", "p/1") == ["cancelled", "waiting"]


async def test_a_wait_repeated_after_a_lost_reply_blocks_once(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    for _ in range(2):
        settled = await q.exchange(block(lease, after=(q.edge("p/1"),)), call="x")
        assert settled.stale == ()
    await q.settle(complete(await q.take()))
    assert await q.kinds("p") == ["accepted", "started", "blocked", "unblocked"]


# ── for a signal ──────────────────────────────────────────────────────────────────────────────────


async def test_a_signal_wakes_the_job_that_waits_for_it(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go", saved=b"half"))
    assert await q.state("a") is State.BLOCKED
    assert await q.alter(SendSignal(job=q.key("a"), name="go", value=b'"yes"'))
    assert await q.state("a") is State.WAITING
    lease = await q.take()
    assert (lease.signals, lease.saved, lease.attempt) == ((("go", b'"yes"'),), b"half", 2)


async def test_another_signal_does_not_wake_it_and_is_kept(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go"))
    assert await q.alter(SendSignal(job=q.key("a"), name="other", value=b"1"))
    assert await q.state("a") is State.BLOCKED
    await q.alter(SendSignal(job=q.key("a"), name="go", value=b"2"))
    assert (await q.take()).signals == (("other", b"1"), ("go", b"2"))


async def test_signals_before_pickup_are_kept(q: Desk) -> None:
    await q.put("a")
    await q.put_one("b", delay_ms=DAY)
    for value in (b"1", b"2"):
        assert await q.alter(SendSignal(job=q.key("a"), name="go", value=value))
    assert await q.alter(SendSignal(job=q.key("b"), name="go"))
    assert (await q.take()).signals == (("go", b"1"), ("go", b"2"))


async def test_a_signal_that_came_while_the_job_ran_is_not_missed(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    assert await q.alter(SendSignal(job=q.key("a"), name="go", value=b"1"))
    await q.settle(block(lease, signal="go"))
    assert await q.state("a") is State.WAITING
    assert (await q.take()).signals == (("go", b"1"),)


async def test_signals_outlive_a_retry_and_a_hand_back(q: Desk) -> None:
    await q.put("a")
    await q.alter(SendSignal(job=q.key("a"), name="go", value=b"1"))
    await q.settle(retry(await q.take()))
    await q.settle(release(await q.take()))
    assert (await q.take()).signals == (("go", b"1"),)


async def test_a_child_that_ends_late_does_not_count_as_the_signal(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    await q.settle(block(lease, after=(q.edge("p/1"),), timeout_ms=SECOND))
    child = await q.take()
    q.clock.advance(SECOND)
    await q.settle(block(await q.take("w2"), signal="go"), worker="w2")
    await q.settle(complete(child))
    assert await q.state("p") is State.BLOCKED
    assert await q.alter(SendSignal(job=q.key("p"), name="go", value=b"1"))
    assert (await q.take()).signals == (("go", b"1"),)


async def test_an_ended_or_unknown_job_takes_no_signal(q: Desk) -> None:
    await q.run("done")
    commands = [SendSignal(job=q.key(id), name="go") for id in ("done", "nobody")]
    assert await q.store.alter(commands) == ["late", "missing"]


async def test_a_job_takes_a_bounded_number_of_signals(q: Desk) -> None:
    await q.put("p")
    signal = SendSignal(job=q.key("p"), name="go", value=b"1")
    for _ in range(MAX_SIGNALS // 1000):
        assert set(await q.store.alter([signal] * 1000)) == {"done"}
    assert await q.store.alter([signal]) == ["late"]
    note = child_note(q.key("p"), "0", q.key("child"))
    assert await q.store.alter([note]) == ["done"], "a job may have more children than signals"
    lease = await q.take()
    assert len(lease.signals) == MAX_SIGNALS + 1
    await q.settle(complete(lease))
    assert await q.alter(Rerun(job=q.key("p")))
    assert await q.store.alter([signal]) == ["done"], "another life takes as many"


async def test_past_its_timeout_a_wait_goes_on_with_an_empty_value(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go", timeout_ms=5 * SECOND))
    q.clock.advance(4 * SECOND)
    await q.tick()
    assert await q.state("a") is State.BLOCKED
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert await q.state("a") is State.WAITING
    assert (await q.take()).signals == (("go", b""),)


async def test_a_claim_finds_a_wait_past_its_timeout(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go", timeout_ms=5 * SECOND))
    assert (await q.exchange(then=q.claiming())).next_due_ms == 5 * SECOND
    q.clock.advance(6 * SECOND)
    assert await q.claim_ids() == ["a"]


async def test_a_signal_in_time_leaves_no_timeout_behind(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go", timeout_ms=5 * SECOND))
    await q.alter(SendSignal(job=q.key("a"), name="go", value=b"1"))
    lease = await q.take(lease_ms=DAY)
    q.clock.advance(6 * SECOND)
    await q.tick()
    assert (await q.get("a")).state is State.ACTIVE
    assert lease.signals == (("go", b"1"),)
    await q.settle(complete(lease))


async def test_a_wait_for_children_past_its_timeout_goes_on_without(q: Desk) -> None:
    await q.put("p")
    lease = await q.take()
    await q.put("p/1")
    await q.settle(block(lease, after=(q.edge("p/1"),), timeout_ms=5 * SECOND))
    child = await q.take(lease_ms=DAY)
    q.clock.advance(6 * SECOND)
    await q.tick()
    assert await q.state("p") is State.WAITING
    assert [i for i in (await q.take()).inputs if i.result is not None] == []
    await q.settle(complete(child))


async def test_a_job_that_waits_for_a_signal_holds_no_slot(q: Desk) -> None:
    await q.put_one("a", key="k")
    await q.put_one("b", key="k")
    await q.settle(block(await q.take(), signal="go"))
    second = await q.take()
    assert second.id == "b"
    await q.alter(SendSignal(job=q.key("a"), name="go"))
    assert await q.claim() == []
    await q.settle(complete(second))
    assert await q.claim_ids() == ["a"]


async def test_a_job_that_waits_for_a_signal_can_be_cancelled(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go", timeout_ms=SECOND))
    assert await q.alter(Cancel(job=q.key("a")))
    q.clock.advance(2 * SECOND)
    await q.tick()
    assert await q.state("a") is State.CANCELLED


async def test_a_rerun_starts_without_the_signals_and_saved_state_of_its_last_life(q: Desk) -> None:
    await q.put("a")
    await q.settle(block(await q.take(), signal="go", timeout_ms=SECOND, saved=b"1"))
    await q.alter(SendSignal(job=q.key("a"), name="go", value=b"2"))
    await q.settle(fail(await q.take()))
    assert await q.alter(Rerun(job=q.key("a")))
    lease = await q.take()
    assert (lease.life, lease.signals, lease.saved) == (1, (), None)
