"""put: which jobs are accepted, and what an id means."""

from __future__ import annotations

from jobq.core.records.commands import Cancel, Remove
from jobq.core.records.jobs import JobKey, QueueName, RetryData
from jobq.core.records.states import State
from jobq.stores.base import Store
from jobq_conformance.kit import DAY, SECOND, Desk, complete, fail, fresh_queue
from jobq_conformance.roles import needs

pytestmark = needs("delays", "priorities", "retention", "keyed", "unique")


async def test_a_job_is_waiting_when_put_returns(q: Desk) -> None:
    result = await q.put_one("a", payload=b'[["x"],{}]')
    assert (result.id, result.life, result.state, result.duplicate, result.found) == (
        "a",
        0,
        State.WAITING,
        False,
        None,
    )
    record = await q.get("a")
    assert (record.queue, record.id, record.name, record.payload, record.codec) == (
        q.queue,
        "a",
        "task",
        b'[["x"],{}]',
        "json",
    )
    assert (record.state, record.created_ms, record.due_ms) == (
        State.WAITING,
        q.clock.now_ms,
        q.clock.now_ms,
    )
    assert (
        record.attempt,
        record.failures,
        record.stalls,
        record.started_ms,
        record.finished_ms,
    ) == (0, 0, 0, None, None)


async def test_the_lease_carries_what_the_producer_gave(q: Desk) -> None:
    policy = RetryData(max_retries=0, base_ms=5, delays_ms=(1, 2))
    await q.put_one(
        "a", name="charge", payload=b"\x00\xff{}", codec="msgpack", retry=policy, timeout_ms=0
    )
    lease = await q.take()
    assert (lease.queue, lease.id, lease.name, lease.payload, lease.codec) == (
        q.queue,
        "a",
        "charge",
        b"\x00\xff{}",
        "msgpack",
    )
    assert (lease.retry, lease.timeout_ms, lease.attempt, lease.life) == (policy, 0, 1, 0)
    assert (lease.created_ms, lease.started_ms, lease.expires_ms) == (
        q.clock.now_ms,
        q.clock.now_ms,
        q.clock.now_ms + 30 * SECOND,
    )
    assert (lease.saved, lease.cancel_asked, lease.inputs, lease.signals, lease.key) == (
        None,
        False,
        (),
        (),
        None,
    )


async def test_results_are_in_the_order_of_the_specs(q: Desk) -> None:
    await q.put("b")
    results = await q.put("c", "b", "a")
    assert [(r.id, r.duplicate) for r in results] == [("c", False), ("b", True), ("a", False)]


async def test_nothing_put_is_nothing_done(q: Desk) -> None:
    assert await q.store.put([]) == []
    assert await q.counts() == {}


async def test_a_live_id_is_a_duplicate_and_nothing_changes(q: Desk) -> None:
    await q.put_one("a", payload=b"1")
    before = await q.get("a")
    result = await q.put_one("a", payload=b"2", priority=9, delay_ms=SECOND)
    assert (result.id, result.life, result.state, result.duplicate) == ("a", 0, State.WAITING, True)
    assert result.found == before == await q.get("a")
    assert await q.counts() == {"waiting": 1}
    assert await q.kinds("a") == ["accepted"]


async def test_an_id_repeated_in_one_call_is_accepted_once(q: Desk) -> None:
    results = await q.put("a", "a")
    assert [r.duplicate for r in results] == [False, True]
    assert await q.claim_ids() == ["a"]


async def test_a_running_id_is_a_duplicate_in_state_active(q: Desk) -> None:
    await q.put_one("a")
    await q.take()
    result = await q.put_one("a")
    assert (result.duplicate, result.state) == (True, State.ACTIVE)


async def test_a_completed_id_is_a_duplicate_with_the_cached_result(q: Desk) -> None:
    await q.put_one("a")
    await q.settle(complete(await q.take(), b'"done"'))
    result = await q.put_one("a")
    assert (result.duplicate, result.state) == (True, State.COMPLETED)
    assert result.found is not None
    assert result.found.result == b'"done"'
    assert await q.claim_ids() == []


async def test_a_failed_id_stays_a_duplicate(q: Desk) -> None:
    await q.put_one("a")
    await q.settle(fail(await q.take(), "no"))
    result = await q.put_one("a")
    assert (result.duplicate, result.state) == (True, State.FAILED)
    assert result.found is not None
    assert result.found.failure is not None
    assert result.found.failure.message == "no"
    assert await q.counts() == {"failed": 1}


async def test_a_cancelled_id_is_free_at_once_in_a_new_life(q: Desk) -> None:
    await q.put_one("a", payload=b"1")
    assert await q.alter(Cancel(job=q.key("a")))
    result = await q.put_one("a", payload=b"2")
    assert (result.duplicate, result.life, result.state) == (False, 1, State.WAITING)
    lease = await q.take()
    assert (lease.life, lease.payload, lease.attempt) == (1, b"2", 1)
    assert await q.claim() == []
    assert await q.counts() == {"active": 1}


async def test_a_cancelled_life_leaves_no_place_for_the_next(q: Desk) -> None:
    await q.put("a", "b")
    await q.alter(Cancel(job=q.key("a")))
    await q.put_one("a", priority=0)
    assert await q.claim_ids() == ["b", "a"]


async def test_an_id_is_free_when_its_retention_has_passed(q: Desk) -> None:
    await q.run("a", result_ttl_ms=10 * SECOND)
    q.clock.advance(11 * SECOND)
    result = await q.put_one("a")
    assert (result.duplicate, result.state) == (False, State.WAITING)
    assert await q.claim_ids() == ["a"]
    assert await q.counts() == {"active": 1}


async def test_an_id_is_free_after_its_record_was_removed(q: Desk) -> None:
    await q.run("a")
    assert await q.alter(Remove(job=q.key("a")))
    assert not (await q.put_one("a")).duplicate


async def test_ids_are_unique_per_queue_and_tenant_only(q: Desk) -> None:
    beside = q.beside("other")
    stranger = Desk(q.store, QueueName(fresh_queue().tenant, q.queue.queue), q.clock, q.audited)
    for desk in (q, beside, stranger):
        assert not (await desk.put_one("a")).duplicate
        assert await desk.counts() == {"waiting": 1}
    assert await q.claim_ids() == ["a"]
    assert await beside.counts() == await stranger.counts() == {"waiting": 1}


async def test_one_call_may_put_into_several_queues(q: Desk) -> None:
    beside = q.beside("other")
    results = await q.store.put([q.spec("a"), beside.spec("b"), q.spec("c"), beside.spec("a")])
    assert [r.id for r in results] == ["a", "b", "c", "a"]
    assert await q.claim_ids() == ["a", "c"]
    assert await beside.claim_ids() == ["b", "a"]


async def test_what_one_handle_puts_the_other_sees(q_twice: tuple[Desk, Desk]) -> None:
    first, second = q_twice
    await first.put("a", "b")
    assert await second.counts() == {"waiting": 2}
    assert (await second.put_one("a")).duplicate
    assert await second.claim_ids() == ["a", "b"]
    assert await first.states("a", "b") == ["active", "active"]


async def test_a_large_batch_goes_in_whole_and_in_order(q: Desk) -> None:
    ids = [f"j{n:04}" for n in range(1500)]
    results = await q.put(*ids)
    assert [r.id for r in results] == ids
    assert await q.counts() == {"waiting": 1500}
    assert await q.claim_ids(2000) == ids


async def test_payloads_are_kept_to_the_byte(q: Desk) -> None:
    payloads = [b"", bytes(range(256)), "žluťoučký kůň ☃".encode(), b"x" * 200_000]
    for n, payload in enumerate(payloads):
        await q.put_one(f"j{n}", payload=payload, codec="raw")
    assert [lease.payload for lease in await q.claim(10)] == payloads
    assert [(await q.get(f"j{n}")).payload for n in range(len(payloads))] == payloads


async def test_ids_may_hold_any_printable_text(q: Desk) -> None:
    ids = ["ünï-cødé ☃", "with space", "a:b/c|d@e", "'; DROP TABLE jobs; --", "x" * 256, "%_*?[a]"]
    await q.put(*ids)
    assert await q.claim_ids() == ids
    assert await q.states(*ids) == ["active"] * len(ids)


async def test_a_put_repeated_after_a_lost_reply_acts_once(q: Desk) -> None:
    specs = [q.spec("a"), q.spec("b", delay_ms=DAY)]
    first = await q.store.put(specs)
    second = await q.store.put(specs)
    assert [(r.id, r.state) for r in first] == [(r.id, r.state) for r in second]
    assert [r.duplicate for r in second] == [True, True]
    assert await q.counts() == {"waiting": 1, "delayed": 1}


async def test_get_answers_in_order_and_none_where_nothing_is(q: Desk, store: Store) -> None:
    await q.put("a", "b")
    got = await store.get(
        [q.key("b"), q.key("nobody"), JobKey(QueueName("nobody", "nothing"), "a"), q.key("a")]
    )
    assert [None if r is None else r.id for r in got] == ["b", None, None, "a"]


async def test_origin_and_schedule_are_kept(q: Desk) -> None:
    await q.put_one("a", origin="dead/x", schedule="nightly")
    record = await q.get("a")
    assert (record.origin, record.schedule) == ("dead/x", "nightly")
