"""Jobs move to another store once, whole and in their order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jobq.core.records.commands import Reschedule
from jobq.core.records.jobs import Note, UniqueSpec
from jobq.core.records.queues import Limits
from jobq.core.records.states import State
from jobq.core.rules import copies
from jobq.core.rules.options import FIELDS
from jobq.errors import ConfigError
from jobq_conformance.kit import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    complete,
    fail,
    read_all,
    ref,
    retry,
    snooze,
)
from jobq_conformance.spec_values import example
from tests.store_copy.conftest import Copying

ELSEWHERE = ("at_ms", "delay_ms", "after", "reserved")
"""The test sets the time, a delay moves as a time, jobs of flows stay, `reserved` is unused."""
EVERY_FIELD: dict[str, Any] = {
    "name": "charge",
    "payload": b'[["acme"],{"invoice":7}]',
    **{option.field: example(option) for option in FIELDS if option.field not in ELSEWHERE},
}


async def test_every_field_of_a_spec_survives(both: Copying) -> None:
    spec = both.here.spec("a", **{**EVERY_FIELD, "at_ms": both.clock() + HOUR})
    await both.here.store.put([spec])
    report = await both.copy()
    assert (report.moved, report.delayed, report.complete) == (1, 1, True)
    record = await both.there.get("a")
    assert record.due_ms is not None
    copied = copies.spec_of(record, due_ms=record.due_ms, now_ms=both.clock())
    assert msgspec.structs.asdict(copied) == msgspec.structs.asdict(spec)
    assert await both.here.states("a") == ["cancelled"]


async def test_waiting_jobs_keep_their_order(both: Copying) -> None:
    ids = [f"j{n:04}" for n in range(1203)]
    await both.here.put(*ids)
    report = await both.copy()
    assert (report.waiting, report.complete) == (1203, True)
    assert await both.there.claim_ids(2000) == ids
    assert await both.here.claim_ids(10) == []


async def test_priorities_and_lifo_keep_their_order(both: Copying) -> None:
    for n in range(4):
        await both.here.put_one(f"low{n}")
        await both.here.put_one(f"high{n}", priority=5)
        await both.here.put_one(f"front{n}", lifo=True)
    await both.copy()
    expected = [f"high{n}" for n in range(4)]
    expected += [f"front{n}" for n in (3, 2, 1, 0)] + [f"low{n}" for n in range(4)]
    assert await both.there.claim_ids() == expected


async def test_each_key_keeps_its_order(both: Copying) -> None:
    for n in range(3):
        for key in ("a", "b"):
            await both.here.put_one(f"{key}{n}", key=key)
    await both.copy()
    seen: list[str] = []
    while leases := await both.there.claim(10):
        seen += [lease.id for lease in leases]
        await both.there.settle(*[complete(lease) for lease in leases])
    for key in ("a", "b"):
        assert [id for id in seen if id[0] == key] == [f"{key}{n}" for n in range(3)]
    assert len(seen) == 6


async def test_delays_become_times(both: Copying) -> None:
    await both.here.put_one("soon", delay_ms=MINUTE)
    await both.here.put_one("late", delay_ms=DAY)
    due = {id: (await both.here.get(id)).due_ms for id in ("soon", "late")}
    both.clock.advance(10 * SECOND)
    await both.copy()
    assert {id: (await both.there.get(id)).due_ms for id in ("soon", "late")} == due
    both.clock.advance(MINUTE)
    assert await both.there.claim_ids() == ["soon"]


async def test_a_time_in_the_year_9999_moves(both: Copying) -> None:
    never = 253_000_000_000_000
    await both.here.put_one("never", at_ms=never)
    assert (await both.copy()).complete
    assert (await both.there.get("never")).due_ms == never


async def test_a_ttl_goes_on_where_it_was(both: Copying) -> None:
    await both.here.put_one("a", ttl_ms=MINUTE)
    both.clock.advance(50 * SECOND)
    await both.copy()
    both.clock.advance(11 * SECOND)
    assert await both.there.claim_ids() == []
    assert (await both.there.get("a")).state is State.FAILED


async def test_a_retry_moves_with_its_time_and_counts_from_zero(both: Copying) -> None:
    await both.here.put_one("a", ttl_ms=MINUTE)
    await both.here.settle(retry(await both.here.take(), delay_ms=HOUR))
    assert (await both.copy()).complete
    record = await both.there.get("a")
    assert (record.state, record.attempt, record.failures) == (State.DELAYED, 0, 0)
    both.clock.advance(HOUR)
    assert await both.there.claim_ids() == ["a"]


async def test_a_unique_lock_holds_in_the_target(both: Copying) -> None:
    await both.here.put_one("a", unique=UniqueSpec(lock="one"))
    await both.copy()
    second = await both.there.put_one("b", unique=UniqueSpec(lock="one"))
    assert (second.id, second.duplicate) == ("a", True)
    assert not (await both.here.put_one("c", unique=UniqueSpec(lock="one"))).duplicate


async def test_a_job_whose_lock_is_held_in_the_target_stays(both: Copying) -> None:
    await both.there.put_one("holder", unique=UniqueSpec(lock="one"))
    await both.here.put_one("a", unique=UniqueSpec(lock="one"))
    report = await both.copy()
    assert (report.moved, report.stayed) == (0, {"unique": 1})
    both.clock.advance(MINUTE)
    assert await both.here.claim_ids() == ["a"]
    assert await both.there.look("a") is None


async def test_a_full_target_takes_what_fits(both: Copying) -> None:
    await both.here.put("a", "b", "c")
    await both.there.put_one("first")
    await both.there.store.set_limits(both.there.queue, Limits(max_waiting=3))
    report = await both.copy()
    assert (report.waiting, report.stayed) == (2, {"full": 1})
    assert await both.there.claim_ids() == ["first", "a", "b"]
    both.clock.advance(MINUTE)
    assert await both.here.claim_ids() == ["c"]


async def test_flows_stay_whole(both: Copying) -> None:
    await both.here.put_one("child")
    await both.here.put_one("parent", after=(both.here.edge("child"),))
    await both.here.put_one("alone")
    report = await both.copy()
    assert (report.moved, report.stayed) == (1, {"flow": 2})
    assert await both.here.states("child", "parent") == ["waiting", "blocked"]
    both.clock.advance(MINUTE)
    await both.here.settle(complete(await both.here.take()))
    assert await both.here.claim_ids() == ["parent"]


async def test_an_unfinished_job_that_has_recorded_steps_stays_with_them(both: Copying) -> None:
    await both.here.put("a", "b")
    lease, other = await both.here.claim(2)
    await both.here.store.note([Note(lease=ref(lease), steps=(("charge", b"1"),))])
    await both.here.settle(retry(lease), retry(other))
    report = await both.copy()
    assert (report.moved, report.stayed) == (1, {"saved": 1})
    assert await both.there.look("a") is None
    both.clock.advance(MINUTE)
    left = await both.here.take()
    assert (left.id, left.steps) == ("a", (("charge", b"1"),))


async def test_a_failed_job_moves_with_its_steps(both: Copying) -> None:
    await both.here.put_one("a")
    lease = await both.here.take()
    await both.here.store.note([Note(lease=ref(lease), steps=(("charge", b"1"), ("ship", b"")))])
    await both.here.settle(fail(lease))
    report = await both.copy()
    assert (report.moved, report.stayed) == (1, {})
    assert (await both.there.get("a")).steps == (("charge", b"1"), ("ship", b""))


async def test_a_job_with_a_saved_state_stays(both: Copying) -> None:
    await both.here.put_one("a")
    await both.here.settle(snooze(await both.here.take(), delay_ms=HOUR, saved=b"1"))
    report = await both.copy()
    assert (report.moved, report.stayed) == (0, {"saved": 1})
    assert (await both.here.get("a")).saved == b"1"
    assert await both.there.look("a") is None


async def test_a_running_job_ends_in_the_source(both: Copying) -> None:
    await both.here.put("running", "next")
    lease = await both.here.take()
    report = await both.copy(wait_s=0)
    assert (report.waiting, report.active, report.complete) == (1, 1, False)
    await both.here.settle(retry(lease))
    report = await both.copy()
    assert (report.waiting, report.complete) == (1, True)
    assert await both.there.claim_ids() == ["next", "running"]


async def test_nothing_moves_while_jobs_are_active(both: Copying) -> None:
    await both.here.put("running", "next")
    await both.here.take()
    with pytest.raises(ConfigError, match="still has 1 active jobs"):
        await both.copy(wait_s=0.2)
    assert await both.there.look("next") is None
    assert await both.here.states("next") == ["waiting"]


async def test_no_worker_claims_from_the_source_while_it_moves(both: Copying) -> None:
    await both.here.put("a", "b")
    claimed: list[str] = []
    put = both.there.store.put

    async def put_while_a_worker_claims(*args: Any, **options: Any) -> Any:
        claimed.extend(await both.here.claim_ids())
        await both.here.store.resume(both.here.queue)  # even if someone lifts the hold
        claimed.extend(await both.here.claim_ids())
        return await put(*args, **options)

    both.there.store.put = put_while_a_worker_claims  # type: ignore[method-assign]
    report = await both.copy()
    assert (claimed, report.waiting) == ([], 2)


async def test_a_copy_that_died_after_the_hold_is_continued_in_order(both: Copying) -> None:
    ids = [f"z{n}" for n in (3, 1, 2)]  # not the order of the text
    await both.here.put(*ids)
    due = [(await both.here.get(id)).due_ms or 0 for id in ids]
    await both.here.store.alter(
        [
            Reschedule(job=both.here.key(id), at_ms=time)
            for id, time in zip(ids, copies.held_times(due), strict=True)
        ]
    )
    assert await both.here.claim_ids() == []
    both.clock.advance(SECOND)
    report = await both.copy()
    assert (report.waiting, report.complete) == (3, True)
    assert await both.there.claim_ids() == ids


async def test_a_copy_that_died_before_the_removal_is_continued(both: Copying) -> None:
    await both.here.put("a", "b")
    alter = both.here.store.alter

    async def die(commands: Any) -> Any:
        if type(commands[0]).__name__ == "Remove":
            raise KeyboardInterrupt
        return await alter(commands)

    both.here.store.alter = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        await both.copy()
    both.here.store.alter = alter  # type: ignore[method-assign]
    await both.there.settle(complete(await both.there.take()))
    both.clock.advance(HOUR)  # the hold is over, and still no job is in circulation twice
    assert await both.here.claim_ids() == []
    report = await both.copy()
    assert report.complete
    assert await both.here.states("a", "b") == ["cancelled", "cancelled"]
    assert await both.there.claim_ids() == ["b"]


async def test_dead_letters_move_with_their_errors(both: Copying) -> None:
    await both.here.put("a", "b", "waiting", meta={"trace": "1"})
    await both.here.settle(fail(await both.here.take(), "boom"))
    both.clock.advance(SECOND)
    await both.here.settle(fail(await both.here.take(), "bang"))
    before = await both.here.store.get([both.here.key("a"), both.here.key("b")])
    both.clock.advance(MINUTE)
    report = await both.copy()
    assert (report.waiting, report.failed, report.complete) == (1, 2, True)
    after = await both.there.store.get([both.there.key("a"), both.there.key("b")])
    now = both.clock()
    assert after == [msgspec.structs.replace(r, finished_ms=now) for r in before if r]
    assert await both.here.look("a") is None
    listed = await read_all(both.there.store, both.there.queue, State.FAILED)
    assert {r.id for r in listed} == {"a", "b"}


async def test_a_copy_that_died_among_dead_letters_is_continued(both: Copying) -> None:
    await both.here.put("a")
    await both.here.settle(fail(await both.here.take()))
    await both.there.store.restore([await both.here.get("a")])
    report = await both.copy()
    assert (report.failed, report.complete) == (1, True)
    assert await both.here.look("a") is None


async def test_a_dead_letter_whose_id_is_in_use_stays(both: Copying) -> None:
    await both.here.put("a")
    await both.here.settle(fail(await both.here.take()))
    both.clock.advance(MINUTE)
    await both.there.put("a")
    report = await both.copy()
    assert (report.failed, report.stayed) == (0, {"id": 1})
    assert await both.here.states("a") == ["failed"]


@pytest.mark.parametrize("held_ms", [0, DAY])
async def test_a_copy_of_a_store_to_itself_is_refused_and_loses_nothing(
    both: Copying, held_ms: int
) -> None:
    await both.here.put("a")
    await both.here.settle(fail(await both.here.take()))
    await both.here.put("b")
    if held_ms:
        await both.here.store.hold(both.here.queue, held_ms)
    both.there = both.here  # two URLs may lead to one store
    with pytest.raises(ConfigError, match="are the same store"):
        await both.copy()
    assert await both.here.states("a", "b") == ["failed", "waiting"]
