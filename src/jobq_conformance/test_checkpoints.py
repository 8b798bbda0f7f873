"""note under a lease: it returns the state of the lease, and saves what the next run needs."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from jobq.core.records.commands import Cancel, Rerun
from jobq.core.records.jobs import Lease, LeaseRef, Note
from jobq_conformance.kit import SECOND, Desk, block, complete, ref, retry, snooze
from jobq_conformance.roles import needs

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


def numbered(lease: Lease, number: int, saved: bytes | None = None) -> Note:
    return Note(lease=ref(lease), saved=saved or b"%d" % number, saved_number=number)


@pytest.mark.parametrize("order", [*permutations((1, 2, 3)), (2, 1, 2, 1), (3, 3, 1)], ids=str)
async def test_an_older_checkpoint_never_replaces_a_newer_one(
    q: Desk, order: tuple[int, ...]
) -> None:
    """The network may deliver the calls of a worker in any order, and some of them twice."""
    await q.put("one", "by", "together")
    leases = {lease.id: lease for lease in await q.claim(3)}
    await q.store.note([numbered(leases["together"], number) for number in order])
    newest = 0
    for number in order:
        newest = max(newest, number)
        assert await q.store.note([numbered(leases["one"], number)]) == ["held"]
        assert (await q.get("one")).saved == b"%d" % newest
    assert (await q.get("together")).saved == b"%d" % newest
    assert (await q.get("by")).saved is None


async def test_the_rest_of_a_late_note_is_stored(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note([numbered(lease, 2)])
    late = Note(lease=ref(lease), saved=b"1", saved_number=1, progress=b"7", steps=(("s", b"x"),))
    await q.store.note([msgspec.structs.replace(late, lines=("line",))])
    record = await q.get("a")
    assert (record.saved, record.progress, record.steps) == (b"2", b"7", (("s", b"x"),))
    assert await q.store.logs(q.key("a")) == ["line"]


async def test_numbers_of_checkpoints_begin_again_with_each_lease(q: Desk) -> None:
    await q.put("a")
    first = await q.take("w1", lease_ms=SECOND)
    await q.store.note([numbered(first, 9)])
    q.clock.advance(SECOND)
    second = await q.take("w2")
    assert second.saved == b"9"
    await q.store.note([numbered(second, 1, b"second")])
    assert await q.store.note([numbered(first, 10)]) == ["lost"]
    assert (await q.get("a")).saved == b"second"
    await q.settle(complete(second))
    await q.alter(Rerun(job=q.key("a")))
    third = await q.take()
    assert third.saved is None
    await q.store.note([numbered(third, 1, b"third")])
    assert (await q.get("a")).saved == b"third"


async def test_a_checkpoint_without_a_number_replaces_any(q: Desk) -> None:
    """Of a worker that does not count: one in another language, or of jobq 0.1."""
    await q.put("a")
    lease = await q.take()
    await q.store.note([numbered(lease, 5)])
    for number in (0, -1):
        data = b"not %d" % number
        await q.store.note([Note(lease=ref(lease), saved=data, saved_number=number)])
        assert (await q.get("a")).saved == data
    await q.store.note([numbered(lease, 2**40), numbered(lease, 6)])
    assert (await q.get("a")).saved == b"%d" % 2**40


@pytest.mark.parametrize(
    ("number", "saved", "expected"),
    [
        (0, b"snoozed", b"snoozed"),
        (0, None, None),
        (1, b"1", b"2"),
        (1, None, b"2"),
        (2, b"2", b"2"),
        (3, b"3", b"3"),
        (3, None, b"2"),
    ],
)
async def test_a_snooze_with_the_number_of_a_checkpoint_keeps_a_newer_one(
    q: Desk, number: int, saved: bytes | None, expected: bytes | None
) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note([numbered(lease, 1), numbered(lease, 2)])
    outcome = snooze(lease, saved=saved)
    await q.settle(msgspec.structs.replace(outcome, saved_number=number))
    assert (await q.take()).saved == expected


async def test_a_wait_saves_whatever_was_saved_before(q: Desk) -> None:
    await q.put("a")
    lease = await q.take()
    await q.store.note([numbered(lease, 9)])
    await q.settle(block(lease, signal="go", saved=b"waits"))
    assert await q.store.note([numbered(lease, 10)]) == ["lost"]
    assert (await q.get("a")).saved == b"waits"
