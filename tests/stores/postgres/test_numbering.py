"""Numbers of events: given after the commit, without gaps, in every order of commits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from jobq.core.records.states import State
from jobq.stores import open_store
from jobq.stores.postgres import numbering
from jobq_conformance.kit import Desk, FakeClock, complete, fresh_queue
from tests.stores.postgres.servers import Server, ask


@pytest.fixture
async def desk(server: Server) -> AsyncIterator[Desk]:
    """A queue that no other test uses."""
    async with open_store(server.url) as store:
        yield Desk(store, fresh_queue(), FakeClock())


async def events(desk: Desk) -> list[tuple[str, int]]:
    """The jobs of the log's events and their numbers."""
    page = await desk.store.read_events(desk.queue, after="0")
    return [(event.job, event.number) for event in page.events]


async def test_a_pass_that_is_cut_continues_where_it_stopped(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "PASS", 2)
    for n in range(7):
        await desk.put(f"{n}")
    assert await events(desk) == [(f"{n}", n + 1) for n in range(7)]


async def test_counters_are_exact_in_the_middle_of_a_pass(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "PASS", 2)
    monkeypatch.setattr(numbering, "PASSES", 1)
    for n in range(7):
        await desk.put(f"{n}")
    for _ in range(9):
        await events(desk)
        assert (await desk.store.count(desk.queue))[State.WAITING] == 7
    assert len(await events(desk)) == 7


async def test_an_entry_that_commits_late_comes_after_those_that_were_numbered(
    desk: Desk, server: Server
) -> None:
    await desk.put("a")
    assert await events(desk) == [("a", 1)]
    # The late transaction draws its number of an entry before b does.
    with psycopg.connect(server.url) as late:
        late.execute(
            "insert into jobq.entries (qid, at_ms, n, items) "
            "select qid, at_ms, n, items from jobq.entries join jobq.queues using (qid) "
            "where tenant = %s",
            (desk.queue.tenant,),
        )
        await desk.put("b")
        assert await events(desk) == [("a", 1), ("b", 2)]
        late.commit()
    assert await events(desk) == [("a", 1), ("b", 2), ("a", 3)]


async def test_an_entry_that_is_rolled_back_leaves_no_gap(desk: Desk, server: Server) -> None:
    await desk.put("a")
    with psycopg.connect(server.url) as undone:
        undone.execute(
            "insert into jobq.entries (qid, at_ms, n, items) "
            "select qid, at_ms, n, items from jobq.entries join jobq.queues using (qid) "
            "where tenant = %s",
            (desk.queue.tenant,),
        )
        await desk.put("b")
        undone.rollback()
    await desk.put("c")
    assert await events(desk) == [("a", 1), ("b", 2), ("c", 3)]


async def test_entries_that_a_savepoint_wrote_get_numbers(desk: Desk, server: Server) -> None:
    await desk.put("a")
    with psycopg.connect(server.url) as caller, caller.transaction(), caller.transaction():
        caller.execute(
            "insert into jobq.entries (qid, at_ms, n, items) "
            "select qid, at_ms, n, items from jobq.entries join jobq.queues using (qid) "
            "where tenant = %s",
            (desk.queue.tenant,),
        )
        assert await events(desk) == [("a", 1)]
    assert await events(desk) == [("a", 1), ("a", 2)]


async def test_restored_tables_keep_their_numbers_and_get_new_ones(
    desk: Desk, server: Server
) -> None:
    await desk.put("a")
    await desk.put("b")
    assert await events(desk) == [("a", 1), ("b", 2)]
    await desk.put("c")
    # As if the tables came from a server that has counted a billion transactions.
    ask(server.url, "update jobq.entries set xid = (xid::text::bigint + 1000000000)::text::xid8")
    ask(
        server.url,
        "update jobq.numbering set snapshot = format('%s:%s:',"
        " pg_snapshot_xmax(snapshot)::text::bigint + 1000000000,"
        " pg_snapshot_xmax(snapshot)::text::bigint + 1000000000)::pg_snapshot",
    )
    await desk.put("d")
    assert await events(desk) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    (lease,) = await desk.claim(1)
    await desk.settle(complete(lease))
    assert len(await events(desk)) == 6
    counts = await desk.store.count(desk.queue)
    assert (counts[State.WAITING], counts[State.COMPLETED]) == (3, 1)


@pytest.mark.parametrize("damaged", ["'\\x00'", "starts || '\\x00'", "'\\xff'", "''"])
async def test_a_damaged_entry_of_starts_is_a_gap_in_the_log(
    desk: Desk, server: Server, damaged: str
) -> None:
    await desk.put("a")
    await desk.claim(1)
    ask(
        server.url,
        f"update jobq.entries set starts = {damaged} where starts is not null and qid ="
        f" (select qid from jobq.queues where tenant = '{desk.queue.tenant}')",
    )
    await desk.put("b")
    page = await desk.store.read_events(desk.queue, after="0")
    assert [(event.kind, event.job) for event in page.events] == [
        ("accepted", "a"), ("gap", ""), ("accepted", "b"),
    ]  # fmt: skip


async def test_an_event_has_another_id_after_a_restart_of_the_server(
    desk: Desk, server: Server
) -> None:
    await desk.put("a")
    (first,) = (await desk.store.read_events(desk.queue, after="0")).events
    # As a server does that has lost its last writes: the same number is given again.
    for table in ("numbers", "entries"):
        ask(server.url, f"delete from jobq.{table}")
    ask(server.url, "update jobq.counts set pos = 0, logged = 0")
    server.stop()
    server.start()
    await desk.put("b")
    (again,) = (await desk.store.read_events(desk.queue, after="0")).events
    assert again.number == first.number
    assert again.id != first.id
