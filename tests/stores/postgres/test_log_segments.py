"""Old parts of the event log leave the disk, and what readers may still read stays."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from jobq.stores import open_store
from jobq.stores.postgres import event_log, log_segments
from jobq.stores.postgres.log_segments import Segment, due
from jobq_conformance.kit import Desk, FakeClock, fresh_queue
from tests.stores.postgres.servers import Server, ask


@pytest.fixture
async def desk(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    """A queue of a store that looks at the slots with every tick."""
    monkeypatch.setattr(log_segments, "CHECK_S", 0.0)
    monkeypatch.setattr(log_segments, "READ_S", 0.0)
    async with open_store(server.url) as store:
        yield Desk(store, fresh_queue(), FakeClock())


def age(server: Server, hours: int, desk: Desk) -> int:
    """Make all entries of the queue as old as this. Returns their slot."""
    ((slot,),) = ask(
        server.url,
        "select (extract(epoch from clock_timestamp())::bigint / 3600 - %s::bigint) %% 8",
        hours,
    )
    for table in ("entries", "numbers"):
        mine = "qid in (select qid from jobq.queues where tenant = %s)"
        ask(server.url, f"update jobq.{table} set slot = {slot} where {mine}", desk.queue.tenant)
    return int(slot)


def rows(server: Server, slot: int | str, desk: Desk) -> int:
    """How many entries of the queue a slot has."""
    query = (
        f"select count(*) from jobq.entries_{slot} join jobq.queues using (qid) where tenant = %s"
    )
    ((n,),) = ask(server.url, query, desk.queue.tenant)
    return int(n)


async def numbers(desk: Desk) -> list[tuple[str, int]]:
    """The events of the log: kinds and numbers."""
    page = await desk.store.read_events(desk.queue, after="0")
    return [(event.kind, event.number) for event in page.events]


async def test_an_old_slot_that_nobody_needs_is_truncated(
    desk: Desk, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.put("a")
    await desk.put("b")
    await desk.tick()
    slot = age(server, log_segments.OLD_H, desk)
    await desk.put("c")
    monkeypatch.setattr(event_log, "LOG_EVENTS", 1)
    await desk.tick()  # drops the events of a and b
    await desk.tick()
    assert rows(server, slot, desk) == 0
    assert await numbers(desk) == [("gap", 2), ("accepted", 3)]


async def test_entries_that_readers_may_read_move_before_their_slot_ends(
    desk: Desk, server: Server
) -> None:
    await desk.put("a")
    await desk.put("b")
    assert await numbers(desk) == [("accepted", 1), ("accepted", 2)]
    slot = age(server, log_segments.MOVE_H, desk)
    await desk.tick()
    assert rows(server, "kept", desk) == 2
    await desk.tick()
    assert rows(server, slot, desk) == 0
    assert await numbers(desk) == [("accepted", 1), ("accepted", 2)]


async def test_moved_entries_are_deleted_when_their_log_drops_them(
    desk: Desk, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.put("a")
    await desk.tick()
    age(server, log_segments.MOVE_H, desk)
    await desk.tick()
    await desk.put("b")
    monkeypatch.setattr(event_log, "LOG_EVENTS", 1)
    await desk.tick()
    await desk.tick()
    assert rows(server, "kept", desk) == 0
    assert await numbers(desk) == [("gap", 1), ("accepted", 2)]


async def test_a_slot_that_a_transaction_still_writes_to_is_left_alone(
    desk: Desk, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.put("a")
    await desk.put("b")
    await desk.tick()
    slot = age(server, log_segments.OLD_H, desk)
    await desk.put("c")
    monkeypatch.setattr(event_log, "LOG_EVENTS", 1)
    with psycopg.connect(server.url) as open_one:
        open_one.execute(
            f"insert into jobq.entries (qid, at_ms, n, slot) values (0, 1, 0, {slot})".encode()
        )
        await desk.tick()
        await desk.tick()
        assert rows(server, slot, desk) == 2
        open_one.commit()
    await desk.tick()
    await desk.tick()
    assert rows(server, slot, desk) == 0


def test_a_slot_ends_only_when_it_is_old_numbered_and_no_longer_needed() -> None:
    def ends(**facts: object) -> bool:
        fields = {"number": 1, "hours": 3, "used": True, "unnumbered": False, "needed": False}
        return bool(due([Segment(**{**fields, **facts})], {1: 0.0}, log_segments.READ_S))  # type: ignore[arg-type]

    assert ends()
    assert not ends(hours=2)
    assert not ends(unnumbered=True)
    assert not ends(needed=True)
    assert not ends(used=False)
    assert ends(needed=True, hours=5)
