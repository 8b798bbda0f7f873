"""Notifications: who gets them, what they cost, and what happens when the connection is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from jobq.core.records.jobs import Claim, JobSpec, QueueName, Topic
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.postgres import mailbox
from jobq.stores.postgres.link import Link
from jobq.stores.postgres.store import PostgresStore
from jobq.stores.relational.mailbox import Notice
from jobq_conformance.kit import complete
from tests.stores.postgres.servers import Server, ask

QUEUE = QueueName("t", "q")
CLAIM = Claim(queues=(QUEUE,), limit=1, lease_ms=60_000)


@pytest.fixture
async def one(server: Server) -> AsyncIterator[PostgresStore]:
    """The handle that waits. Its connection can be told from others by its name."""
    ask(server.url, "drop schema if exists jobq cascade")
    async with open_store(f"{server.url}?application_name=waits") as store:
        assert isinstance(store, PostgresStore)
        yield store


@pytest.fixture
async def other(server: Server, one: PostgresStore) -> AsyncIterator[Store]:
    """The handle that works."""
    async with open_store(server.url) as store:
        yield store


def spec(id: str) -> JobSpec:
    return JobSpec(id=id, queue=QUEUE, name="add", payload=b"1")


async def complete_next(store: Store, call: str) -> None:
    """Claim the next job and complete it."""
    (lease,) = (await store.settle([], worker="w", call=f"{call}a", then=CLAIM)).leases
    await store.settle([complete(lease)], worker="w", call=f"{call}b")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many notices each NOTIFY statement carries that this process sends for general calls."""
    counted: list[int] = []

    def send(link: Link, notices: Sequence[Notice]) -> None:
        counted.append(len(notices))
        original(link, notices)

    original = mailbox.send
    monkeypatch.setattr(mailbox, "send", send)
    return counted


async def test_calls_that_wake_nobody_send_no_notification(other: Store, sent: list[int]) -> None:
    await other.put([spec(f"j{n}") for n in range(10)])
    await complete_next(other, "1")
    await other.tick()
    assert sent == []


async def test_one_call_sends_at_most_one_statement(
    one: PostgresStore, other: Store, sent: list[int]
) -> None:
    for n in range(5):
        await one.settle([], worker=f"s{n}", call="1", then=CLAIM)
    await other.put([spec(f"j{n}") for n in range(5)])
    for n in range(5):
        assert await one.sleep([QUEUE], worker=f"s{n}", slots=1, timeout_ms=10_000)
    assert len(sent) <= 1  # waking.py wakes the sleepers of plain queues, in one statement


async def test_a_handle_tells_itself_without_the_server(one: Store, sent: list[int]) -> None:
    await one.settle([], worker="s", call="1", then=CLAIM)
    await one.put([spec("a")])
    assert await one.sleep([QUEUE], worker="s", slots=1, timeout_ms=10_000)
    assert sent == []


def _terminate(server: Server) -> None:
    ask(
        server.url,
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where application_name = 'waits'",
    )


@pytest.mark.parametrize("registrations", ["kept", "lost"])
async def test_a_caller_hears_of_an_end_after_its_connection_was_replaced(
    server: Server, one: PostgresStore, other: Store, registrations: str
) -> None:
    await other.put([spec("a")])
    async with one.listen([Topic("ended", QUEUE, "a")]) as signals:
        waiting: Any = asyncio.ensure_future(anext(signals))
        if registrations == "lost":  # as after a crash, which empties unlogged tables
            ask(server.url, "truncate jobq.listeners, jobq.sleepers")
        await asyncio.to_thread(_terminate, server)
        # The replacement lets the caller look again, in case that it has missed the end.
        async with asyncio.timeout(20):
            await waiting
            heard: Any = asyncio.ensure_future(anext(signals))
            await complete_next(other, "1")
            await heard


async def test_a_sleeper_looks_again_after_its_connection_was_replaced(
    server: Server, one: PostgresStore
) -> None:
    await one.settle([], worker="s", call="1", then=CLAIM)
    sleeping = asyncio.ensure_future(one.sleep([QUEUE], worker="s", slots=1, timeout_ms=60_000))
    await asyncio.to_thread(_terminate, server)
    async with asyncio.timeout(20):
        assert await sleeping


async def test_a_notification_of_a_stranger_is_ignored(
    server: Server, one: PostgresStore, other: Store
) -> None:
    channel = one._box().channel
    for payload in ("", "x", "[1]", '[["work"]]', "null"):
        ask(server.url, "select pg_notify(%s, %s)", channel, payload)
    await one.settle([], worker="s", call="1", then=CLAIM)
    await other.put([spec("a")])
    assert await one.sleep([QUEUE], worker="s", slots=1, timeout_ms=10_000)


async def test_many_notices_are_split_into_notifications_that_postgresql_accepts(
    one: PostgresStore, other: Store
) -> None:
    long = "x" * 200
    workers = [f"{long}{n}" for n in range(100)]
    for name in workers:
        await one.settle([], worker=name, call="1", then=CLAIM)
    await other.put([spec(f"j{n}") for n in range(64)])
    woken = await asyncio.gather(
        *(one.sleep([QUEUE], worker=name, slots=1, timeout_ms=5_000) for name in workers)
    )
    assert sum(woken) >= 64
