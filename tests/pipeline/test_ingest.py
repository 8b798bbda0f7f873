"""Every event is stored exactly once, even if batches are repeated, late or interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from jobq.errors import ConfigError
from jobq.pipeline.jobs.ingest import ingest
from jobq.pipeline.jobs.run import PipelineRun
from jobq.pipeline.lake import Batch, Lake, Totals
from jobq.pipeline.slo import load_targets
from jobq.pipeline.sources import open_source
from jobq.pipeline.tables import EVENTS, QUARANTINE
from jobq.pipeline.transforms.parse import from_json_lines
from tests.pipeline.conftest import History, take_in, wire_rows


def ids(lake: Lake) -> list[str]:
    """The ids of all events in the lake."""
    return sorted(row.id for row in lake.read(EVENTS).select("id").collect())


def test_an_event_arrives_with_its_declared_types(lake: Lake, history: History) -> None:
    take_in(lake, history.life("a", at=3600.25).lines)
    rows = lake.read(EVENTS)
    assert rows.schema == EVENTS.schema
    found = (
        rows.where("kind = 'completed'")
        .selectExpr("job", "unix_millis(at)", "string(day)", "hour", "state", "previous")
        .first()
    )
    assert found is not None
    assert tuple(found) == ("a", History.START + 3_603_250, "2025-11-15", 1, "completed", "active")


def test_an_event_keeps_its_number_its_shard_and_its_actor(lake: Lake, history: History) -> None:
    history.event("accepted", "a", "waiting", number=7, shard=3)
    history.event("cancelled", "a", "cancelled", number=8, shard=3, actor="ann")
    take_in(lake, history.lines)
    rows = lake.read(EVENTS).orderBy("number").select("number", "shard", "actor").collect()
    assert [tuple(row) for row in rows] == [(7, 3, None), (8, 3, "ann")]


def test_an_operation_on_a_queue_is_an_event_without_a_job(lake: Lake, history: History) -> None:
    take_in(
        lake,
        history.done("paused", actor="ann")
        .done("cleared", "2 jobs", "ann")
        .done("schedule", "put nightly")
        .lines,
    )
    rows = (
        lake.read(EVENTS)
        .orderBy("number")
        .select("kind", "job", "state", "reason", "actor")
        .collect()
    )
    assert [tuple(row) for row in rows] == [
        ("paused", "", None, None, "ann"),
        ("cleared", "", None, "2 jobs", "ann"),
        ("schedule", "", None, "put nightly", None),
    ]
    assert lake.read(QUARANTINE).count() == 0


def test_two_events_under_one_number_are_both_kept(lake: Lake, history: History) -> None:
    history.event("accepted", "a", "waiting", number=1, shard=0, id="log-1-0-aaaaaaaa")
    history.event("accepted", "b", "waiting", number=1, shard=0, id="log-1-0-bbbbbbbb")
    take_in(lake, [*history.lines, *history.lines])
    assert ids(lake) == ["log-1-0-aaaaaaaa", "log-1-0-bbbbbbbb"]
    forks = (
        lake.read(EVENTS)
        .groupBy("tenant", "queue", "shard", "number")
        .count()
        .where("count > 1")
        .collect()
    )
    assert len(forks) == 1


def test_a_lake_without_newer_columns_is_read_and_extended(lake: Lake, history: History) -> None:
    take_in(lake, history.life("old").lines, number=0)
    newer = ("number", "shard", "actor", "meta", "more")
    old = lake.read(EVENTS).drop(*newer).localCheckpoint()
    lake.space.replace(EVENTS, old, lake.space.parts(EVENTS))
    assert (
        lake.read(EVENTS).where("number IS NULL AND shard IS NULL AND actor IS NULL").count() == 3
    )
    take_in(lake, history.done("paused", actor="ann").lines[3:], number=1)
    assert [row.actor for row in lake.read(EVENTS).where("number > 0").collect()] == ["ann"]
    assert len(ids(lake)) == 4


def test_meta_and_unknown_fields_are_kept_in_maps(lake: Lake, history: History) -> None:
    history.event("accepted", "plain", "waiting", error="a: b: c", key="x:y")
    history.event("accepted", "meta", "waiting", meta={"subject": "ann", "trace": "1:2"})
    history.event("accepted", "newer", "waiting", colour="red", size={"w": 1}, meta={"a": "b"})
    take_in(lake, history.lines)
    rows = {row.job: (row.meta, row.more) for row in lake.read(EVENTS).collect()}
    assert rows == {
        "plain": (None, None),
        "meta": ({"subject": "ann", "trace": "1:2"}, None),
        "newer": ({"a": "b"}, {"colour": "red", "size": '{"w":1}'}),
    }


def test_files_keep_unknown_fields_and_skip_empty_lines(
    lake: Lake, history: History, tmp_path: Path
) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    history.event("accepted", "plain", "waiting")
    history.event("accepted", "newer", "waiting", colour="red", size={"w": 1}, meta={"a": "b"})
    text = [json.dumps(line) for line in history.lines]
    bad = json.dumps({"v": 1, "kind": "evaporated", "colour": "red"})
    array = json.dumps([history.lines[0]])
    (folder / "a.jsonl").write_text("\n\n".join([*text, "  ", bad, "[]", array]) + "\n\n")
    job = PipelineRun(lake, open_source(str(folder)), ())
    job.start(lake.spark, once=True)
    job.wait()
    rows = {row.job: (row.meta, row.more) for row in lake.read(EVENTS).collect()}
    assert rows == {
        "plain": (None, None),
        "newer": ({"a": "b"}, {"colour": "red", "size": '{"w":1}'}),
    }
    found = lake.read(QUARANTINE).orderBy("raw").collect()
    assert [row.raw for row in found] == sorted(["[]", array, bad]), "whole lines, no empty one"
    assert all(row.origin.endswith("a.jsonl") for row in found)


def test_a_tombstone_from_a_source_is_not_an_event(lake: Lake, history: History) -> None:
    totals = take_in(lake, [{**history.life("a").lines[0], "kind": "erased", "job": ""}])
    assert (totals.events, totals.quarantined) == (0, 1)


def test_a_repeated_batch_changes_nothing(lake: Lake, history: History) -> None:
    lines = history.life("a").lines
    assert take_in(lake, lines).events == 3
    assert take_in(lake, lines) == Totals()
    assert len(ids(lake)) == 3


def test_events_sent_twice_are_stored_once_and_counted(lake: Lake, history: History) -> None:
    lines = history.life("a").life("b", at=7200).lines
    first = take_in(lake, [*lines, lines[0], lines[0]], number=0)
    assert (first.events, first.duplicates) == (6, 2)
    again = take_in(lake, [*lines, *history.life("c", at=10).lines[6:]], number=1)
    assert (again.events, again.duplicates) == (3, 6)
    assert ids(lake) == sorted(line["id"] for line in history.lines)


def test_after_a_lost_checkpoint_no_event_is_stored_twice(lake: Lake, history: History) -> None:
    take_in(lake, history.life("a").lines, run="first")
    assert take_in(lake, history.lines, run="second").events == 0
    assert len(ids(lake)) == 3


def test_a_late_event_is_stored_in_its_hour_and_counted(lake: Lake, history: History) -> None:
    take_in(lake, history.life("a", at=80_000).lines, number=0)
    late = take_in(lake, history.life("b", at=60).lines[3:], number=1)
    assert (late.events, late.late) == (3, 3)
    assert lake.read(EVENTS).where("hour = 0").count() == 3


@pytest.mark.parametrize("at", ["staged", "published", "half published"])
def test_an_interrupted_batch_is_completed_by_repeating_it(
    lake: Lake, history: History, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    take_in(lake, history.life("old").lines, number=0)
    lines = history.life("a").life("b", at=7200).lines[3:]
    rows = wire_rows(lake.spark, lines)

    class Broken(Exception):
        pass

    def stop(*_: object, **__: object) -> None:
        raise Broken

    if at == "half published":
        moves = lake.files.move
        calls: list[str] = []

        def move(source: str, target: str) -> None:
            calls.append(source)
            if len(calls) == 2:
                raise Broken
            moves(source, target)

        monkeypatch.setattr(lake.files, "move", move)
    else:
        monkeypatch.setattr(lake, "publish" if at == "staged" else "_commit", stop)
    with pytest.raises(Broken):
        ingest(lake, rows, Batch(run="test", number=1))
    monkeypatch.undo()

    anew = Lake(lake.spark, lake.root)
    assert len(ids(anew)) == 3, "a batch that is not whole is not to be seen"
    assert ingest(anew, rows, Batch(run="test", number=1)).events == 6
    assert len(ids(anew)) == 9
    assert anew.state.totals.events == 9


def test_bad_records_go_to_quarantine_with_the_reason(lake: Lake, history: History) -> None:
    good = history.life("a").lines
    bad: list[object] = [
        "not json at all",
        {**good[0], "v": 2, "id": "x"},
        {name: value for name, value in good[0].items() if name != "queue"},
        {**good[0], "kind": "evaporated", "id": "y"},
        {**good[0], "state": "floating", "id": "z"},
        {**good[0], "at_ms": 5, "id": "q"},
        {**good[0], "attempt": "many", "id": "r"},
        {**good[0], "created_ms": -1, "id": "s"},
        {**good[0], "due_ms": 2**63 - 1, "id": "t"},
        {**good[0], "started_ms": 253_402_300_800_000, "id": "u"},
        {**good[0], "finished_ms": -(2**63), "id": "w"},
        "[]",
    ]
    totals = take_in(lake, [*bad, *good])
    assert (totals.events, totals.quarantined, totals.read) == (3, 12, 15)
    found = {row.problem: row.raw for row in lake.read(QUARANTINE).collect()}
    assert set(found) == {
        "not JSON of the event's shape",
        "unknown version 2",
        "queue is missing",
        "unknown kind evaporated",
        "unknown state floating",
        "at_ms is not a time of this century",
        "created_ms is not a time from 1970 to 9999",
        "due_ms is not a time from 1970 to 9999",
        "started_ms is not a time from 1970 to 9999",
        "finished_ms is not a time from 1970 to 9999",
    }
    assert json.loads(found["unknown kind evaporated"])["kind"] == "evaporated"
    assert len(ids(lake)) == 3


def test_a_time_out_of_range_does_not_fail_a_compiled_plan(lake: Lake, history: History) -> None:
    """The other tests run without code generation, which may change the order of evaluation."""
    settings = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: lake.spark.conf.get(name) for name in settings}
    good = history.life("a").lines
    try:
        for name, value in settings.items():
            lake.spark.conf.set(name, value)
        totals = take_in(
            lake,
            [*({**good[0], name: 2**63 - 1} for name in ("at_ms", "created_ms", "due_ms")), *good],
        )
    finally:
        for name, old in before.items():
            assert old is not None
            lake.spark.conf.set(name, old)
    assert (totals.events, totals.quarantined) == (3, 3)


def test_a_job_may_be_due_in_another_century(lake: Lake, history: History) -> None:
    assert take_in(lake, [{**history.life("a").lines[0], "due_ms": 32_503_680_000_000}]).events == 1


def test_a_bad_record_is_stored_unchanged(lake: Lake, history: History) -> None:
    text = json.dumps({"v": 1, "kind": "evaporated", "colour": "red", "worker": None})
    take_in(lake, [text, "[ ]"])
    assert sorted(row.raw for row in lake.read(QUARANTINE).collect()) == ["[ ]", text]


def test_bytes_that_are_not_utf8_leave_the_table_readable(
    lake: Lake, history: History, tmp_path: Path
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "lines"
    folder.mkdir()
    good = [json.dumps(line).encode() for line in history.life("a").lines]
    (folder / "a.jsonl").write_bytes(
        b"\n".join([b"\xff\xfe nonsense", good[0].replace(b"acme", b"ac\xffme"), *good])
    )
    job = PipelineRun(lake, open_source(f"files://{folder}"), load_targets(None))
    job.start(lake.spark, once=True)
    job.wait()
    assert (job.brought.events, job.brought.quarantined) == (3, 2)
    for file in Path(lake.root, "quarantine").rglob("*.parquet"):
        pq.read_table(file).validate(full=True)
    assert "\ufffd\ufffd nonsense" in {row.raw for row in lake.read(QUARANTINE).collect()}


def test_bytes_of_a_topic_that_are_not_utf8_leave_the_table_readable(
    lake: Lake, history: History
) -> None:
    bad = [bytearray(b"\xff\xfe nonsense"), bytearray(b'{"v":1,"kind":"\xff"}')]
    records = lake.spark.createDataFrame([(value,) for value in bad], "value binary")
    ingest(
        lake,
        from_json_lines(records.withColumn("value", records.value.cast("string"))),
        Batch(run="test", number=0),
    )
    assert {row.raw for row in lake.read(QUARANTINE).collect()} == {
        "\ufffd\ufffd nonsense",
        '{"v":1,"kind":"\ufffd"}',
    }


def test_a_batch_of_bad_records_only_is_a_batch(lake: Lake) -> None:
    assert take_in(lake, ["nonsense"]).quarantined == 1
    assert ids(lake) == []


def test_a_lake_is_not_opened_in_another_format(
    lake: Lake, history: History, spark: SparkSession
) -> None:
    take_in(lake, history.life("a").lines)
    with pytest.raises(ConfigError, match="has the format parquet"):
        Lake(spark, lake.root, format="delta")


def test_the_state_of_a_lake_is_read_back_unchanged(
    lake: Lake, history: History, spark: SparkSession
) -> None:
    take_in(lake, history.life("a", at=3600).lines)
    again = Lake(spark, lake.root)
    assert again.state == lake.state
    assert again.state.dirty == ("day=2025-11-15/hour=1",)
    assert (
        msgspec.json.decode(Path(lake.root, "_jobq/state.json").read_text())["totals"]["events"]
        == 3
    )
