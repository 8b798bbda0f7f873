"""How long things last: the ttl before a start, result ttl and retention after the end."""

from __future__ import annotations

from jobq.core.records.commands import Cancel, Promote
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.core.records.states import State
from jobq_conformance.kit import DAY, SECOND, Desk, complete, fail, read_all, release, retry
from jobq_conformance.roles import needs

pytestmark = needs("retention")

KEEP_ALL = RetentionData(completed_ms=None, failed_ms=None, cancelled_ms=None, count=None)


async def keep(q: Desk, **fields: int | None) -> None:
    """Declare a retention that keeps everything but what `fields` say."""
    given = {"completed_ms": None, "failed_ms": None, "cancelled_ms": None, "count": None, **fields}
    await q.store.declare(q.queue, QueueConfig(retention=RetentionData(**given)))


# ── ttl: from due to the first start ──────────────────────────────────────────────────────────────


async def test_a_job_not_started_within_its_ttl_fails_as_expired(q: Desk) -> None:
    await q.put_one("a", ttl_ms=10 * SECOND)
    await q.put_one("b")
    q.clock.advance(11 * SECOND)
    assert await q.claim_ids() == ["b"]
    record = await q.get("a")
    assert (record.state, record.attempt, record.failures) == (State.FAILED, 0, 0)
    assert record.failure is not None
    assert record.failure.reason == "expired"
    event = await q.last_event("a")
    assert (event.kind, event.previous, event.reason) == ("failed", State.WAITING, "expired")


async def test_a_job_started_within_its_ttl_runs(q: Desk) -> None:
    await q.put_one("a", ttl_ms=10 * SECOND)
    q.clock.advance(9 * SECOND)
    lease = await q.take()
    q.clock.advance(5 * SECOND)
    await q.settle(complete(lease))
    assert await q.state("a") is State.COMPLETED


async def test_a_ttl_counts_from_the_moment_the_job_is_due(q: Desk) -> None:
    await q.put_one("a", delay_ms=20 * SECOND, ttl_ms=10 * SECOND)
    await q.put_one("b", delay_ms=20 * SECOND, ttl_ms=10 * SECOND)
    q.clock.advance(29 * SECOND)
    assert await q.claim_ids(1) == ["a"]
    q.clock.advance(2 * SECOND)
    assert await q.claim_ids() == []
    assert await q.state("b") is State.FAILED


async def test_a_promoted_job_has_its_ttl_from_then(q: Desk) -> None:
    await q.put_one("a", delay_ms=DAY, ttl_ms=10 * SECOND)
    await q.alter(Promote(job=q.key("a")))
    q.clock.advance(11 * SECOND)
    assert await q.claim() == []
    assert await q.state("a") is State.FAILED


async def test_after_the_first_start_the_ttl_is_over(q: Desk) -> None:
    await q.put("r", "s", "t", ttl_ms=10 * SECOND)
    r, s, _ = await q.claim(3)
    await q.settle(retry(r, 20 * SECOND), release(s))
    q.clock.advance(DAY)
    assert await q.claim_ids() == ["s", "t", "r"]


async def test_tick_expires_jobs_in_queues_without_workers(q: Desk) -> None:
    await q.put("a", "b", ttl_ms=SECOND)
    await q.put_one("later", delay_ms=SECOND, ttl_ms=SECOND)
    q.clock.advance(3 * SECOND)
    await q.tick()
    assert await q.states("a", "b", "later") == ["failed"] * 3
    assert await q.counts() == {"failed": 3}


async def test_a_delayed_job_that_came_due_and_expired_unseen_fails_in_one_tick(q: Desk) -> None:
    await q.put_one("a", delay_ms=SECOND, ttl_ms=SECOND)
    q.clock.advance(DAY)
    await q.tick()
    assert await q.kinds("a") == ["accepted", "promoted", "failed"]


async def test_a_delayed_job_that_came_due_and_expired_unseen_is_not_claimed(q: Desk) -> None:
    await q.put_one("a", delay_ms=SECOND, ttl_ms=SECOND)
    q.clock.advance(DAY)
    assert await q.claim() == []
    assert await q.state("a") is State.FAILED


async def test_expired_jobs_in_front_do_not_hide_the_one_behind(q: Desk) -> None:
    await q.put(*(f"j{n}" for n in range(600)), ttl_ms=SECOND)
    await q.put("last")
    q.clock.advance(2 * SECOND)
    found = [
        id for _ in range(4) for id in await q.claim_ids(1)
    ]  # a claim's work is bounded, so it may take several
    assert found == ["last"]
    await q.tick()
    assert await q.counts() == {"failed": 600, "active": 1}


# ── result ttl ────────────────────────────────────────────────────────────────────────────────────


async def test_a_record_is_gone_after_its_result_ttl_without_any_sweep(q: Desk) -> None:
    await q.run("a", result_ttl_ms=10 * SECOND)
    q.clock.advance(9 * SECOND)
    assert await q.state("a") is State.COMPLETED
    q.clock.advance(2 * SECOND)
    assert await q.look("a") is None
    assert await read_all(q.store, q.queue) == []
    assert await read_all(q.store, q.queue, State.COMPLETED) == []


async def test_tick_takes_expired_records_out_of_the_counts(q: Desk) -> None:
    await q.run("a", result_ttl_ms=10 * SECOND)
    q.clock.advance(11 * SECOND)
    await q.tick()
    assert await q.counts() == {}


async def test_a_result_ttl_counts_from_the_end_of_the_job(q: Desk) -> None:
    await q.put_one("a", result_ttl_ms=10 * SECOND)
    q.clock.advance(DAY)
    await q.settle(complete(await q.take()))
    q.clock.advance(9 * SECOND)
    assert await q.state("a") is State.COMPLETED


async def test_a_result_ttl_holds_for_a_failed_job_too(q: Desk) -> None:
    await q.put_one("a", result_ttl_ms=10 * SECOND)
    await q.settle(fail(await q.take()))
    q.clock.advance(11 * SECOND)
    assert await q.look("a") is None


async def test_of_two_result_ttls_the_first_wins(q: Desk) -> None:
    await q.put_one("a", result_ttl_ms=10 * SECOND)
    await q.put_one("a", result_ttl_ms=DAY)
    await q.settle(complete(await q.take()))
    await q.put_one("a", result_ttl_ms=DAY)
    q.clock.advance(11 * SECOND)
    assert await q.look("a") is None


async def test_an_unfinished_job_is_never_removed_by_age(q: Desk) -> None:
    await q.put("a", result_ttl_ms=SECOND)
    q.clock.advance(400 * DAY)
    await q.tick()
    assert await q.claim_ids() == ["a"]


# ── retention ─────────────────────────────────────────────────────────────────────────────────────


async def test_by_default_completed_and_cancelled_stay_a_day_and_failed_thirty(q: Desk) -> None:
    await q.run("done")
    await q.put("gone", "broken")
    await q.alter(Cancel(job=q.key("gone")))
    await q.settle(fail(await q.take()))
    q.clock.advance(DAY - SECOND)
    assert await q.states("done", "gone", "broken") == ["completed", "cancelled", "failed"]
    q.clock.advance(2 * SECOND)
    assert await q.states("done", "gone", "broken") == [None, None, "failed"]
    q.clock.advance(28 * DAY)
    assert await q.states("broken") == ["failed"]
    q.clock.advance(2 * DAY)
    assert await q.states("broken") == [None]
    await q.tick()
    assert await q.counts() == {}


async def test_retention_by_age_is_declared_per_state(q: Desk) -> None:
    await keep(q, completed_ms=5 * SECOND, failed_ms=20 * SECOND)
    await q.run("done")
    await q.put("broken", "gone")
    await q.settle(fail(await q.take()))
    await q.alter(Cancel(job=q.key("gone")))
    q.clock.advance(6 * SECOND)
    assert await q.states("done", "broken", "gone") == [None, "failed", "cancelled"]
    q.clock.advance(400 * DAY)
    assert await q.states("done", "broken", "gone") == [None, None, "cancelled"]


async def test_retention_by_count_removes_the_oldest(q: Desk) -> None:
    await keep(q, count=3)
    for n in range(6):
        await q.run(f"j{n}")
        q.clock.advance(SECOND)
    await q.tick()
    assert await q.states(*(f"j{n}" for n in range(6))) == [
        None,
        None,
        None,
        "completed",
        "completed",
        "completed",
    ]
    assert await q.counts() == {"completed": 3}


async def test_a_large_count_keeps_the_newest_and_at_most_one_per_cent_more(q: Desk) -> None:
    await keep(q, count=1_200)
    for start in range(0, 1_600, 200):
        await q.put(*(f"j{n:04}" for n in range(start, start + 200)))
        await q.settle(*(complete(lease) for lease in await q.claim(200)))
        q.clock.advance(SECOND)
        while await q.store.tick():
            pass
        kept = (await q.counts())["completed"]
        assert min(start + 200, 1_200) <= kept <= 1_212
    assert await q.look("j0000") is None
    assert await q.states("j0400", "j1599") == ["completed"] * 2


async def test_retention_by_count_is_per_state(q: Desk) -> None:
    await keep(q, count=1)
    await q.run("done")
    await q.put("broken", "gone")
    await q.settle(fail(await q.take()))
    await q.alter(Cancel(job=q.key("gone")))
    await q.tick()
    assert await q.states("done", "broken", "gone") == ["completed", "failed", "cancelled"]


async def test_age_and_count_are_applied_to_each_state_by_itself(q: Desk) -> None:
    await keep(q, completed_ms=5 * SECOND, count=1)
    for n in range(3):
        await q.run(f"done{n}")
    q.clock.advance(6 * SECOND)
    await q.put(*(f"broken{n}" for n in range(4)))
    await q.settle(*(fail(lease) for lease in await q.claim(4)))
    await q.tick()
    assert await q.counts() == {"failed": 1}


async def test_trimming_by_count_never_removes_an_id_a_caller_gave(q: Desk) -> None:
    await keep(q, count=2)
    for n in range(4):
        await q.run(f"given{n}", given_id=True)
        await q.run(f"made{n}")
        q.clock.advance(SECOND)
    await q.tick()
    assert await q.states(*(f"given{n}" for n in range(4))) == ["completed"] * 4
    assert [s for s in await q.states("made0", "made1") if s] == []


async def test_ids_that_callers_gave_do_not_push_out_the_others(q: Desk) -> None:
    await keep(q, count=2)
    for n in range(3):
        await q.run(f"given{n}", given_id=True)
        await q.run(f"timed{n}", result_ttl_ms=DAY)
    await q.run("made0")
    await q.run("made1")
    await q.tick()
    assert await q.states("made0", "made1") == ["completed"] * 2


async def test_an_id_a_caller_gave_still_goes_by_age(q: Desk) -> None:
    await keep(q, completed_ms=10 * SECOND)
    await q.run("a", given_id=True)
    q.clock.advance(11 * SECOND)
    assert await q.look("a") is None


async def test_an_explicit_result_ttl_wins_over_retention_by_age(q: Desk) -> None:
    await keep(q, completed_ms=10 * SECOND)
    await q.run("long", result_ttl_ms=30 * SECOND)
    await q.run("short", result_ttl_ms=5 * SECOND)
    q.clock.advance(6 * SECOND)
    assert await q.states("long", "short") == ["completed", None]
    q.clock.advance(5 * SECOND)
    await q.tick()
    assert await q.states("long") == ["completed"]
    q.clock.advance(20 * SECOND)
    assert await q.states("long") == [None]


async def test_an_explicit_result_ttl_wins_over_trimming_by_count(q: Desk) -> None:
    await keep(q, count=1)
    await q.run("mine", result_ttl_ms=DAY)
    for n in range(3):
        await q.run(f"j{n}")
        q.clock.advance(SECOND)
    await q.tick()
    assert await q.states("mine", "j0", "j1") == ["completed", None, None]


async def test_applying_retention_is_bounded(q: Desk) -> None:
    await q.put(*(f"j{n}" for n in range(30)), result_ttl_ms=SECOND)
    await q.settle(*(complete(lease) for lease in await q.claim(30)))
    q.clock.advance(2 * SECOND)
    assert await q.store.tick(limit=10) == 10
    await q.tick()
    assert await q.counts() == {}
