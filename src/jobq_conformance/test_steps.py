"""Steps of running jobs: note stores each under its name, and the job's next run gets them all."""

from __future__ import annotations

import asyncio

import pytest

from jobq.core.records.commands import Cancel, Remove, Rerun, SendSignal
from jobq.core.records.jobs import Filter, Lease, LeaseState, Note
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.core.records.states import State
from jobq.core.values.checks import MAX_STEPS, MAX_STEPS_BYTES
from jobq.errors import InvalidJob, PayloadTooLarge
from jobq_conformance.kit import (
    HOUR,
    SECOND,
    Desk,
    block,
    complete,
    fail,
    hold,
    ref,
    release,
    retry,
    snooze,
)
from jobq_conformance.roles import needs

pytestmark = needs("notes", "steps")


async def record(q: Desk, lease: Lease, **steps: bytes) -> LeaseState:
    """Record steps under a lease, in one note."""
    (state,) = await q.store.note([Note(lease=ref(lease), steps=tuple(steps.items()))])
    return state


async def stepped(q: Desk, id: str = "a") -> Lease:
    """A running job that has recorded two steps."""
    await q.put(id)
    lease = await q.take("w1", lease_ms=SECOND)
    assert lease.steps == ()
    assert await record(q, lease, charge=b"one") == "held"
    assert await record(q, lease, book=b"two") == "held"
    return lease


BOTH = (("book", b"two"), ("charge", b"one"))


async def test_the_record_of_a_job_has_its_steps_ordered_by_name(q: Desk) -> None:
    await stepped(q)
    assert (await q.get("a")).steps == BOTH


async def test_a_job_without_steps_has_none(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note([Note(lease=ref(lease), saved=b"x", lines=("x",), progress=b"1")])
    assert (await q.get("a")).steps == ()
    await q.settle(retry(lease))
    assert (await q.take()).steps == ()


@pytest.mark.parametrize("end", [retry, release, snooze])
async def test_steps_are_kept_when_the_job_runs_again(q: Desk, end: object) -> None:
    lease = await stepped(q)
    await q.settle(end(lease))  # type: ignore[operator]
    again = await q.take()
    assert (again.attempt, again.steps) == (2, BOTH)


async def test_steps_are_kept_over_a_delay(q: Desk) -> None:
    lease = await stepped(q)
    await q.settle(retry(lease, delay_ms=HOUR))
    assert (await q.get("a")).steps == BOTH
    q.clock.advance(HOUR)
    assert (await q.take()).steps == BOTH


async def test_steps_are_kept_over_a_rate_limit(q: Desk) -> None:
    lease = await stepped(q)
    await q.settle(hold(lease, SECOND))
    q.clock.advance(SECOND)
    assert (await q.take()).steps == BOTH


async def test_steps_are_kept_over_a_stall(q: Desk) -> None:
    await stepped(q)
    q.clock.advance(2 * SECOND)
    again = await q.take("w2")
    assert (again.stalls, again.steps) == (1, BOTH)


@needs("waits", "operators")
async def test_steps_are_kept_over_a_wait_for_a_signal(q: Desk) -> None:
    lease = await stepped(q)
    await q.settle(block(lease, signal="go"))
    assert (await q.get("a")).steps == BOTH
    await q.alter(SendSignal(job=q.key("a"), name="go", value=b"1"))
    again = await q.take()
    assert (again.steps, again.signals) == (BOTH, (("go", b"1"),))


async def test_steps_and_what_is_saved_are_apart(q: Desk) -> None:
    lease = await stepped(q)
    await q.store.note([Note(lease=ref(lease), saved=b"cursor")])
    assert await record(q, lease, saved=b"a step called saved") == "held"
    await q.settle(snooze(lease, saved=None))
    again = await q.take()
    assert again.saved is None
    assert again.steps == (*BOTH, ("saved", b"a step called saved"))


async def test_a_run_sees_the_steps_of_all_earlier_runs(q: Desk) -> None:
    await q.settle(retry(await stepped(q)))
    lease = await q.take()
    await record(q, lease, mail=b"three")
    await q.settle(retry(lease))
    assert (await q.take()).steps == (*BOTH, ("mail", b"three"))


@needs("operators")
async def test_a_rerun_forgets_steps(q: Desk) -> None:
    await q.settle(fail(await stepped(q)))
    assert (await q.get("a")).steps == BOTH
    assert await q.alter(Rerun(job=q.key("a")))
    assert (await q.get("a")).steps == ()
    lease = await q.take()
    assert (lease.life, lease.steps) == (1, ())
    await record(q, lease, mail=b"new")
    await q.settle(retry(lease))
    assert (await q.take()).steps == (("mail", b"new"),)


async def test_a_lost_lease_records_nothing(q: Desk) -> None:
    old = await stepped(q)
    q.clock.advance(2 * SECOND)
    new = await q.take("w2")
    assert await record(q, old, charge=b"late", mail=b"late") == "lost"
    assert (await q.get("a")).steps == BOTH
    assert await record(q, new, mail=b"in time") == "held"
    await q.settle(complete(new))
    assert await record(q, new, more=b"too late") == "lost"
    assert (await q.get("a")).steps == (*BOTH, ("mail", b"in time"))


@needs("operators")
async def test_a_step_of_a_job_that_was_asked_to_stop_is_recorded(q: Desk) -> None:
    lease = await stepped(q)
    await q.alter(Cancel(job=q.key("a")))
    assert await record(q, lease, mail=b"three") == "cancel"
    await q.settle(retry(lease))
    found = await q.get("a")
    assert (found.state, found.steps) == (State.CANCELLED, (*BOTH, ("mail", b"three")))


async def test_a_repeated_call_changes_nothing(q: Desk) -> None:
    lease = await stepped(q)
    assert await record(q, lease, book=b"two", charge=b"one") == "held"
    assert (await q.get("a")).steps == BOTH


async def test_steps_recorded_at_the_same_time_do_not_overwrite_each_other(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    names = [f"page {n:02}" for n in range(20)]
    await asyncio.gather(*(record(q, lease, **{name: name.encode()}) for name in names))
    assert (await q.get("a")).steps == tuple((name, name.encode()) for name in names)


async def test_one_call_records_steps_of_several_jobs(q: Desk) -> None:
    await q.put("a", "b", "c")
    a, b, c = await q.claim(3)
    await q.settle(complete(b))
    notes = [
        Note(lease=ref(a), steps=(("x", b"1"), ("y", b"2")), lines=("one", "two"), progress=b"5"),
        Note(lease=ref(b), steps=(("x", b"3"),)),
        Note(lease=ref(c), steps=(("x", b""),), saved=b"s"),
        Note(lease=ref(a), steps=(("z", b"4"),)),
    ]
    assert await q.store.note(notes) == ["held", "lost", "held", "held"]
    assert [(await q.get(id)).steps for id in "abc"] == [
        (("x", b"1"), ("y", b"2"), ("z", b"4")),
        (),
        (("x", b""),),
    ]
    assert await q.store.logs(q.key("a")) == ["one", "two"]
    assert ((await q.get("a")).progress, (await q.get("c")).saved) == (b"5", b"s")


async def test_names_and_bytes_come_back_as_they_were(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    steps = {"É:☃ \\' %": bytes(range(256)), "e:x": b"\xff", "Z" * 256: b"", "ß": b"\n"}
    await record(q, lease, **steps)
    await q.settle(retry(lease))
    assert (await q.take()).steps == tuple(sorted(steps.items()))


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "{a}"])
async def test_a_bad_name_is_refused_and_nothing_of_the_call_is_stored(q: Desk, name: str) -> None:
    lease = await stepped(q)
    with pytest.raises(InvalidJob, match="step="):
        await record(q, lease, good=b"1", **{name: b"2"})
    assert (await q.get("a")).steps == BOTH


async def test_a_step_over_a_megabyte_is_refused_and_nothing_of_the_call_is_stored(
    q: Desk,
) -> None:
    lease = await stepped(q)
    with pytest.raises(PayloadTooLarge, match="step 'big' cannot be recorded"):
        await record(q, lease, good=b"1", big=b"x" * MAX_STEPS_BYTES)
    assert (await q.get("a")).steps == BOTH
    taken = sum(len(name) + len(data) for name, data in BOTH)
    most = b"x" * (MAX_STEPS_BYTES - len("big") - taken)
    assert await record(q, lease, big=most) == "held"
    assert dict((await q.get("a")).steps)["big"] == most


async def test_a_job_can_record_as_many_steps_as_are_allowed(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    steps = {f"{n:04}": b"%d" % n for n in range(MAX_STEPS)}
    assert await record(q, lease, **steps) == "held"
    await q.settle(retry(lease))
    assert (await q.take()).steps == tuple(steps.items())


@needs("operators")
async def test_steps_are_removed_with_their_job(q: Desk) -> None:
    await q.settle(complete(await stepped(q)))
    assert await q.alter(Remove(job=q.key("a")))
    await q.put("a")
    assert (await q.get("a")).steps == ()
    assert (await q.take()).steps == ()


@needs("operators")
async def test_the_next_job_of_a_cancelled_id_has_no_steps(q: Desk) -> None:
    await q.settle(retry(await stepped(q), delay_ms=HOUR))
    assert await q.alter(Cancel(job=q.key("a")))
    await q.put("a")
    assert (await q.take()).steps == ()


@needs("retention", "limits", "upkeep")
async def test_steps_are_removed_when_the_retention_has_passed(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(retention=RetentionData(completed_ms=SECOND)))
    await q.settle(complete(await stepped(q)))
    q.clock.advance(2 * SECOND)
    while await q.store.tick(limit=100):
        pass
    await q.put("a")
    assert (await q.take()).steps == ()


@needs("reads")
async def test_listings_leave_steps_out(q: Desk) -> None:
    await stepped(q)
    page = await q.store.find(Filter(queue=q.queue), limit=10)
    assert [(found.id, found.steps) for found in page.records] == [("a", ())]


@needs("operators")
async def test_a_restored_job_has_its_steps(q: Desk) -> None:
    await q.settle(fail(await stepped(q)))
    before = await q.get("a")
    assert await q.alter(Remove(job=q.key("a")))
    assert await q.store.restore([before]) == [True]
    assert (await q.get("a")).steps == BOTH
    assert await q.alter(Rerun(job=q.key("a")))
    assert (await q.take()).steps == ()


async def test_steps_leave_no_events(q: Desk) -> None:
    await stepped(q)
    assert await q.kinds("a") == ["accepted", "started"]
