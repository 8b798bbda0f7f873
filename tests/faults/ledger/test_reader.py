"""What the reader writes down: pages, passes and missing numbers. The events are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.core.records.events import EventRecord
from jobq.core.records.jobs import QueueName
from jobq.core.records.states import Kind, State
from tests.faults.ledger import facts, reader
from tests.faults.ledger.reader import Log, Torn, passes


@pytest.fixture(autouse=True)
def now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, which tests move."""
    time = [1_000_000]
    monkeypatch.setattr(reader, "FOLDER", tmp_path)
    monkeypatch.setattr(facts, "now_ms", lambda: time[0])
    return time


def event(number: int, history: str = "a") -> EventRecord:
    return EventRecord(
        id=f"{number}-{history}", number=number, shard=0, position=str(number),
        kind=Kind.ACCEPTED, at_ms=number, queue=QueueName("t", "q"), job=f"j{number:08}", life=0,
        name="n", key=None, attempt=0, failures=0, stalls=0, state=State.WAITING, previous=None,
        worker=None, actor=None, reason=None, error=None, fingerprint=None, created_ms=number,
        due_ms=None, started_ms=None, finished_ms=None,
    )  # fmt: skip


def read(log: Log, *numbers: int, history: str = "a", torn: bool = False) -> None:
    log.add(tuple(event(n, history) for n in numbers), str(numbers[-1]), torn=torn)


def stories(folder: Path) -> dict[int, facts.Story]:
    lines = sorted((folder / "events.facts").read_text().splitlines(True))
    return {story.job: story for story in facts.stories(lines, passes(folder))}


def test_the_next_reader_continues_after_the_last_page_that_is_whole(tmp_path: Path) -> None:
    read(Log(0), 1, 2)
    with (tmp_path / "events.facts").open("a") as file:
        file.write(facts.happened(3, 0, 3, reader._short(event(3)))[:-5])  # a kill came here
    log = Log(0)
    assert log.position == "2"
    read(log, 3)
    assert [len(story.events) for story in stories(tmp_path).values()] == [1, 1, 1]


def test_what_a_reader_that_went_back_does_not_find_again_is_undone(
    tmp_path: Path, now: list[int]
) -> None:
    log = Log(0)
    read(log, 1, 2)
    now[0] += 10_000
    read(log, 3, 4)
    now[0] += 1_000
    log = Log(back_ms=5_000)
    assert log.position == "2"
    log = Log(0)  # the reader was killed before it read anything
    assert log.position == "2"
    read(log, 3)
    read(log, 4, history="b")
    found = stories(tmp_path)
    assert [event.id for event in found[4].events] == ["4-b"]
    assert [event.id for event in found[4].undone] == ["4-a"]
    assert not any(found[n].undone for n in (1, 2, 3))


def test_a_missing_number_is_another_history_or_a_gap(tmp_path: Path) -> None:
    log = Log(0)
    read(log, 1, 2)
    with pytest.raises(Torn):
        read(log, 4)
    assert log.position == "2"
    read(log, 4, torn=True)
    gaps = stories(tmp_path)[reader.NOBODY].events
    assert [event.kind for event in gaps] == ["gap"]
