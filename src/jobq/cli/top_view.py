"""The screen of `jq-ctl top`: queues with their rates, workers, and the latest failures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli import documents, text
from jobq.cli.output import Cell, Column, table
from jobq.cli.queue_view import QueueSummary, queue_status
from jobq.core.queues import MinuteRecord
from jobq.core.records import JobRecord, QueueName
from jobq.core.states import State
from jobq.core.workers import WorkerRecord

_RATES = ("accepted", "started", "completed", "failed")
_LINES_OF_FRAME = 12
"""Lines of the screen that are no rows: the summary, the headings, rules and gaps of three tables,
and a note below a table that does not fit."""
_LEAST_ROWS = 3
"""Rows that each table gets on the smallest screen."""


class Flow(NamedTuple):
    """What has happened in a queue: sums of its last minutes, by the beginning of each minute."""

    minutes: dict[int, MinuteRecord]
    at: float
    """When this was read, in seconds of the monotonic clock."""

    @staticmethod
    def of(minutes: Sequence[MinuteRecord], at: float) -> Flow:
        """From the store's figures."""
        return Flow({minute.minute_ms: minute for minute in minutes}, at)

    def since(self, before: Flow | None) -> dict[str, float]:
        """Jobs per second since an earlier look, or else in the minutes that are known."""
        if before is None:
            seconds = 60.0 * max(1, len(self.minutes))
            return {name: self._sum(name) / seconds for name in _RATES}
        seconds = max(0.001, self.at - before.at)
        return {
            name: sum(
                max(0, getattr(minute, name) - getattr(before.minutes.get(key), name, 0))
                for key, minute in self.minutes.items()
            )
            / seconds
            for name in _RATES
        }

    def _sum(self, name: str) -> int:
        return sum(getattr(minute, name) for minute in self.minutes.values())


class Snapshot(NamedTuple):
    """Everything on the screen, at one moment."""

    store: str
    tenant: str
    now_ms: int
    queues: Sequence[QueueSummary]
    rates: dict[QueueName, dict[str, float]]
    workers: Sequence[WorkerRecord]
    failures: Sequence[JobRecord]
    more_queues: int = 0
    """Queues that are not shown."""
    problem: str | None = None
    """Why the figures are not new: the store does not respond."""

    @property
    def document(self) -> documents.Document:
        """The document for -o json and yaml."""
        return {
            "at": text.iso(self.now_ms),
            "queues": [
                {**each.document, "rates": self.rates.get(each.record.queue)}
                for each in self.queues
            ],
            "workers": [documents.worker(each) for each in self.workers],
            "failures": [documents.job(each) for each in self.failures],
            "more_queues": self.more_queues,
        }


def top_view(seen: Snapshot, height: int | None = None) -> RenderableType:
    """The screen, with at most `height` lines. None: as many as there are."""
    rows = _rows(seen, height)
    parts: list[RenderableType] = [_summary(seen), Text()]
    parts.append(_queues(seen, rows[0]))
    if seen.workers:
        parts += [Text(), _workers(seen, rows[1])]
    if seen.failures:
        parts += [Text(), _failures(seen, rows[2])]
    return Group(*parts)


def _rows(seen: Snapshot, height: int | None) -> tuple[int, int, int]:
    """How many rows each table may have. Queues get the most, and what others leave."""
    wanted = (len(seen.queues), len(seen.workers), len(seen.failures))
    if height is None:
        return wanted
    room = max(3 * _LEAST_ROWS, height - _LINES_OF_FRAME)
    failures = min(wanted[2], max(_LEAST_ROWS, room // 4))
    workers = min(wanted[1], max(_LEAST_ROWS, room // 4))
    queues = min(wanted[0], room - failures - workers)
    workers = min(wanted[1], room - failures - queues)
    return queues, workers, min(wanted[2], room - queues - workers)


def _summary(seen: Snapshot) -> RenderableType:
    busy = sum(worker.active for worker in seen.workers)
    slots = sum(worker.concurrency for worker in seen.workers)
    totals = {s: sum(each.stats.counts.get(s, 0) for each in seen.queues) for s in State}
    parts = [
        Text(f"{text.clock(seen.now_ms)[:8]}  {seen.store}", style="bold"),
        Text(f"{text.plural(len(seen.workers), 'worker')}, {busy:,} of {slots:,} slots busy"),
        *(Text(f"{n:,} {s.value}", style=text.STATE_STYLES[s]) for s, n in totals.items() if n),
    ]
    line = Text("  ").join(parts)
    if seen.more_queues:
        line += Text(f"  {text.plural(seen.more_queues, 'queue')} not shown", style="yellow")
    if seen.problem is not None:
        line += Text(f"\n! {text.clean(seen.problem)}", style="red")
    return line


def _queues(seen: Snapshot, rows: int) -> RenderableType:
    columns = (
        Column("QUEUE", shrinks=True),
        Column("STATUS"),
        Column("WAITING", right=True),
        Column("ACTIVE", right=True),
        Column("DELAYED", right=True, spare=2),
        Column("FAILED", right=True),
        Column("IN/S", right=True),
        Column("DONE/S", right=True),
        Column("FAIL/S", right=True, spare=1),
        Column("OLDEST", right=True),
        Column("WORKERS", right=True, spare=3),
    )
    # The queues where most is going on come first.
    busiest = sorted(
        seen.queues,
        key=lambda each: (-_weight(each, seen.rates.get(each.record.queue, {})), each.record.queue),
    )

    def row(each: QueueSummary) -> list[Cell]:
        rates, counts = seen.rates.get(each.record.queue, {}), each.stats.counts
        return [
            each.record.queue.queue,
            queue_status(each),
            *(
                text.count(counts.get(s, 0), text.STATE_STYLES[s])
                for s in (State.WAITING, State.ACTIVE, State.DELAYED, State.FAILED)
            ),
            _rate(rates.get("accepted")),
            _rate(rates.get("completed")),
            _rate(rates.get("failed")),
            text.duration(each.stats.oldest_waiting_ms),
            text.count(each.stats.workers),
        ]

    return table(columns, [row(each) for each in busiest[:rows]])


def _weight(each: QueueSummary, rates: dict[str, float]) -> float:
    counts = each.stats.counts
    return counts.get(State.WAITING, 0) + counts.get(State.ACTIVE, 0) + sum(rates.values())


def _rate(value: float | None) -> Text:
    if not value:
        return Text("-" if value is None else "0", style="bright_black")
    return Text(f"{value:,.0f}" if value >= 10 else f"{value:.1f}")


def _workers(seen: Snapshot, rows: int) -> RenderableType:
    columns = (
        Column("WORKER", shrinks=True),
        Column("STATUS"),
        Column("ACTIVE", right=True),
        Column("QUEUES", shrinks=True),
        Column("UP", right=True, spare=2),
        Column("SEEN", spare=1),
    )

    def row(each: WorkerRecord) -> list[Cell]:
        status = "draining" if each.draining else "paused" if each.paused else "running"
        return [
            each.name,
            Text(status, style="green" if status == "running" else "yellow"),
            f"{each.active}/{each.concurrency}",
            ", ".join(q.queue for q in each.queues if q.tenant == seen.tenant),
            text.duration(seen.now_ms - each.started_ms),
            text.relative(min(each.seen_ms, seen.now_ms), seen.now_ms),
        ]

    busiest = sorted(seen.workers, key=lambda each: (-each.active, each.name))
    return table(columns, [row(each) for each in busiest[:rows]])


def _failures(seen: Snapshot, rows: int) -> RenderableType:
    columns = (
        Column("FAILED"),
        Column("QUEUE", shrinks=True),
        Column("JOB", shrinks=True),
        Column("TASK", shrinks=True, spare=1),
        Column("ERROR", shrinks=True),
    )

    def row(each: JobRecord) -> list[Cell]:
        failure = each.failure
        return [
            text.relative(min(each.finished_ms or seen.now_ms, seen.now_ms), seen.now_ms),
            each.queue.queue,
            each.id,
            each.name,
            "" if failure is None else f"{failure.type}: {failure.message}",
        ]

    return table(columns, [row(each) for each in seen.failures[:rows]])


def now_ms() -> int:
    """The time on the screen: this machine's."""
    return int(time.time() * 1000)
