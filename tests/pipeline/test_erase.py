"""`jq-pipeline erase` removes a subject's jobs and leaves tombstones, in every format."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jobq import Queue, State
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.audit.verdict import Audit
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.jobs.erase import Subject, erase, find
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import ATTEMPTS, ERRORS, EVENTS, TENANT_DAY
from jobq.stores import open_store
from tests.pipeline import stories
from tests.pipeline.conftest import EACH_FORMAT, History, take_in


class Broken(Exception):
    """The crash of a test."""


@pytest.fixture(params=EACH_FORMAT)
def made(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, str(tmp_path / "lake"), format=request.param)


def histories(history: History) -> list[Any]:
    """Two jobs of ann, one of which fails with her name in the error, and one of bob."""
    ann: dict[str, Any] = {"meta": {"subject": "ann"}, "shard": 0}
    history.life("ann-1", key="ann@example.org", **ann)
    history.life("ann-2", at=7200, end="failed", error="ValueError: ann", fingerprint="f", **ann)
    history.life("bob-1", meta={"subject": "bob"}, shard=0)
    for number, line in enumerate(history.lines, 1):
        line["number"] = number
    return history.lines


def text_on_disk(lake: Lake, text: str) -> list[str]:
    """The files of the lake that contain a text, also if they are compressed."""
    files = [path for path in Path(lake.root).rglob("*") if path.is_file()]
    return [
        str(path)
        for path in files
        if text.encode() in path.read_bytes()
        or (path.suffix == ".parquet" and text in str(pq.ParquetFile(path).read().to_pylist()))
        or (path.suffix == ".avro" and text.encode() in avro_rows(path))
    ]


def avro_rows(path: Path) -> bytes:
    """The rows of an Avro file with the codec `deflate`, as in Iceberg's manifests.

    A block has two numbers, the compressed rows, and the mark with which the file ends."""
    data, found = path.read_bytes(), b""
    assert b"deflate" in data
    for block in data.split(data[-16:])[1:-1]:
        start = 0
        for _ in range(2):
            while block[start] & 0x80:
                start += 1
            start += 1
        found += zlib.decompress(block[start:], -zlib.MAX_WBITS)
    return found


def test_an_erased_subject_is_gone_from_every_table_and_its_numbers_stay(
    made: Lake, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = histories(history)
    take_in(made, [*lines, {**lines[0], "kind": "evaporated"}], number=0)
    derive(made, ())
    found = find(made, Subject(meta={"subject": "ann"}))
    assert ({job.id for job in found.jobs}, found.events) == ({"ann-1", "ann-2"}, 6)

    def stop(*_: object, **__: object) -> None:
        raise Broken

    monkeypatch.setattr("jobq.pipeline.jobs.erase.derive", stop)
    with pytest.raises(Broken):
        erase(made, found, ())
    monkeypatch.undo()
    lake = Lake(made.spark, made.root)
    lake.begin()
    again = find(lake, Subject(meta={"subject": "ann"}))
    assert (len(again.jobs), again.unfinished) == (0, 2)
    assert erase(lake, again, ()).jobs == 2

    rows = lake.read(EVENTS).orderBy("number").collect()
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [row.kind for row in rows[:6]] == ["erased"] * 6
    for row in rows[:6]:
        kept = {name: value for name, value in row.asDict().items() if value not in (None, "", 0)}
        assert kept.keys() <= {
            "id", "kind", "at", "tenant", "queue", "number", "created_at", "arrival", "day", "hour"
        }  # fmt: skip
    assert [row.kind for row in rows[6:]] == ["accepted", "started", "completed"]
    assert [row.job for row in lake.read(ATTEMPTS).collect()] == ["bob-1"]
    assert lake.read(ERRORS).count() == 0
    usage = lake.read(TENANT_DAY).selectExpr("sum(accepted)", "sum(completed)").first()
    assert usage is not None
    assert tuple(usage) == (1, 1)
    assert text_on_disk(lake, "bob-1")
    for secret in ("ann@example.org", "ValueError: ann", "ann-1", "ann-2"):
        assert text_on_disk(lake, secret) == []
    assert problems(audit(lake)) == []

    # A copy of an erased event, and a late event of an erased job, add no content.
    late = {**lines[2], "id": "log-10-0", "number": 10, "kind": "changed", "state": "completed"}
    assert take_in(lake, [lines[0], late], number=1).events == 1
    # An id that is used again later is another job. The store counts its lives.
    after = {**lines[0], "id": "log-11-0", "number": 11, "created_ms": 2_000_000_000_000}
    take_in(lake, [{**after, "life": 1}], number=2)
    kinds = {row.number: row.kind for row in lake.read(EVENTS).where("number > 9").collect()}
    assert kinds == {10: "erased", 11: "accepted"}
    for full in (False, True):
        found_now = audit(lake, full=full)
        assert (found_now.full, problems(found_now)) == (full, [])
    # A tombstone proves that its number was there. Without it, the event is lost. What it may
    # explain is the beginning of a job, and not a second end.
    take_in(lake, [{**lines[8], "id": "log-12-0", "number": 12}], number=3)
    others = lake.read(EVENTS).where("number <> 2").localCheckpoint()
    lake.space.replace(EVENTS, others, lake.space.parts(EVENTS))
    assert {"1 × lost: 2", "1 × two ends in one life"} <= {*problems(audit(lake, full=True))}


def problems(found: Audit) -> list[str]:
    return [problem for queue in found.queues for problem in queue.problems]


def test_the_audit_accepts_an_erasure_in_the_store_too(made: Lake, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def shipped(*, new: bool = False) -> list[Any]:
        async with open_store(url) as store:
            if new:
                await stories.live(store, "mail")
            return (await stories.ship(store, tmp_path / "shipped"))["mail"]

    take_in(made, asyncio.run(shipped(new=True)))
    assert audit(made, store=url).verdict == "proved"
    # A job that has ended, one with three lives, and one that is waiting.
    found = find(made, Subject(ids=("plain", "again", "held")), store=url)
    assert len(found.in_store) == 3
    erase(made, found, (), store=url)
    assert not (Path(made.root) / "_jobq/audit").exists(), "the old proof has the jobs' ids"
    behind = audit(made, store=url)
    assert (behind.previous, behind.verdict, problems(behind)) == ("proved", "unprovable", [])
    # Then come copies of the erased events, and what the store has logged about the removal.
    assert take_in(made, asyncio.run(shipped()), number=1).events > 0
    assert made.read(EVENTS).where("job IN ('plain', 'again', 'held')").count() == 0
    for full in (False, True):
        after = audit(made, store=url, full=full)
        assert (after.verdict, after.full) == ("proved", full), problems(after)


def test_a_job_is_removed_from_the_store_too_unless_it_is_running(
    lake: Lake, history: History, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def fill() -> None:
        async with Queue("mail", url) as queue:
            send = queue.task_by_name("send")
            await send.options(id="waiting", meta={"subject": "ann"}).enqueue()
            await send.options(id="other", meta={"subject": "bob"}).enqueue()

    async def left() -> dict[str, State]:
        async with Queue("mail", url) as queue:
            return {job.id: job.state async for job in queue.find()}

    asyncio.run(fill())
    take_in(lake, history.life("bob-1").lines)
    found = find(lake, Subject(meta={"subject": "ann"}), store=url)
    assert {job.id for job in found.in_store} == {"waiting"}
    done = erase(lake, found, (), store=url)
    assert (done.removed, done.running) == (1, ())
    assert asyncio.run(left()) == {"other": State.WAITING}
