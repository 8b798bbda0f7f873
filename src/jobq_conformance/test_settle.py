"""settle: the outcomes of runs."""

from __future__ import annotations

from msgspec.structs import replace

from jobq.core.records.jobs import Complete
from jobq.core.records.states import State
from jobq_conformance.kit import (
    LEASE,
    SECOND,
    Desk,
    complete,
    fail,
    failure,
    release,
    retry,
    snooze,
)
from jobq_conformance.roles import needs

pytestmark = needs("delays", "leases")


async def test_a_completed_job_keeps_its_result(q: Desk) -> None:
    await q.put("a")
    lease = await q.take("bee")
    q.clock.advance(SECOND)
    await q.settle(complete(lease, b'{"ok":true}'), worker="bee")
    record = await q.get("a")
    assert (record.state, record.result, record.failure) == (State.COMPLETED, b'{"ok":true}', None)
    assert (record.started_ms, record.finished_ms) == (q.clock.now_ms - SECOND, q.clock.now_ms)
    assert record.worker == "bee"
    assert await q.claim() == []


async def test_a_result_may_be_nothing_or_any_bytes(q: Desk) -> None:
    results = [None, b"", b"null", bytes(range(256))]
    await q.put(*(f"j{n}" for n in range(4)))
    leases = await q.claim(4)
    await q.settle(
        *(complete(lease, result) for lease, result in zip(leases, results, strict=True))
    )
    assert [(await q.get(f"j{n}")).result for n in range(4)] == results


async def test_a_failed_job_keeps_the_failure_of_its_outcome(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.settle(fail(lease, "no such tenant", "rejected"))
    record = await q.get("a")
    assert (record.state, record.failures, record.result, record.finished_ms) == (
        State.FAILED,
        1,
        None,
        q.clock.now_ms,
    )
    assert record.failure == replace(failure(lease, "no such tenant", "rejected"), worker="w1")


async def test_a_retried_job_counts_a_failure_and_keeps_the_last_one(q: Desk) -> None:
    await q.put("a")
    for n in (1, 2):
        await q.settle(retry(await q.take(), message=f"boom {n}"))
        record = await q.get("a")
        assert (record.state, record.attempt, record.failures, record.stalls) == (
            State.WAITING,
            n,
            n,
            0,
        )
        assert record.failure is not None
        assert record.failure.message == f"boom {n}"


async def test_a_completed_job_remembers_its_failures(q: Desk) -> None:
    await q.put("a")
    await q.settle(retry(await q.take()))
    await q.settle(complete(await q.take()))
    record = await q.get("a")
    assert (record.state, record.attempt, record.failures) == (State.COMPLETED, 2, 1)


async def test_snooze_and_release_cost_neither_a_retry_nor_a_stall(q: Desk) -> None:
    await q.put("a")
    await q.settle(snooze(await q.take()))
    await q.settle(release(await q.take()))
    record = await q.get("a")
    assert (record.state, record.attempt, record.failures, record.stalls) == (
        State.WAITING,
        2,
        0,
        0,
    )
    assert await q.kinds("a") == ["accepted", "started", "snoozed", "started", "released"]


async def test_what_a_snooze_saved_outlives_a_stall_and_a_retry(q: Desk) -> None:
    await q.put("a")
    await q.settle(snooze(await q.take(), saved=b"1"))
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    lease = await q.take()
    assert lease.saved == b"1"
    await q.settle(retry(lease))
    assert (await q.take()).saved == b"1"


async def test_one_exchange_takes_any_mix_of_outcomes(q: Desk) -> None:
    await q.put("a", "b", "c", "d", "e")
    a, b, c, d, e = await q.claim(5)
    await q.settle(complete(a), retry(b, SECOND), fail(c), snooze(d, SECOND), release(e))
    assert await q.states("a", "b", "c", "d", "e") == [
        "completed",
        "delayed",
        "failed",
        "delayed",
        "waiting",
    ]
    assert await q.counts() == {"completed": 1, "delayed": 2, "failed": 1, "waiting": 1}


async def test_one_exchange_settles_jobs_of_several_queues(q: Desk) -> None:
    beside = q.beside("other")
    await q.put("a")
    await beside.put("a")
    settled = await q.exchange(then=q.claiming(2, queues=(q.queue, beside.queue)))
    await q.settle(*(complete(lease) for lease in settled.leases))
    assert await q.states("a") == await beside.states("a") == ["completed"]


async def test_an_outcome_with_a_made_up_token_is_stale(q: Desk) -> None:
    await q.put("a", "b")
    lease = await q.take()
    forged = Complete(queue=q.queue, id="a", token="nonsense", result=b"evil")
    waiting = Complete(queue=q.queue, id="b", token=lease.token, result=b"evil")
    nobody = Complete(queue=q.queue, id="nobody", token=lease.token, result=b"evil")
    settled = await q.exchange(forged, waiting, nobody)
    assert [r.id for r in settled.stale] == ["a", "b", "nobody"]
    assert [r.token for r in settled.stale] == ["nonsense", lease.token, lease.token]
    assert await q.states("a", "b", "nobody") == ["active", "waiting", None]


async def test_a_stale_lease_cannot_settle(q: Desk) -> None:
    await q.put("a")
    old = await q.take("w1", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    new = await q.take("w2")
    settled = await q.exchange(complete(old, b"old"), worker="w1")
    assert [r.token for r in settled.stale] == [old.token]
    assert await q.state("a") is State.ACTIVE
    await q.settle(complete(new, b"new"), worker="w2")
    assert (await q.get("a")).result == b"new"


async def test_an_ended_job_cannot_be_settled_again(q: Desk) -> None:
    await q.put("a")
    old = await q.take("w1", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.settle(complete(await q.take("w2"), b"new"), worker="w2")
    settled = await q.exchange(fail(old), worker="w1")
    assert [r.id for r in settled.stale] == ["a"]
    record = await q.get("a")
    assert (record.state, record.result, record.failures) == (State.COMPLETED, b"new", 0)


async def test_a_stale_outcome_does_not_hold_up_the_others(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    await q.settle(complete(a))
    await q.put("c")
    settled = await q.exchange(
        complete(b), Complete(queue=q.queue, id="c", token=a.token), then=q.claiming()
    )
    assert [r.id for r in settled.stale] == ["c"]
    assert [lease.id for lease in settled.leases] == ["c"]
    assert await q.state("b") is State.COMPLETED


async def test_an_expired_lease_still_settles_until_another_worker_claims_the_job(q: Desk) -> None:
    await q.put("a")
    lease = await q.take(lease_ms=SECOND)
    q.clock.advance(LEASE)
    await q.settle(complete(lease))
    record = await q.get("a")
    assert (record.state, record.stalls) == (State.COMPLETED, 0)


async def test_a_token_of_an_earlier_run_of_the_same_worker_is_stale(q: Desk) -> None:
    await q.put("a")
    first = await q.take()
    await q.settle(release(first))
    second = await q.take()
    assert first.token != second.token
    assert len((await q.exchange(complete(first))).stale) == 1
    await q.settle(complete(second))


async def test_settling_without_claiming_claims_nothing(q: Desk) -> None:
    await q.put("a", "b")
    settled = await q.exchange(complete(await q.take()))
    assert settled.leases == ()
    assert await q.state("b") is State.WAITING
