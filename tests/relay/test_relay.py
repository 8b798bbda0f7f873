"""The relay's loop, with a real store and a target that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import QueueName
from jobq.core.records.marks import Mark
from jobq.errors import ConfigError, StoreUnavailable
from jobq.relay import Relay
from jobq.relay.targets import Rejected, TargetUnavailable
from jobq.stores import open_store
from jobq.stores.base import Store
from tests.relay.conftest import QUEUE, put, work


class Shelf:
    """A target that keeps events in memory and can fail.

    `down`: it is unavailable. `broken`: its periodic work fails. `gate`: it replies when this is
    set."""

    def __init__(self) -> None:
        self.name = "shelf://"
        self.taken: list[EventRecord] = []
        self.marks: list[Mark] = []
        self.order: list[tuple[str, int]] = []  # what came, by kind and number
        self.down = self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.refuses: set[str] = set()
        self.fails_for: QueueName | None = None
        self.failed = asyncio.Event()

    async def open(self) -> None: ...

    async def tick(self) -> None:
        if self.broken:
            raise OSError("no space left")

    async def aclose(self) -> None: ...

    async def send(self, events: Sequence[EventRecord]) -> list[Rejected]:
        if events[0].queue == self.fails_for:
            self.failed.set()
            raise StoreUnavailable("not an outage of the target")
        self.asked.set()
        await self.gate.wait()
        if self.down:
            raise TargetUnavailable("the shelf is down")
        self.taken += [event for event in events if event.job not in self.refuses]
        self.order += [(event.kind, event.number) for event in events]
        return [Rejected(event, "too large") for event in events if event.job in self.refuses]

    async def mark(self, marks: Sequence[Mark]) -> None:
        if self.down:
            raise TargetUnavailable("the shelf is down")
        self.marks += marks
        self.order += [("mark", mark.number) for mark in marks]

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.taken]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def relay(store: Store, shelf: Shelf, tmp_path: Path) -> Relay:
    return Relay(store, shelf, rejected=tmp_path / "refused.jsonl")


async def test_events_of_all_queues_are_shipped_in_order(
    store: Store, relay: Relay, shelf: Shelf
) -> None:
    other = QueueName("globex", "default")
    await put(store, "a", "b")
    await put(store, "c", queue=other)
    await work(store)
    assert await relay.drain() == 7
    assert [event.kind for event in shelf.taken if event.job == "a"] == [
        "accepted",
        "started",
        "completed",
    ]
    assert [event.queue for event in shelf.taken if event.job == "c"] == [other]
    assert len(set(shelf.ids)) == 7


async def test_a_restarted_relay_continues_at_the_last_position(
    store: Store, relay: Relay, shelf: Shelf, tmp_path: Path
) -> None:
    await put(store, "a")
    await relay.drain()
    await put(store, "b")
    again = Relay(store, shelf, who=relay.who, rejected=tmp_path / "refused.jsonl")
    assert await again.drain() == 1
    assert [event.job for event in shelf.taken] == ["a", "b"]


async def test_while_the_target_is_down_events_wait_and_then_follow_in_order(
    store: Store, relay: Relay, shelf: Shelf
) -> None:
    await put(store, "a")
    shelf.down = True
    assert await relay.tick() == 0
    await put(store, "b")
    assert relay.status.queues[0].problem == "the shelf is down"
    assert relay.status.lag_ms >= 0
    shelf.down = False
    assert await relay.drain() == 2
    assert [event.job for event in shelf.taken] == ["a", "b"]
    assert relay.status.queues[0].problem is None


async def test_a_page_not_acknowledged_is_sent_again(
    store: Store, relay: Relay, shelf: Shelf, tmp_path: Path
) -> None:
    await put(store, "a")
    shelf.gate.clear()
    pass_under_way = asyncio.ensure_future(relay.tick())
    await shelf.asked.wait()
    pass_under_way.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pass_under_way
    shelf.gate.set()
    assert (
        await Relay(store, shelf, who=relay.who, rejected=tmp_path / "refused.jsonl").drain() == 1
    )
    assert [event.job for event in shelf.taken] == ["a"]


async def test_a_queue_is_shipped_by_one_relay_and_taken_over_when_it_stops(
    store: Store, shelf: Shelf, tmp_path: Path
) -> None:
    now = 1_000_000
    async with open_store(f"sqlite:///{tmp_path}/jobs.db", clock=lambda: now) as one:
        first = Relay(one, shelf, who="first", lease=15)
        second = Relay(one, shelf, who="second", lease=15)
        await put(one, "a")
        assert await first.tick() == 1
        await put(one, "b")
        assert await second.tick() == 0
        assert second.status.others == 1
        assert second.status.queues == ()
        now += 16_000
        assert await second.tick() == 1
    assert [event.job for event in shelf.taken] == ["a", "b"]


async def test_drain_waits_for_the_leadership_of_a_dead_relay(store: Store, shelf: Shelf) -> None:
    await put(store, "a")
    assert await Relay(store, shelf, who="dead", lease=0.2).tick() == 1
    await put(store, "b")
    assert await Relay(store, shelf, who="next", lease=0.2, poll=0.02).drain() == 1
    assert [event.job for event in shelf.taken] == ["a", "b"]


async def test_drain_says_that_a_living_relay_ships_the_queue(store: Store, shelf: Shelf) -> None:
    await put(store, "a")
    assert await Relay(store, shelf, who="alive", lease=60).tick() == 1
    await put(store, "b")
    with pytest.raises(ConfigError, match=r"another relay with the name 'relay'.*0 events shipped"):
        await Relay(store, shelf, who="next", lease=0.1, poll=0.02).drain()


async def test_a_relay_says_at_its_first_start_that_events_were_dropped_before(
    store: Store, shelf: Shelf, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, "a")
    page = await store.read_events(QUEUE, after="0")
    gap = msgspec.structs.replace(
        page, events=(msgspec.structs.replace(page.events[0], kind="gap"),)
    )

    async def read(*_: object, **__: object) -> object:
        return gap

    monkeypatch.setattr(store, "read_events", read)
    await Relay(store, shelf).tick()
    assert "were dropped before this relay started" in caplog.text
    caplog.clear()
    await Relay(store, shelf).tick()
    assert caplog.text == ""


async def test_an_event_that_the_target_rejects_is_saved_and_counted(
    store: Store, relay: Relay, shelf: Shelf
) -> None:
    await put(store, "small", "huge", "last")
    shelf.refuses = {"huge"}
    await relay.drain()
    assert [(event.job, event.number) for event in shelf.taken] == [
        ("small", 1),
        ("last", 3),
        ("", 2),
    ]
    assert (shelf.taken[-1].kind, shelf.taken[-1].reason) == (
        "gap",
        "rejected by shelf://: too large",
    )
    kept = Path(relay.rejected.where).read_text()
    assert '"why":"too large"' in kept
    assert '"job":"huge"' in kept
    assert relay.status.queues[0].refused == 1


async def test_the_lag_is_the_age_of_the_oldest_event_not_shipped(
    store: Store, shelf: Shelf, tmp_path: Path
) -> None:
    await put(store, "a")
    at = (await store.read_events(QUEUE, after="0")).events[0].at_ms
    relay = Relay(store, shelf, clock=lambda: at + 90_000)
    shelf.down = True
    await relay.tick()
    assert relay.status.lag_ms == 90_000
    assert 'jobq_relay_lag_seconds{tenant="acme",queue="mail"} 90.0' in relay.status.prometheus()
    shelf.down = False
    await relay.drain()
    assert relay.status.lag_ms == 0


async def test_the_lag_is_above_zero_until_the_last_page_is_shipped(
    store: Store, shelf: Shelf
) -> None:
    await put(store, "a")
    await put(store, "b")
    at = (await store.read_events(QUEUE, after="0")).events[0].at_ms
    relay = Relay(store, shelf, page=1, clock=lambda: at + 90_000)
    assert await relay.tick() == 1
    assert relay.status.lag_ms == 90_000
    assert await relay.drain() == 1
    assert relay.status.lag_ms == 0


async def test_a_target_whose_periodic_work_fails_still_gets_events(
    store: Store, relay: Relay, shelf: Shelf
) -> None:
    shelf.broken = True
    await put(store, "a")
    assert await relay.tick() == 1
    assert relay.status.problem == "no space left"
    shelf.broken = False
    await put(store, "b")
    assert await relay.tick() == 1
    assert relay.status.problem is None
    assert [event.job for event in shelf.taken] == ["a", "b"]


async def test_a_pass_that_fails_for_one_queue_waits_for_the_other_queues(
    store: Store, relay: Relay, shelf: Shelf
) -> None:
    """Otherwise the next pass would send the same page at the same time."""
    await put(store, "a")
    await put(store, "b", queue=QueueName("globex", "default"))
    shelf.gate.clear()
    shelf.fails_for = QUEUE
    pass_under_way = asyncio.ensure_future(relay.tick())
    await shelf.failed.wait()
    await shelf.asked.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not pass_under_way.done()
    shelf.gate.set()
    with pytest.raises(StoreUnavailable):
        await pass_under_way
    assert [event.job for event in shelf.taken] == ["b"]
    shelf.fails_for = None
    assert await relay.drain() == 1


async def test_rejected_events_that_cannot_be_saved_are_not_skipped(
    store: Store, shelf: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    relay = Relay(store, shelf, rejected=tmp_path / "file" / "refused.jsonl")
    await put(store, "huge")
    shelf.refuses = {"huge"}
    assert await relay.tick() == 0
    assert "could not save" in (relay.status.queues[0].problem or "")
    (tmp_path / "file").unlink()
    assert await relay.tick() == 1
    assert relay.status.queues[0].refused == 1


async def test_stop_does_not_wait_for_a_target_that_does_not_reply(
    store: Store, relay: Relay, shelf: Shelf
) -> None:
    await put(store, "a")
    shelf.gate.clear()
    running = asyncio.ensure_future(relay.run())
    await shelf.asked.wait()
    relay.stop()
    await asyncio.wait_for(running, 10)
    assert shelf.taken == []


async def test_a_mark_follows_what_the_target_has_stored(
    store: Store, relay: Relay, shelf: Shelf
) -> None:
    await put(store, "a", "b")
    await relay.drain()
    await work(store)
    await relay.drain()
    assert shelf.order == [
        ("accepted", 1),
        ("accepted", 2),
        ("mark", 2),
        ("started", 3),
        ("started", 4),
        ("completed", 5),
        ("completed", 6),
        ("mark", 6),
    ]
    await relay.tick()
    assert len(shelf.marks) == 2, "nothing new, so no mark"


async def test_a_mark_comes_in_intervals_while_there_is_always_something_to_ship(
    store: Store, shelf: Shelf
) -> None:
    relay = Relay(store, shelf, page=1, mark_every=3600)
    for id in "abcd":
        await put(store, id)
    for _ in range(4):
        assert await relay.tick() == 1
    assert shelf.marks == []
    relay.mark_every = 0
    await put(store, "e")
    await relay.tick()
    assert [mark.number for mark in shelf.marks] == [5]


async def test_a_mark_that_a_dead_relay_did_not_write_is_written_by_the_next(
    store: Store, shelf: Shelf
) -> None:
    first = Relay(store, shelf, who="same", mark_every=3600)
    await put(store, "a", "b")
    assert await first.tick() == 2
    assert shelf.marks == []
    await Relay(store, shelf, who="same").drain()
    assert [mark.number for mark in shelf.marks] == [2]


async def test_what_was_shipped_is_marked_before_a_gap(store: Store, shelf: Shelf) -> None:
    relay = Relay(store, shelf, mark_every=3600)
    await put(store, "a")
    assert await relay.tick() == 1
    for id in "bcd":
        await put(store, id)
    shipper = next(iter(relay._shippers.values()))
    shipper.position = "2"  # as if the log had dropped the entry of b
    page = await store.read_events(QUEUE, after="2")
    dropped = msgspec.structs.replace(page.events[0], kind="gap", job="", number=2, id="x-2-0")
    await shipper._ship(msgspec.structs.replace(page, events=(dropped, *page.events)))
    assert shelf.order[:3] == [("accepted", 1), ("mark", 1), ("gap", 2)]
