"""The audit judges every falsification between the store and the lake rightly.

Each one is a queue of its own. All have the same history in one real store, their events are
shipped by a real relay, falsified on the way, and read into one lake, which is audited once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from jobq.core.records.jobs import QueueName
from jobq.pipeline.audit.audit import audit
from jobq.pipeline.audit.verdict import Audit, QueueAudit
from jobq.pipeline.jobs.run import PipelineRun
from jobq.pipeline.lake import Lake
from jobq.pipeline.session import Format
from jobq.pipeline.sources import open_source
from jobq.stores import open_store
from tests.pipeline import stories
from tests.pipeline.stories import (
    MANY,
    Falsify,
    Lines,
    both,
    copied,
    dropped_unread,
    forged_at_the_end,
    in_shards,
    marked_in,
    moved_to,
    only_marks,
    rewritten,
    swapped,
    without,
    without_marks,
    without_numbers,
)

VIOLATED, UNPROVABLE, PROVED = "violated", "unprovable", "proved"


class Case(NamedTuple):
    """A falsification, the verdict, and words of the explanation."""

    verdict: str
    falsify: Falsify
    says: str = ""


def nothing(lines: Lines) -> Lines:
    return lines


def quarantined(lines: Lines) -> Lines:
    return rewritten({"job": "plain", "kind": "completed"}, state="finished")(lines)


CASES: dict[str, Case] = {
    # ── events that never arrive ──────────────────────────────────────────────────────────────────
    "all events of a job dropped": Case(VIOLATED, without(job="plain"), "3 × lost"),
    "all events of ten jobs dropped": Case(VIOLATED, without(job=tuple(MANY)), "30 × lost"),
    "all events of a failed job dropped": Case(VIOLATED, without(job="failed"), "3 × lost"),
    "a middle life dropped": Case(VIOLATED, without(job="again", life=1), "3 × lost"),
    "the last life dropped": Case(VIOLATED, without(job="again", life=2), "3 × lost"),
    "a held job dropped": Case(VIOLATED, without(job="held"), "1 × lost"),
    "an accepted dropped": Case(VIOLATED, without(job="plain", kind="accepted"), "no beginning"),
    "a started dropped": Case(VIOLATED, without(job="plain", kind="started"), "broken chain"),
    "a retry dropped": Case(VIOLATED, without(job="retried", kind="retried"), "run not explained"),
    "an end dropped": Case(VIOLATED, without(job="plain", kind="completed"), "1 × lost"),
    "a failure dropped": Case(VIOLATED, without(job="failed", kind="failed"), "1 × lost"),
    "a rerun dropped": Case(VIOLATED, without(job="again", kind="rerun", life=1), "resurrected"),
    "a cancel dropped": Case(VIOLATED, without(job="reused", kind="cancelled"), "accepted twice"),
    "a changed dropped": Case(VIOLATED, without(kind="changed"), "1 × lost"),
    "an operation on the queue dropped": Case(VIOLATED, without(kind="paused"), "1 × lost: 1"),
    "the first event dropped": Case(VIOLATED, without_numbers(1), "1 × lost: 1"),
    "the last event dropped": Case(VIOLATED, without_numbers(-1), "1 × lost"),
    "every second event dropped": Case(VIOLATED, without_numbers(*range(2, 40, 2)), "19 × lost"),
    "a range dropped": Case(VIOLATED, without_numbers(*range(10, 20)), "10 × lost: 10–19"),
    "all events dropped, but not the mark": Case(VIOLATED, only_marks, "lost: 1–"),
    "the last events and the mark dropped": Case(
        UNPROVABLE, both(without_marks, without_numbers(-1, -2, -3)), "3 events behind the store"
    ),
    "everything dropped": Case(UNPROVABLE, lambda _: [], "behind the store"),
    "an event dropped, without marks": Case(
        UNPROVABLE, both(without_marks, without(job="plain", kind="started")), "without marks"
    ),
    "an event dropped, with a mark in one of two partitions": Case(
        UNPROVABLE, both(marked_in(0, 2), without(job="plain", kind="started")), "behind the store"
    ),
    # ── events that are changed ───────────────────────────────────────────────────────────────────
    "completed rewritten as failed": Case(
        VIOLATED,
        rewritten(
            {"job": "plain", "kind": "completed"},
            kind="failed",
            state="failed",
            reason="error",
            failures=1,
        ),
        "unlike the store: plain",
    ),
    "failed rewritten as completed": Case(
        VIOLATED,
        rewritten(
            {"job": "failed", "kind": "failed"}, kind="completed", state="completed", failures=0
        ),
        "unlike the store: failed",
    ),
    "an end without its failure": Case(
        VIOLATED, rewritten({"job": "failed", "kind": "failed"}, failures=0), "failures miscounted"
    ),
    "an attempt rewritten": Case(
        VIOLATED, rewritten({"job": "plain", "kind": "completed"}, attempt=2), "attempt miscounted"
    ),
    "a life rewritten": Case(
        VIOLATED, rewritten({"job": "plain", "kind": "completed"}, life=1), "life miscounted"
    ),
    "a life up by two": Case(
        VIOLATED,
        rewritten({"job": "again", "life": (1, 2)}, life=lambda n: n + 1),
        "life miscounted",
    ),
    "a task renamed in one event": Case(
        VIOLATED, rewritten({"job": "plain", "kind": "started"}, name="other"), "renamed"
    ),
    "a task renamed in all events of a job": Case(
        VIOLATED, rewritten({"job": "held"}, name="other"), "unlike the store: held"
    ),
    "a job renamed": Case(VIOLATED, rewritten({"job": "plain"}, job="other"), "unlike the store"),
    "an event given to another job": Case(
        VIOLATED, rewritten({"job": "plain", "kind": "completed"}, job="held"), "no beginning"
    ),
    "an illegal transition": Case(
        VIOLATED,
        rewritten({"job": "plain", "kind": "started"}, previous="blocked"),
        "illegal transition",
    ),
    "a time before the event before": Case(
        VIOLATED,
        rewritten({"job": "plain", "kind": "completed"}, at_ms=lambda ms: ms - 60_000),
        "time runs backwards",
    ),
    "an id of another log": Case(
        VIOLATED,
        rewritten({"job": "plain", "kind": "started"}, id=lambda id: "other" + id),
        "1 × lost",
    ),
    "an event moved to another queue's tenant": Case(
        VIOLATED, rewritten({"job": "plain", "kind": "started"}, tenant="globex"), "1 × lost"
    ),
    "two events of a job swapped": Case(
        VIOLATED,
        swapped({"job": "plain", "kind": "started"}, {"job": "plain", "kind": "completed"}),
        "broken chain",
    ),
    "an event renumbered": Case(
        VIOLATED,
        rewritten({"job": "plain", "kind": "completed"}, number=lambda n: n + 1_000),
        "1 × lost",
    ),
    "an event renumbered as another": Case(
        VIOLATED,
        rewritten({"job": "plain", "kind": "completed"}, number=1),
        "1 × number of two events",
    ),
    # ── events that were never there ──────────────────────────────────────────────────────────────
    "a job forged at the end": Case(VIOLATED, forged_at_the_end, "the store's log ends at"),
    "a job forged under a number in use": Case(
        VIOLATED,
        copied({"job": "held"}, job="forged", id=lambda id: id[:-1] + "x"),
        "1 × number of two events",
    ),
    "an event repeated under another id": Case(
        VIOLATED,
        copied({"job": "plain", "kind": "completed"}, id=lambda id: id[:-1] + "x"),
        "1 × number of two events",
    ),
    "an event of another log": Case(
        UNPROVABLE,
        copied({"job": "held"}, job="forged", number=500, id=lambda id: "other" + id),
        "without marks",
    ),
    # ── gaps and quarantine ───────────────────────────────────────────────────────────────────────
    "a gap dropped": Case(
        VIOLATED, both(dropped_unread(10, 19), without(kind="gap")), "10 × lost: 10–19"
    ),
    "an event dropped before a gap": Case(
        VIOLATED, both(dropped_unread(10, 19), without_numbers(9)), "1 × lost: 9"
    ),
    "an event dropped after a gap": Case(
        VIOLATED, both(dropped_unread(10, 19), without_numbers(20)), "1 × lost: 20"
    ),
    "an event in quarantine": Case(UNPROVABLE, quarantined, "1 records in quarantine"),
    "a tombstone from a source": Case(
        UNPROVABLE, rewritten({"job": "held"}, kind="erased"), "1 records in quarantine"
    ),
    # ── a store that lost something ───────────────────────────────────────────────────────────────
    "a job deleted in the store": Case(VIOLATED, nothing, "unlike the store: held"),
    "a job changed in the store": Case(VIOLATED, nothing, "unlike the store: plain"),
    # ── nothing is wrong ──────────────────────────────────────────────────────────────────────────
    "untouched": Case(PROVED, nothing),
    "every event twice": Case(PROVED, lambda lines: lines + lines),
    "in another order": Case(PROVED, lambda lines: lines[::-1]),
    "a relay without marks": Case(PROVED, without_marks),
    "events dropped unread": Case(PROVED, dropped_unread(10, 19)),
    "two shards": Case(PROVED, in_shards),
    "a queue of another store": Case(PROVED, moved_to("elsewhere")),
    "a queue that was obliterated": Case(PROVED, nothing),
}


class World(NamedTuple):
    """The audit of all falsified queues, and its counterexamples."""

    found: Audit
    examples: list[dict[str, Any]]

    def queue(self, name: str) -> QueueAudit:
        tenant = "elsewhere" if name in ("two shards", "a queue of another store") else "acme"
        return next(q for q in self.found.queues if (q.tenant, q.queue) == (tenant, name))


def run(lake: Lake, source: str) -> None:
    """Read a source into the lake."""
    job = PipelineRun(lake, open_source(source), ())
    job.start(lake.spark, once=True)
    job.wait()


def write(folder: Path, name: str, lines: Lines) -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{name}.jsonl").write_text(text)


def to_files(folder: Path, lines: Lines) -> str:
    """Write the lines to a folder. Returns the URL of the source."""
    write(folder / "events", "all", lines)
    return str(folder / "events")


def make_world(
    spark: SparkSession,
    folder: Path,
    *,
    format: Format = "parquet",
    deliver: Callable[[Path, Lines], str] = to_files,
) -> World:
    """Make the store, falsify what it ships, read it into a lake, and audit the lake."""
    url = f"sqlite:///{folder}/jobs.db"

    async def history() -> dict[str, Lines]:
        await stories.make(url, [*CASES])
        async with open_store(url) as store:
            gone = QueueName(stories.TENANT, "a queue that was obliterated")
            obliterate = partial(store.obliterate, gone, force=True)
            return await stories.ship(store, folder / "shipped", obliterate)

    lines = asyncio.run(history())
    job = "WHERE qid = :queue AND id ="
    for queue, sql in (
        ("a job deleted in the store", f"DELETE FROM jobs {job} 'held'"),
        ("a job changed in the store", f"UPDATE jobs SET attempt = 9 {job} 'plain'"),
    ):
        stories.in_store(folder / "jobs.db", queue, sql)
    falsified = [line for name, case in CASES.items() for line in case.falsify(lines[name])]
    lake = Lake(spark, str(folder / "lake"), format=format)
    run(lake, deliver(folder, falsified))
    found = audit(lake, store=url, examples=str(folder / "examples"))
    text = (folder / "examples" / "examples.json").read_text()
    return World(found, [json.loads(line) for line in text.splitlines()])


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(spark, tmp_path_factory.mktemp("falsified"))


@pytest.mark.parametrize("name", CASES)
def test_a_falsification_is_judged_rightly(world: World, name: str) -> None:
    case = CASES[name]
    assert world.queue(name).verdict == case.verdict, said(world, name)
    assert case.says in said(world, name)


def said(world: World, name: str) -> str:
    """What the audit says about one falsification."""
    queue = world.queue(name)
    return "; ".join([*queue.problems, *queue.doubts, *queue.exceptions])


def test_violations_have_counterexamples(world: World) -> None:
    shown = {example["queue"] for example in world.examples}
    assert shown == {q.queue for q in world.found.queues if q.verdict == VIOLATED}


def test_a_gap_is_named_as_an_exception(world: World) -> None:
    (text,) = world.queue("events dropped unread").exceptions
    assert text.startswith("except 10–19, dropped unread on 20")
