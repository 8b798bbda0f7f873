"""note: progress and log lines of running jobs."""

from __future__ import annotations

from jobq.core.records.commands import Remove
from jobq.core.records.jobs import LeaseRef, Note
from jobq_conformance.kit import SECOND, Desk, complete, ref, retry
from jobq_conformance.roles import needs

pytestmark = needs("notes")


async def test_the_last_progress_is_kept(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note(
        [Note(lease=ref(lease), progress=b"10"), Note(lease=ref(lease), progress=b"20")]
    )
    assert (await q.get("a")).progress == b"20"
    await q.store.note([Note(lease=ref(lease), lines=("still at it",))])
    assert (await q.get("a")).progress == b"20"


async def test_log_lines_are_kept_in_order(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note(
        [Note(lease=ref(lease), lines=("one", "two")), Note(lease=ref(lease), lines=("drei ☃",))]
    )
    await q.store.note([Note(lease=ref(lease), lines=("",))])
    assert await q.store.logs(q.key("a")) == ["one", "two", "drei ☃", ""]


async def test_the_last_thousand_lines_are_kept(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    for start in range(0, 1200, 300):
        await q.store.note(
            [Note(lease=ref(lease), lines=tuple(str(n) for n in range(start, start + 300)))]
        )
    assert await q.store.logs(q.key("a")) == [str(n) for n in range(200, 1200)]


async def test_notes_outlive_the_run(q: Desk) -> None:
    await q.put("a")
    first = await q.take()
    await q.store.note([Note(lease=ref(first), progress=b"1", lines=("first",))])
    await q.settle(retry(first))
    second = await q.take()
    await q.store.note([Note(lease=ref(second), progress=b"2", lines=("second",))])
    await q.settle(complete(second))
    assert await q.store.logs(q.key("a")) == ["first", "second"]
    assert (await q.get("a")).progress == b"2"


async def test_under_a_lost_lease_nothing_is_kept(q: Desk) -> None:
    await q.put("a")
    old = await q.take("w1", lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    new = await q.take("w2")
    notes = [
        Note(lease=ref(old), progress=b"old", lines=("old",)),
        Note(lease=LeaseRef(q.queue, "nobody", "nonsense"), progress=b"x", lines=("x",)),
        Note(lease=ref(new), lines=("new",)),
    ]
    await q.store.note(notes)
    assert await q.store.logs(q.key("a")) == ["new"]
    assert (await q.get("a")).progress is None
    assert await q.store.logs(q.key("nobody")) == []


async def test_an_ended_job_takes_no_more_notes(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.settle(complete(lease))
    await q.store.note([Note(lease=ref(lease), progress=b"x", lines=("x",))])
    assert await q.store.logs(q.key("a")) == []
    assert (await q.get("a")).progress is None


async def test_log_lines_go_with_the_record(q: Desk) -> None:
    await q.put("a", "b", result_ttl_ms=SECOND)
    a, b = await q.claim(2)
    await q.store.note([Note(lease=ref(a), lines=("x",)), Note(lease=ref(b), lines=("y",))])
    await q.settle(complete(a), complete(b))
    await q.alter(Remove(job=q.key("a")))
    assert await q.store.logs(q.key("a")) == []
    q.clock.advance(2 * SECOND)
    assert await q.store.logs(q.key("b")) == []
    await q.tick()
    await q.put("b")
    assert await q.store.logs(q.key("b")) == []
