"""The audit proves correct histories, finds seeded faults, and says what it cannot prove."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from jobq import Queue
from jobq.errors import ConfigError
from jobq.pipeline import synthetic
from jobq.pipeline.audit import Audit, QueueAudit, StoreView, audit
from jobq.pipeline.cli.audit import audit_table, remarks
from jobq.pipeline.lake import Lake
from tests.pipeline.conftest import History, take_in

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
        queue.accepted,
        queue.rerun,
        queue.completed,
        queue.failed,
        queue.cancelled,
        queue.held,
    ) == (8, 1, 3, 2, 2, 2)
    assert queue.held_by_state == {"delayed": 0, "blocked": 1, "waiting": 1, "active": 0}


def without(kind: str, job: str) -> Callable[[Lines], Lines]:
    def drop(lines: Lines) -> Lines:
        gone = next(line for line in lines if line["kind"] == kind and line["job"] == job)
        return [line for line in lines if line is not gone]

    return drop


def repeated(kind: str, job: str) -> Callable[[Lines], Lines]:
    def double(lines: Lines) -> Lines:
        line = next(line for line in lines if line["kind"] == kind and line["job"] == job)
        return [*lines, {**line, "id": f"log-{len(lines) + 1}-0", "at_ms": line["at_ms"] + 60_000}]

    return double


def more(**event: Any) -> Callable[[Lines], Lines]:
    def add(lines: Lines) -> Lines:
        last = [line for line in lines if line["job"] == event["job"]][-1]
        return [
            *lines,
            {**last, "id": f"log-{len(lines) + 100}-0", "at_ms": last["at_ms"] + 60_000, **event},
        ]

    return add


@pytest.mark.parametrize(
    ("fault", "seed"),
    [
        ("no beginning", without("accepted", "plain")),
        ("broken chain", without("started", "plain")),
        ("broken chain", without("promoted", "retried")),
        ("run not explained", without("stalled", "retried")),
        ("two ends in one life", repeated("completed", "plain")),
        (
            "two ends in one life",
            more(job="plain", kind="failed", previous="active", state="failed"),
        ),
        ("resurrected", more(job="plain", kind="started", previous="waiting", state="active")),
        ("resurrected", without("rerun", "again")),
        (
            "illegal transition",
            more(job="held", kind="completed", previous="blocked", state="completed"),
        ),
        (
            "attempt miscounted",
            more(job="reused", kind="started", previous="waiting", state="active", attempt=7),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_seeded_fault_is_found_and_shown(
    lake: Lake, history: History, tmp_path: Path, fault: str, seed: Callable[[Lines], Lines]
) -> None:
    found = audited(lake, seed(everything(history)), examples=str(tmp_path / "examples"))
    assert (found.verdict, found.exit_code) == ("violated", 1)
    assert only(found).faults[fault] >= 1, only(found).problems
    shown = [
        json.loads(line)
        for path in (tmp_path / "examples").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert fault in {example["fault"] for example in shown}


def test_a_run_that_starts_twice_is_a_fault(lake: Lake, history: History) -> None:
    history.event("accepted", "a", "waiting").event("started", "a", "active", at=1).event(
        "started", "a", "active", at=2, previous="waiting"
    )
    assert only(audited(lake, history.lines)).faults["run not explained"] == 1


def test_a_dropped_last_event_is_found_by_comparing_with_the_store(history: History) -> None:
    queue = QueueAudit(
        tenant="acme",
        queue="mail",
        events=2,
        jobs=1,
        accepted=1,
        rerun=0,
        carried=0,
        completed=0,
        failed=0,
        cancelled=0,
        held=1,
        held_by_state={"active": 1},
        faults={},
        store=StoreView(counts={"completed": 1}),
    )
    assert queue.verdict == "violated"
    assert queue.problems == ["active: 1 in the lake, 0 in the store"]


def test_a_gap_makes_faults_unprovable_except_illegal_transitions(
    lake: Lake, history: History
) -> None:
    lines = without("started", "plain")(everything(history))
    found = audited(lake, [*lines, *history.gap(at=5).lines[-1:]])
    assert (found.verdict, found.exit_code) == ("unprovable", 2)
    assert only(found).gaps == 1
    take_in(
        lake,
        more(job="held", kind="completed", previous="blocked", state="completed")(lines)[-1:],
        number=1,
    )
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
    assert (queue.verdict, queue.carried, queue.completed) == ("proved", 1, 1)


def test_operations_on_a_queue_do_not_count_in_the_balance(lake: Lake, history: History) -> None:
    history.done("paused").life("a").done("limits", '{"limit":3}').event(
        "accepted", "b", "waiting", at=5
    ).done("purged", "1 job")
    queue = only(audited(lake, history.lines))
    assert (queue.verdict, queue.jobs, queue.accepted, queue.held, queue.gaps) == (
        "proved",
        2,
        2,
        1,
        0,
    )
    assert queue.events == 7


def test_synthetic_events_are_legal_and_in_the_wire_format(lake: Lake, spark: SparkSession) -> None:
    from jobq.core import wire

    lines = list(synthetic.lines(synthetic.Plan(jobs=3_000, hours=2)))
    for line in lines[:500]:
        assert json.loads(wire.encode(wire.decode(line))) == json.loads(line)
    logs: dict[tuple[str, str, int], list[int]] = {}
    for line in map(json.loads, lines):
        logs.setdefault((line["tenant"], line["queue"], line["shard"]), []).append(line["number"])
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in logs.values())
    found = audited(lake, lines)  # type: ignore[arg-type]
    assert found.verdict == "proved", [queue.problems for queue in found.queues]
    assert sum(queue.events for queue in found.queues) == len(lines)


def test_the_counts_are_compared_with_the_store_once_the_lake_has_caught_up(
    lake: Lake, tmp_path: Path
) -> None:
    from jobq.client.log_reader import BEGINNING, LogReader
    from jobq.core import wire

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
    assert (queue.verdict, queue.behind, queue.differs) == ("unprovable", True, {"waiting": (3, 5)})
    take_in(
        lake, lines[:3] + lines[4:], number=1
    )  # one event is lost, but the last one has arrived
    queue = only(audit(lake, store=url))
    assert (queue.verdict, queue.problems) == (
        "violated",
        ["waiting: 4 in the lake, 5 in the store"],
    )
    take_in(lake, lines, number=2)
    assert audit(lake, store=url).verdict == "proved"


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
    assert found.queues[1].behind
    assert found.queues[1].differs == {"waiting": (0, 1)}
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
    fields = {
        "tenant": "umbrella",
        "queue": "thumbnails-large",
        "events": 1,
        "jobs": 1,
        "carried": 0,
        "held_by_state": {},
    }
    found = Audit(queues=(QueueAudit(**fields, **books, faults={"resurrected": 2}),))  # type: ignore[arg-type]
    console = Console(width=80, file=StringIO())
    console.print(audit_table(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(name in text for name in (*books, "tenant/queue", "12,345,678", "123,456", "12,345"))
    assert remarks(found) == [
        "umbrella/thumbnails-large: violated; 2 × resurrected; "
        "12,345 more lives ended than started",
        "0 of 1 queues proved",
    ]
