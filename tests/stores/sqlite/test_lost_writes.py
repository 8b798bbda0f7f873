"""A file that lost its last writes, as in a power cut: numbers recur, event ids do not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import JobSpec, QueueName
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.sqlite import trimming

WORK = QueueName("default", "work")


async def put(store: Store, *ids: str) -> None:
    for id in ids:
        await store.put([JobSpec(queue=WORK, id=id, name="task", payload=b"[[],{}]")])


async def log(store: Store, after: str = "0") -> list[EventRecord]:
    return list((await store.read_events(WORK, after=after)).events)


async def test_events_written_in_place_of_lost_ones_have_other_ids(tmp_path: Path) -> None:
    file, kept = tmp_path / "jobs.db", tmp_path / "kept.db"
    async with open_store(f"sqlite:///{file}") as store:
        await put(store, "a", "b")
    shutil.copy(file, kept)  # what had reached the disk
    async with open_store(f"sqlite:///{file}") as store:
        await put(store, "c", "d")
        lost = await log(store)
    shutil.copy(kept, file)
    async with open_store(f"sqlite:///{file}") as store:
        await put(store, "x", "y")
        found = await log(store)
    assert [event.number for event in lost] == [event.number for event in found] == [1, 2, 3, 4]
    assert [event.id for event in found[:2]] == [event.id for event in lost[:2]]
    assert {event.id for event in found[2:]}.isdisjoint(event.id for event in lost)
    assert [event.position for event in found] == [event.position for event in lost]


async def test_every_reader_sees_the_same_ids(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    seen = []
    for n in range(3):
        async with open_store(url) as store:
            await put(store, f"j{n}")
            seen.append([event.id for event in await log(store)])
    assert seen[0] == seen[2][:1]
    assert seen[1] == seen[2][:2]
    assert len({id.rsplit("-", 1)[1] for id in seen[2]}) == 3  # each opening is an incarnation


async def test_a_gap_has_the_id_of_the_last_event_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "LOG_EVENTS", 3)
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with open_store(url) as store:
        await put(store, "a", "b", "c")
        before = await log(store)
    async with open_store(url) as store:  # another incarnation
        await put(store, "d", "e")
        await store.tick()
        gap, *kept = await log(store)
    assert (gap.kind, gap.id, gap.number) == ("gap", before[1].id, 2)
    assert [event.number for event in kept] == [3, 4, 5]


async def test_reading_up_to_a_position_that_was_dropped_meanwhile_returns_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "LOG_EVENTS", 1)
    async with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        await put(store, "a", "b")
        end = (await store.read_events(WORK)).position
        await put(store, "c", "d")
        await store.tick()
        page = await store.read_events(WORK, after="0", until=end)
        assert [(str(event.kind), event.number) for event in page.events] == [("gap", 3)]
        assert (await store.read_events(WORK, after=page.position, until=end)).events == ()
