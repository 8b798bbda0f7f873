"""note under a lease: it returns the state of the lease, and saves what the next run needs."""

from __future__ import annotations

from jobq.core.commands import Cancel
from jobq.core.records import LeaseRef, Note
from jobq.stores.conformance.kit import SECOND, Desk, block, complete, ref, retry, snooze
from jobq.stores.conformance.roles import needs

pytestmark = needs("notes")


async def test_a_note_says_how_it_found_each_lease(q: Desk) -> None:
    await q.put("old", "asked", "held", "done")
    old, asked, held, done = await q.claim(4, worker="w1", lease_ms=SECOND)
    await q.store.extend([ref(asked), ref(held)], lease_ms=60 * SECOND)
    await q.settle(complete(done))
    q.clock.advance(2 * SECOND)
    new = await q.take("w2")
    assert new.id == "old"
    await q.alter(Cancel(job=q.key("asked")))
    leases = [
        ref(old),
        ref(asked),
        ref(held),
        ref(done),
        ref(new),
        LeaseRef(q.queue, "nobody", "nonsense"),
    ]
    states = await q.store.note(
        [Note(lease=lease, progress=b"1", lines=("x",)) for lease in leases]
    )
    assert states == ["lost", "cancel", "held", "lost", "held", "lost"]
    assert await q.store.note([]) == []


async def test_a_note_of_one_job_under_the_token_of_another_is_lost(q: Desk) -> None:
    await q.put("a", "b")
    a, b = await q.claim(2)
    crossed = LeaseRef(q.queue, a.id, b.token)
    assert await q.store.note([Note(lease=crossed, progress=b"1", saved=b"2", lines=("x",))]) == [
        "lost"
    ]
    for id in ("a", "b"):
        record = await q.get(id)
        assert (record.progress, record.saved, await q.store.logs(q.key(id))) == (None, None, [])


async def test_a_note_renews_no_lease(q: Desk) -> None:
    await q.put("a")
    lease = await q.take("w1", lease_ms=SECOND)
    q.clock.advance(SECOND // 2)
    assert await q.store.note([Note(lease=ref(lease), saved=b"1")]) == ["held"]
    q.clock.advance(SECOND // 2)
    assert (await q.take("w2")).id == "a"


async def test_what_a_note_saved_is_there_after_a_stall(q: Desk) -> None:
    await q.put("a")
    first = await q.take("w1", lease_ms=SECOND)
    assert first.saved is None
    assert await q.store.note([Note(lease=ref(first), saved=b"one")]) == ["held"]
    assert await q.store.note(
        [Note(lease=ref(first), saved=b"two", progress=b"50", lines=("half way",))]
    ) == ["held"]
    record = await q.get("a")
    assert (record.saved, record.progress) == (b"two", b"50")
    q.clock.advance(2 * SECOND)
    second = await q.take("w2")
    assert second.saved == b"two"
    assert await q.store.note([Note(lease=ref(first), saved=b"late")]) == ["lost"]
    assert await q.store.note([Note(lease=ref(second), progress=b"60")]) == ["held"]
    assert (await q.get("a")).saved == b"two"


async def test_what_a_note_saved_is_there_after_a_retry_and_a_wait(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note([Note(lease=ref(lease), saved=b"one")])
    await q.settle(retry(lease))
    lease = await q.take()
    assert lease.saved == b"one"
    await q.store.note([Note(lease=ref(lease), saved=b"two")])
    await q.settle(block(lease))
    lease = await q.take()
    assert lease.saved == b"two"
    await q.settle(snooze(lease, saved=b"three"))
    assert (await q.take()).saved == b"three"


async def test_empty_saved_state_is_saved_state(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note([Note(lease=ref(lease), saved=b"x"), Note(lease=ref(lease), saved=b"")])
    assert (await q.get("a")).saved == b""


async def test_notes_leave_no_events(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note([Note(lease=ref(lease), saved=b"x", progress=b"1", lines=("x",))])
    assert await q.kinds("a") == ["accepted", "started"]
