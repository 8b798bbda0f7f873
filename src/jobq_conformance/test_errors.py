"""errors: the last failed runs of a job, with worker and time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jobq.core.records.commands import Cancel, Remove, Rerun
from jobq.core.records.failures import MAX_ERRORS
from jobq.core.records.jobs import Failure, Lease
from jobq.core.records.states import State
from jobq_conformance.kit import (
    SECOND,
    Desk,
    complete,
    fail,
    read_all,
    release,
    retry,
    snooze,
)
from jobq_conformance.roles import needs

pytestmark = needs("delays")


def runs(errors: tuple[Failure, ...]) -> list[tuple[int, str | None, str]]:
    """The attempt, worker and message of failed runs."""
    return [(error.attempt, error.worker, error.message) for error in errors]


async def fail_run(q: Desk, message: str, worker: str = "w1") -> Lease:
    """One run that fails and is retried at once."""
    lease = await q.take(worker)
    await q.settle(retry(lease, message=message), worker=worker)
    return lease


async def test_a_job_keeps_its_failed_runs_oldest_first(q: Desk) -> None:
    await q.put("a")
    assert (await q.get("a")).errors == ()
    await fail_run(q, "one", "w1")
    began = q.clock()
    q.clock.advance(SECOND)
    await fail_run(q, "two", "w2")
    lease = await q.take("w3")
    await q.settle(fail(lease, "three", reason="timeout"), worker="w3")
    record = await q.get("a")
    assert runs(record.errors) == [(1, "w1", "one"), (2, "w2", "two"), (3, "w3", "three")]
    assert [error.at_ms for error in record.errors] == [began, began + SECOND, began + SECOND]
    assert [error.reason for error in record.errors] == ["error", "error", "timeout"]
    assert [(error.type, error.traceback, error.fingerprint) for error in record.errors] == [
        ("ValueError", "Traceback …", "f00d")
    ] * 3
    assert record.failure == record.errors[-1]


async def test_the_last_ten_failed_runs_are_kept(q: Desk) -> None:
    await q.put("a")
    for n in range(1, MAX_ERRORS + 4):
        await fail_run(q, str(n))
    assert [error.attempt for error in (await q.get("a")).errors] == list(range(4, MAX_ERRORS + 4))


async def test_runs_that_did_not_fail_leave_no_error(q: Desk) -> None:
    await q.put("a")
    await q.settle(snooze(await q.take()))
    await q.settle(release(await q.take()))
    await fail_run(q, "once")
    await q.settle(complete(await q.take()))
    record = await q.get("a")
    assert (record.state, record.attempt) == (State.COMPLETED, 4)
    assert runs(record.errors) == [(3, "w1", "once")]


async def test_a_stall_is_a_failed_run(q: Desk) -> None:
    await q.put_one("a", max_stalls=1)
    await fail_run(q, "first")
    await q.take("w2", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    record = await q.get("a")
    assert (record.state, record.stalls, record.failures) == (State.WAITING, 1, 1)
    assert [(e.reason, e.attempt, e.worker, e.at_ms, e.exhausted) for e in record.errors] == [
        ("error", 1, "w1", q.clock() - 2 * SECOND, False),
        ("stalled", 2, "w2", q.clock(), False),
    ]
    assert record.failure == record.errors[-1]
    await q.take("w3", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    record = await q.get("a")
    assert record.state is State.FAILED
    assert [(e.reason, e.worker, e.exhausted) for e in record.errors[1:]] == [
        ("stalled", "w2", False),
        ("stalled", "w3", True),
    ]
    assert record.failure == record.errors[-1]


async def test_a_job_asked_to_stop_keeps_how_its_run_failed(q: Desk) -> None:
    await q.put("raised", "stalled")
    raised, _ = await q.claim(2, lease_ms=SECOND)
    for id in ("raised", "stalled"):
        await q.alter(Cancel(job=q.key(id)))
    await q.settle(retry(raised))
    q.clock.advance(2 * SECOND)
    await q.tick()
    for id, reason in (("raised", "error"), ("stalled", "stalled")):
        record = await q.get(id)
        assert (record.state, [error.reason for error in record.errors]) == (
            State.CANCELLED,
            [reason],
        )


async def test_what_fails_without_a_run_is_no_error_of_a_run(q: Desk) -> None:
    await q.put_one("late", ttl_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.tick()
    late = await q.get("late")
    assert late.failure is not None
    assert (late.failure.reason, late.failure.worker, late.failure.exhausted, late.errors) == (
        "expired",
        None,
        False,
        (),
    )
    await q.put("child")
    await q.put_one("parent", after=(q.edge("child"),))
    lease = await q.take()
    why = replace(fail(lease), failure=replace(fail(lease).failure, exhausted=True))
    await q.settle(why)
    await q.tick()
    parent = await q.get("parent")
    assert parent.failure is not None
    assert (parent.failure.reason, parent.failure.worker, parent.failure.exhausted) == (
        "child",
        None,
        False,
    )
    assert parent.errors == ()
    child = await q.get("child")
    assert child.failure is not None
    assert (child.failure.exhausted, [error.exhausted for error in child.errors]) == (True, [True])


async def test_errors_are_kept_across_a_rerun_and_the_failure_is_not(q: Desk) -> None:
    await q.put("a")
    await q.settle(fail(await q.take(), "first life"))
    await q.alter(Rerun(job=q.key("a")))
    record = await q.get("a")
    assert (record.failure, runs(record.errors)) == (None, [(1, "w1", "first life")])
    lease = await q.take("w2")
    await q.settle(fail(lease, "second life"), worker="w2")
    record = await q.get("a")
    assert runs(record.errors) == [(1, "w1", "first life"), (2, "w2", "second life")]
    assert record.failure == record.errors[-1]
    await q.alter(Rerun(job=q.key("a")))
    await q.settle(complete(await q.take()))
    record = await q.get("a")
    assert (record.state, record.failure, len(record.errors)) == (State.COMPLETED, None, 2)


async def test_a_listing_tells_the_failure_and_leaves_out_the_errors(q: Desk) -> None:
    await q.put("a")
    await fail_run(q, "one")
    await fail_run(q, "two")
    (listed,) = await read_all(q.store, q.queue)
    got = await q.get("a")
    assert (listed.errors, len(got.errors)) == ((), 2)
    assert listed.failure == got.failure == got.errors[-1]
    (found,) = await q.put("a")
    assert found.found is not None
    assert (found.found.errors, found.found.failure) == ((), got.failure)


@pytest.mark.parametrize("way", ["removed", "swept", "used again", "cleaned"])
async def test_errors_go_with_the_record(q: Desk, way: str) -> None:
    await q.put_one("a", result_ttl_ms=SECOND)
    await fail_run(q, "one")
    lease = await q.take()
    if way == "used again":
        await q.alter(Cancel(job=q.key("a")))
    await q.settle(fail(lease))
    assert len((await q.get("a")).errors) == 2
    if way == "removed":
        await q.alter(Remove(job=q.key("a")))
    elif way == "swept":
        q.clock.advance(2 * SECOND)
        await q.tick()
    elif way == "cleaned":
        await q.store.purge_ended(q.queue, State.FAILED)
    await q.put_one("a", result_ttl_ms=SECOND)
    assert (await q.get("a")).errors == ()
    await fail_run(q, "new")
    assert [error.message for error in (await q.get("a")).errors] == ["new"]


async def test_a_completed_job_takes_its_errors_along_when_it_is_swept(q: Desk) -> None:
    await q.put_one("a", result_ttl_ms=SECOND)
    await fail_run(q, "one")
    await q.settle(complete(await q.take()))
    q.clock.advance(2 * SECOND)
    await q.tick()
    await q.put("a")
    await fail_run(q, "new")
    assert [error.message for error in (await q.get("a")).errors] == ["new"]
