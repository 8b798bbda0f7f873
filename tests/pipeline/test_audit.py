"""The audit proves correct histories, finds seeded faults, and says what it cannot prove."""

from __future__ import annotations

import asyncio
import json
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from jobq import Queue
from jobq.core.records.jobs import QueueName
from jobq.core.records.marks import Mark, encode
from jobq.errors import ConfigError
from jobq.pipeline import synthetic
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.audit.proof import LogProof, QueueTotals
from jobq.pipeline.audit.verdict import Audit, QueueAudit
from jobq.pipeline.cli.audit import audit_table, remarks
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import EVENTS, QUARANTINE
from tests.pipeline.conftest import History, take_in
from tests.pipeline.stories import in_store

Lines = list[dict[str, Any]]


def everything(history: History) -> Lines:
    """One job for each way through the states."""
    h = history
    h.life("plain").life("failed", end="failed").life("cancelled", end="cancelled")
    h.event("accepted", "retried", "delayed").event("promoted", "retried", "waiting", at=1).event(
        "started", "retried", "active", at=2
    )
    h.event("retried", "retried", "delayed", at=3).event(
        "promoted", "retried", "waiting", at=4
    ).event("started", "retried", "active", at=5)
    h.event("stalled", "retried", "waiting", at=6).event(
        "started", "retried", "active", at=7
    ).event("completed", "retried", "completed", at=8)
    h.life("again", end="failed").event("rerun", "again", "waiting", at=9).event(
        "started", "again", "active", at=10
    )
    h.event("completed", "again", "completed", at=11)
    h.life("reused", end="cancelled").event(
        "accepted", "reused", "waiting", at=12, life=1, attempt=0
    )
    h.event("accepted", "held", "blocked")
    return h.lines


def audited(lake: Lake, lines: Lines, **options: Any) -> Audit:
    take_in(lake, lines)
    return audit(lake, **options)


def only(found: Audit) -> QueueAudit:
    (queue,) = found.queues
    return queue


def test_a_correct_history_is_proved(lake: Lake, history: History) -> None:
    found = audited(lake, everything(history))
    queue = only(found)
    assert queue.problems == []
    assert (found.verdict, found.exit_code) == ("proved", 0)
    assert (
        queue.totals.accepted,
        queue.totals.rerun,
        queue.totals.completed,
        queue.totals.failed,
        queue.totals.cancelled,
        queue.held,
    ) == (8, 1, 3, 2, 2, 2)
    assert {state: n for state, n in queue.totals.states.items() if n} == {
        "blocked": 1,
        "waiting": 1,
        "completed": 3,
        "failed": 1,
        "cancelled": 1,
    }


def test_a_gap_excuses_its_own_numbers_but_no_illegal_transition(
    lake: Lake, history: History
) -> None:
    history.life("plain").event("accepted", "cut", "waiting", at=5).gap(at=6, dropped=2)
    history.event("completed", "cut", "completed", at=7, previous="active", attempt=1)
    found = audited(lake, history.lines)
    assert (found.verdict, only(found).exceptions) == (
        "proved",
        ["except 5–6, dropped unread on 2025-11-15 00:00:06"],
    )
    assert only(found).totals.excused == 1
    assert remarks(found)[0].startswith("acme/mail: proved; except 5–6, dropped unread on")
    history.event("completed", "plain", "completed", at=8, previous="blocked")
    take_in(lake, history.lines[-1:], number=1)
    assert audit(lake).verdict == "violated"


def test_jobs_older_than_retention_need_no_first_event(lake: Lake, history: History) -> None:
    from datetime import date

    from jobq.pipeline.jobs.upkeep import retain

    history.event("accepted", "old", "waiting", at=86_000)
    history.event("started", "old", "active", at=86_500).event(
        "completed", "old", "completed", at=86_500
    )
    lines = [
        *history.lines[:1],
        *({**line, "at_ms": line["at_ms"] + 86_400_000} for line in history.lines[1:]),
    ]
    take_in(lake, lines)
    assert retain(lake, keep_days=1, today=date(2025, 11, 17))["events"] == 1
    queue = only(audit(lake))
    assert (queue.verdict, queue.totals.carried, queue.totals.completed) == ("proved", 1, 1)


DAY = 86_400  # seconds


def mark(queue: str, number: int, *, at: float) -> dict[str, Any]:
    """A mark in the only partition, with the time of the event that it follows."""
    at_ms = History.START + int(at * 1000)
    of = QueueName("acme", queue)
    return dict(json.loads(encode(Mark(queue=of, log="log", shard=0, number=number, at_ms=at_ms))))


def test_what_retention_removed_is_named_and_what_it_kept_is_missed(
    lake: Lake, history: History
) -> None:
    from datetime import date

    from jobq.pipeline.audit import removed
    from jobq.pipeline.jobs.upkeep import retain

    history.life("a", queue="idle").life("a", queue="unread")
    history.life("a").gap(dropped=2).life("b", at=3 * DAY)  # in the queue mail
    # Just after midnight, an event with a later time may have a lower number.
    for at in (2 * DAY + 10, 2 * DAY - 1, 2 * DAY + 7_200):
        history.event("accepted", f"at {at}", "waiting", queue="midnight", at=at)
    marks = [mark(queue, 3, at=3) for queue in ("idle", "unread")]
    marks += [mark("midnight", 3, at=2 * DAY + 7_200), mark("mail", 8, at=3 * DAY + 3)]
    take_in(lake, [*history.lines, *marks], number=0)
    known = len(history.lines)
    assert audit(lake).verdict == "proved"
    history.life("b", queue="unread", at=DAY).life("c", queue="unread", at=3 * DAY)
    history.life("a", queue="new", at=3 * DAY).lines.pop(-3)  # its first event is lost
    marks = [mark("unread", 9, at=3 * DAY + 3), mark("new", 3, at=3 * DAY + 3)]
    take_in(lake, [*history.lines[known:], *marks], number=1)
    assert retain(lake, keep_days=2, today=date(2025, 11, 19))["events"] == 3

    def told(*, full: bool) -> dict[str, tuple[list[str], list[str]]]:
        """What is lost of each queue, and what is excused."""
        found = audit(lake, full=full).queues
        return {
            queue.queue: ([p for p in queue.problems if "lost" in p], queue.exceptions)
            for queue in found
        }

    gone = "except {}, removed by retention".format
    dropped = "except 4–5, dropped unread on 2025-11-15 00:00:00"
    assert told(full=False) == {
        "idle": ([], []),
        "mail": ([], [dropped]),
        "midnight": ([], []),
        "new": (["1 × lost: 1"], []),
        "unread": ([], [gone("4–6")]),  # no audit has read them
    }
    assert told(full=True) == {
        "idle": ([], [gone("1–3")]),
        "mail": ([], [gone("1–5")]),  # with the reason why two are missing
        "midnight": ([], [gone("2")]),
        "new": (["1 × lost: 1"], []),
        "unread": ([], [gone("1–6")]),
    }
    # Older versions stored no numbers: what was removed is known by time, and for one audit.
    lake.save(msgspec.structs.replace(lake.state, removed=None))
    known = len(history.lines)
    history.life("b", queue="idle", at=3 * DAY)
    late = [*history.lines[known + 1 :], mark("idle", 6, at=3 * DAY + 3)]
    bad = {**history.lines[-1], "queue": "bad", "number": 7, "kind": "evaporated"}
    take_in(lake, [*late, bad], number=2)
    assert told(full=False)["idle"] == (["1 × lost: 4"], [gone("1–3")])
    # The days that retention has kept are still complete.
    rows = lake.read(EVENTS).where("queue <> 'unread'").localCheckpoint()
    lake.space.replace(EVENTS, rows, lake.space.parts(EVENTS))
    assert told(full=True) | {"idle": None, "bad": None} == {
        "idle": None,  # by time alone, number 4 may have been removed too
        "bad": None,
        "mail": ([], [gone("1–5")]),
        "midnight": ([], [gone("2")]),
        "new": ([], [gone("1")]),
        "unread": (["1 × lost: 9"], [gone("1–8")]),
    }
    # A record in quarantine has a number too.
    name = removed.record(lake, (), lake.space.parts(QUARANTINE))
    lake.save(msgspec.structs.replace(lake.state, removed=name))
    assert removed.load(lake).numbers == {("acme", "bad", "log", 0): ((7, 7),)}
    assert removed.load(lake).before == "2025-11-17"


def test_operations_on_a_queue_do_not_count_in_the_balance(lake: Lake, history: History) -> None:
    history.done("paused").life("a").done("limits", '{"limit":3}').event(
        "accepted", "b", "waiting", at=5
    ).done("purged", "1 job")
    queue = only(audited(lake, history.lines))
    totals = queue.totals
    assert (queue.verdict, totals.jobs, totals.accepted, queue.held) == ("proved", 2, 2, 1)
    assert (totals.events, queue.gaps) == (7, [])


def test_synthetic_events_are_legal_and_in_the_wire_format(lake: Lake, spark: SparkSession) -> None:
    from jobq.core.records import wire

    lines = list(synthetic.lines(synthetic.Plan(jobs=3_000, hours=2)))
    for line in lines[:500]:
        assert json.loads(wire.encode(wire.decode(line))) == json.loads(line)
    logs: dict[tuple[str, str, int], list[int]] = {}
    for line in map(json.loads, lines):
        logs.setdefault((line["tenant"], line["queue"], line["shard"]), []).append(line["number"])
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in logs.values())
    found = audited(lake, lines)  # type: ignore[arg-type]
    assert found.verdict == "proved", [queue.problems for queue in found.queues]
    assert sum(queue.totals.events for queue in found.queues) == len(lines)


def test_the_counts_are_compared_with_the_store_once_the_lake_has_caught_up(
    lake: Lake, tmp_path: Path
) -> None:
    from jobq.client.log_reader import BEGINNING, LogReader
    from jobq.core.records import wire

    url = f"sqlite:///{tmp_path}/jobs.db"

    async def put(count: int) -> list[Any]:
        async with Queue("mail", url) as queue:
            await queue.task_by_name("send").enqueue_many([(n,) for n in range(count)])
        async with LogReader(url) as log:
            (name,) = await log.queues()
            return [
                wire.encode(event).decode()
                for event in (await log.page(name, BEGINNING, 1000)).events
            ]

    take_in(lake, asyncio.run(put(3)))
    assert only(audit(lake, store=url)).verdict == "proved"
    lines = asyncio.run(put(2))
    queue = only(audit(lake, store=url))
    assert (queue.verdict, queue.behind, queue.differs) == ("unprovable", 2, {})
    take_in(lake, lines[4:], number=1)  # one event is lost, but the last one has arrived
    queue = only(audit(lake, store=url))
    assert (queue.verdict, queue.behind) == ("unprovable", 2)
    take_in(lake, lines, number=2)
    queue = only(audit(lake, store=url))
    assert (queue.verdict, queue.reach) == ("proved", "up to 5, the store's end")

    # What is unlike the store stays a violation until an audit of everything finds it right.
    job = "WHERE qid = :queue AND id = (SELECT min(id) FROM jobs WHERE qid = :queue)"
    in_store(tmp_path / "jobs.db", "mail", f"UPDATE jobs SET attempt = 9 {job}")
    queue = only(audit(lake, store=url, full=True))
    assert (queue.verdict, queue.compared, queue.contradicted) == ("violated", 5, 1)
    in_store(tmp_path / "jobs.db", "mail", f"UPDATE jobs SET attempt = 0 {job}")
    again = only(audit(lake))
    assert (again.verdict, again.problems) == ("violated", queue.problems)
    assert only(audit(lake, store=url, full=True)).verdict == "proved"


def test_a_queue_without_events_in_the_lake_is_audited(
    lake: Lake, history: History, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def put() -> None:
        async with Queue("unseen", url, tenant="globex") as queue, Queue("unused", url):
            await queue.task_by_name("send").enqueue(1)

    asyncio.run(put())
    take_in(lake, history.life("a").lines)
    found = audit(lake, store=url)
    assert [(queue.tenant, queue.queue, queue.verdict) for queue in found.queues] == [
        ("acme", "mail", "proved"),
        ("globex", "unseen", "unprovable"),
    ]
    assert found.queues[1].behind == 1
    assert (found.verdict, found.exit_code) == ("unprovable", 2)


def test_an_audit_without_queues_is_unprovable() -> None:
    found = Audit(queues=())
    assert (found.verdict, found.exit_code) == ("unprovable", 2)
    assert remarks(found) == ["no queue to audit: no event has reached the lake"]


def test_a_folder_that_is_not_a_lake_is_refused_and_not_created(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="there is no lake in"):
        audit(Lake(spark, f"{tmp_path}/typo"))
    assert not (tmp_path / "typo").exists()


def test_the_audits_table_is_readable_at_80_columns() -> None:
    books = {
        "accepted": 12_345_678,
        "rerun": 123_456,
        "completed": 12_345_678,
        "failed": 123_456,
        "cancelled": 12_345,
        "held": 0,
    }
    states = {"waiting": books.pop("held")}
    totals = QueueTotals(
        tenant="umbrella",
        queue="thumbnails-large",
        events=1,
        jobs=1,
        states=states,
        faults={"resurrected": 2},
        **books,
    )
    log = LogProof(tenant="umbrella", queue="thumbnails-large", log="l", shard=0, proved=1)
    found = Audit(queues=(QueueAudit(totals=totals, logs=(log,)),))
    console = Console(width=80, file=StringIO())
    console.print(audit_table(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(
        name in text for name in (*books, "held", "tenant/queue", "12,345,678", "123,456", "12,345")
    )
    assert remarks(found) == [
        "umbrella/thumbnails-large: violated; 2 × resurrected; "
        "12,345 more lives ended than started",
        "0 of 1 queues proved; read 0 events (all events)",
    ]
