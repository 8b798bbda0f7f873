"""Into the lake exactly once, whatever is repeated, late or broken."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from jobq.errors import ConfigError
from jobq.pipeline.jobs.ingest import ingest
from jobq.pipeline.lake import Batch, Lake, Totals
from jobq.pipeline.tables import EVENTS, QUARANTINE
from tests.pipeline.conftest import History, take_in, wire_rows


def ids(lake: Lake) -> list[str]:
    """The ids of all events in the lake."""
    return sorted(row.id for row in lake.read(EVENTS).select("id").collect())


def test_an_event_arrives_with_its_declared_types(lake: Lake, history: History) -> None:
    take_in(lake, history.life("a", at=3600.25).lines)
    rows = lake.read(EVENTS)
    assert rows.schema == EVENTS.schema
    found = (
        rows.where("kind = 'completed'").selectExpr("job", "unix_millis(at)", "string(day)", "hour", "state", "previous").first()
    )
    assert tuple(found) == ("a", History.START + 3_603_250, "2025-11-15", 1, "completed", "active")


def test_a_batch_repeated_changes_nothing(lake: Lake, history: History) -> None:
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


def test_a_lost_checkpoint_costs_time_but_no_event_twice(lake: Lake, history: History) -> None:
    take_in(lake, history.life("a").lines, run="first")
    assert take_in(lake, history.lines, run="second").events == 0
    assert len(ids(lake)) == 3


def test_a_late_event_goes_where_it_belongs_and_is_counted(lake: Lake, history: History) -> None:
    take_in(lake, history.life("a", at=80_000).lines, number=0)
    late = take_in(lake, history.life("b", at=60).lines[3:], number=1)
    assert (late.events, late.late) == (3, 3)
    assert lake.read(EVENTS).where("hour = 0").count() == 3


@pytest.mark.parametrize("at", ["staged", "published", "half published"])
def test_a_batch_broken_off_is_repaired_by_its_repetition(
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


def test_bad_records_go_to_quarantine_with_the_reason_and_stop_nothing(lake: Lake, history: History) -> None:
    good = history.life("a").lines
    bad: list[object] = [
        "not json at all",
        {**good[0], "v": 2, "id": "x"},
        {name: value for name, value in good[0].items() if name != "queue"},
        {**good[0], "kind": "evaporated", "id": "y"},
        {**good[0], "state": "floating", "id": "z"},
        {**good[0], "at_ms": 5, "id": "q"},
        {**good[0], "attempt": "many", "id": "r"},
    ]
    totals = take_in(lake, [*bad, *good])
    assert (totals.events, totals.quarantined, totals.read) == (3, 7, 10)
    found = {row.problem: row.raw for row in lake.read(QUARANTINE).collect()}
    assert set(found) == {
        "not JSON of the event's shape", "unknown version 2", "queue is missing", "unknown kind evaporated",
        "unknown state floating", "at_ms is not a time of this century",
    }  # fmt: skip
    assert json.loads(found["unknown kind evaporated"])["kind"] == "evaporated"
    assert len(ids(lake)) == 3


def test_a_batch_of_bad_records_only_is_a_batch(lake: Lake) -> None:
    assert take_in(lake, ["nonsense"]).quarantined == 1
    assert ids(lake) == []


def test_a_lake_is_not_opened_in_another_format(lake: Lake, history: History, spark: SparkSession) -> None:
    take_in(lake, history.life("a").lines)
    with pytest.raises(ConfigError, match="is kept as parquet"):
        Lake(spark, lake.root, format="delta")


def test_the_state_of_a_lake_is_read_back_as_it_was_written(lake: Lake, history: History, spark: SparkSession) -> None:
    take_in(lake, history.life("a", at=3600).lines)
    again = Lake(spark, lake.root)
    assert again.state == lake.state
    assert again.state.dirty == ("day=2025-11-15/hour=1",)
    assert msgspec.json.decode(Path(lake.root, "_jobq/state.json").read_text())["totals"]["events"] == 3
