"""An audit continues the last one: it reads what is new, and the proof advances without holes.

Each queue is a story of its own. All of them share one lake and its audits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobq.core.records.jobs import QueueName
from jobq.core.records.marks import Mark, encode
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.audit.proof import Proof, ProofFiles
from jobq.pipeline.audit.verdict import Audit, QueueAudit
from jobq.pipeline.formats import Part
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import EVENTS, MARKS
from jobq.stores import open_store
from tests.pipeline import stories
from tests.pipeline.conftest import History, take_in
from tests.pipeline.stories import Lines, is_mark

QUEUES = ("growing", "busy", "late copies", "forged later", "partitions", "altered", "no marks")


class Story(NamedTuple):
    """The lines of one queue, to be delivered in parts."""

    lines: Lines

    @property
    def last(self) -> int:
        return max(stories.numbers(self.lines))

    def part(self, *numbers: int | Iterable[int], mark: int = 0, partitions: int = 1) -> Lines:
        """The events with these numbers, and a mark in each partition."""
        wanted = {n for some in numbers for n in ((some,) if isinstance(some, int) else some)}
        found = [line for line in self.lines if not is_mark(line) and line["number"] in wanted]
        one = next(line for line in self.lines if is_mark(line))
        marks = [
            {**one, "number": mark, "partition": p, "partitions": partitions}
            for p in range(partitions if mark else 0)
        ]
        return found + marks


class World(NamedTuple):
    """The audits, one after each batch, and one of everything at the end."""

    audits: list[Audit]

    def verdicts(self, queue: str) -> list[str]:
        return [self.queue(queue, n).verdict for n in range(len(self.audits))]

    def queue(self, name: str, n: int) -> QueueAudit:
        return next(queue for queue in self.audits[n].queues if queue.queue == name)


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("incremental")
    url = f"sqlite:///{folder}/jobs.db"

    async def history() -> dict[str, Lines]:
        await stories.make(url, list(QUEUES))
        async with open_store(url) as store:
            return await stories.ship(store, folder / "shipped")

    s = {name: Story(lines) for name, lines in asyncio.run(history()).items()}
    end = s["growing"].last
    every, rest = range(1, end + 1), range(41, end + 1)
    forged = stories.copied({"number": 7}, id=lambda id: id[:-1] + "x")(s["forged later"].lines)
    batches: list[list[Lines]] = [
        [
            s["growing"].part(range(1, 21), mark=20),
            s["busy"].part(range(1, 21), mark=20),
            s["late copies"].lines,
            s["forged later"].lines,
            s["partitions"].part(range(1, 11), range(15, 21), mark=10, partitions=2),
            s["altered"].lines,
            s["no marks"].part(range(1, 21)),
        ],
        [
            s["growing"].part(range(21, 41), mark=40),
            s["busy"].part(range(21, 30), range(31, 41), mark=40),
            s["late copies"].lines,
            forged[-1:],
            s["partitions"].part(range(11, 15), range(21, 41), mark=40, partitions=2),
            s["no marks"].part(rest),
        ],
        [
            s["growing"].part(rest, mark=end),
            s["busy"].part(30, rest, mark=end),
            s["partitions"].part(rest, mark=end, partitions=2),
            s["no marks"].part(range(21, 41)),
        ],
    ]
    assert len(every) > 50
    lake, audits = Lake(spark, str(folder / "lake")), []
    for n, batch in enumerate(batches):
        take_in(lake, [line for lines in batch for line in lines], number=n)
        audits.append(audit(lake))
    _alter(lake)
    audits.append(audit(lake))
    audits.append(audit(lake, full=True))
    return World(audits)


def _alter(lake: Lake) -> None:
    """Rename a job in all its events, in the lake's files: no rule is broken."""
    rows = lake.read(EVENTS)
    chosen = (F.col("queue") == "altered") & (F.col("job") == "plain")
    changed = rows.withColumn("name", F.when(chosen, "other").otherwise(F.col("name")))
    lake.space.replace(EVENTS, changed, lake.space.parts(EVENTS))


def test_only_what_is_new_is_read(world: World) -> None:
    assert [found.full for found in world.audits] == [True, False, False, False, True]
    read = [found.events for found in world.audits]
    assert read[3] == 0
    assert read[4] > sum(read[1:4])


def test_the_proof_advances_with_the_log(world: World) -> None:
    assert world.verdicts("growing") == ["proved"] * 5
    assert [log.proved for n in range(3) for log in world.queue("growing", n).logs][:2] == [20, 40]


def test_the_counts_are_those_of_an_audit_of_everything(world: World) -> None:
    for queue in ("growing", "late copies", "partitions", "no marks"):
        assert world.queue(queue, 3).totals == world.queue(queue, 4).totals


def test_a_busy_queue_with_one_event_removed_is_violated_at_the_next_audit(world: World) -> None:
    assert world.verdicts("busy") == ["proved", "violated", "violated", "violated", "proved"]
    assert world.queue("busy", 1).problems[0] == "1 × lost: 30"
    assert "arrived after they were reported as lost" in world.queue("busy", 2).doubts[0]


def test_a_late_copy_changes_nothing(world: World) -> None:
    assert world.verdicts("late copies") == ["proved"] * 5


def test_another_event_under_a_proved_number_is_a_violation(world: World) -> None:
    assert world.verdicts("forged later") == ["proved", *["violated"] * 4]
    assert world.queue("forged later", 1).problems[0] == "1 × number of two events"


def test_events_beyond_the_lowest_mark_wait_for_earlier_ones(world: World) -> None:
    assert world.verdicts("partitions") == ["proved"] * 5
    first = world.queue("partitions", 0)
    assert [log.proved for log in first.logs] == [10]
    assert first.exceptions == ["not here yet: 11–14"]
    assert world.queue("partitions", 1).exceptions == []


def test_without_marks_a_hole_is_unprovable_until_it_is_filled(world: World) -> None:
    assert world.verdicts("no marks") == ["proved", "unprovable", *["proved"] * 3]


def test_an_event_changed_after_it_was_checked_is_found_by_an_audit_of_everything(
    world: World,
) -> None:
    assert world.verdicts("altered") == [*["proved"] * 4, "violated"]
    assert "events changed after they were checked" in world.queue("altered", 4).problems


def test_an_audit_that_dies_leaves_the_last_proof(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, history = Lake(spark, str(tmp_path / "lake")), History()
    take_in(lake, history.life("a").lines)
    audit(lake)
    take_in(lake, history.life("b").lines[3:], number=1)
    proof = ProofFiles(lake).load()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ProofFiles, "save", die)
        with pytest.raises(KeyboardInterrupt):
            audit(lake)
    assert ProofFiles(lake).load() == proof
    found = audit(lake)
    assert (found.verdict, found.full, found.events) == ("proved", False, 3)


def test_only_the_days_of_new_marks_are_listed(lake: Lake) -> None:
    """A lake may have years of marks."""
    for n in range(3):
        at_ms = History.START + n * 86_400_000
        mark = Mark(queue=QueueName("acme", "mail"), log="log", shard=0, number=n + 1, at_ms=at_ms)
        take_in(lake, [encode(mark).decode()], number=n)
    files = ProofFiles(lake)
    new = files.arrived(MARKS, Proof(arrival=2, day="2000-01-01"), 3)
    assert [row.number for row in new.collect()] == [3]
    assert [Part.of(path).day for path in new.inputFiles()] == ["2025-11-17"]
    assert files.arrived(MARKS, Proof(arrival=1, day="2000-01-01"), 3).count() == 2
