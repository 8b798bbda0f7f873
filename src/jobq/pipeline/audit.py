"""The audit: check from the lake that every accepted job ended exactly once or is still held.

Each queue gets a verdict: `proved`, `violated` or `unprovable`. It is `unprovable` where faults may
have an innocent reason: the store's log dropped entries at its size limit (a gap), or the lake is
behind the store. If a store is given, all its queues are audited, including those of which no event
reached the lake. A lake without any queue is `unprovable`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from pyspark.sql import Row
from pyspark.sql import functions as F

from jobq.client.log_reader import LogReader
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import EVENTS
from jobq.pipeline.transforms.conservation import FAULTS, HELD, balance, counterexamples, judged

Verdict = Literal["proved", "violated", "unprovable"]


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in the store: its jobs per state, and where its log ends (per partition)."""

    counts: Mapping[str, int]
    positions: tuple[str, ...] = ()


class QueueAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one queue. Lives are counted, because a rerun starts a new life of a job."""

    tenant: str
    queue: str
    events: int
    jobs: int
    accepted: int  # lives started by enqueueing
    rerun: int  # lives started by a rerun
    carried: int  # jobs whose first events were removed by retention
    completed: int
    failed: int
    cancelled: int
    held: int
    held_by_state: Mapping[str, int]
    faults: Mapping[str, int]
    gaps: int = 0
    gap_from_ms: int | None = None
    gap_to_ms: int | None = None
    store: StoreView | None = None
    behind: bool = False  # the store's log has events that the lake does not have

    @property
    def missing(self) -> int:
        """Lives started, minus lives ended and held. 0 if the counts balance."""
        return (
            self.accepted
            + self.rerun
            + self.carried
            - self.completed
            - self.failed
            - self.cancelled
            - self.held
        )

    @property
    def differs(self) -> dict[str, tuple[int, int]]:
        """States whose number of jobs differs: state → (in the lake, in the store)."""
        if self.store is None:
            return {}
        pairs = {
            state: (self.held_by_state.get(state, 0), self.store.counts.get(state, 0))
            for state in HELD
        }
        return {state: pair for state, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def problems(self) -> list[str]:
        """Descriptions of all faults and differences, the worst first."""
        found = [f"{n:,} × {fault}" for fault, n in self.faults.items() if n]
        if self.missing:
            found.append(
                f"{self.missing:,} lives neither ended nor held"
                if self.missing > 0
                else f"{-self.missing:,} more lives ended than started"
            )
        found += [
            f"{state}: {lake:,} in the lake, {store:,} in the store"
            for state, (lake, store) in self.differs.items()
        ]
        return found

    @property
    def verdict(self) -> Verdict:
        """`violated` only if neither a gap nor a lake that is behind can explain the faults."""
        certain = any(n for fault, n in self.faults.items() if not FAULTS[fault])
        if certain:
            return "violated"
        if self.gaps or self.behind:
            return "unprovable"
        return "violated" if self.problems else "proved"


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of all queues."""

    queues: tuple[QueueAudit, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all queues. Without queues: `unprovable`."""
        verdicts = {queue.verdict for queue in self.queues} or {"unprovable"}
        return (
            "violated"
            if "violated" in verdicts
            else "unprovable"
            if "unprovable" in verdicts
            else "proved"
        )

    @property
    def exit_code(self) -> int:
        """0 proved, 1 violated, 2 unprovable."""
        return {"proved": 0, "violated": 1, "unprovable": 2}[self.verdict]


def audit(lake: Lake, *, store: str | None = None, examples: str | None = None) -> Audit:
    """Audit the whole lake.

    `store` is the URL of a store to compare with. Faulty events are written to the folder
    `examples`. Raises ConfigError if there is no lake."""
    rows = judged(lake.require().read(EVENTS), lake.state.horizon)
    found = [_queue_audit(row) for row in balance(rows).collect()]
    if examples and any(sum(queue.faults.values()) for queue in found):
        counterexamples(rows).coalesce(1).write.mode("overwrite").json(examples)
    if store:
        found = _compared(
            lake,
            found,
            asyncio.run(_views(store, [(queue.tenant, queue.queue) for queue in found])),
        )
    done = Audit(queues=tuple(found))
    # The report shows the time and the verdict of the last audit.
    note = {"at_ms": int(time.time() * 1000), "verdict": done.verdict, "queues": len(found)}
    lake.files.write(f"{lake.root}/_jobq/audit.json", msgspec.json.encode(note).decode())
    return done


def _compared(
    lake: Lake, found: list[QueueAudit], views: Mapping[tuple[str, str], StoreView]
) -> list[QueueAudit]:
    """Add the store's view to each queue, and add queues that only the store has."""
    known = {(queue.tenant, queue.queue): queue for queue in found}
    late = _behind(lake, views)
    return [
        msgspec.structs.replace(known.get(name) or _nothing(*name), store=view, behind=name in late)
        for name, view in sorted(views.items())
    ]


def _nothing(tenant: str, queue: str) -> QueueAudit:
    """The audit of a queue of which the lake has no event."""
    return QueueAudit(
        tenant=tenant,
        queue=queue,
        events=0,
        jobs=0,
        accepted=0,
        rerun=0,
        carried=0,
        completed=0,
        failed=0,
        cancelled=0,
        held=0,
        held_by_state={},
        faults={},
    )


def _behind(lake: Lake, views: Mapping[tuple[str, str], StoreView]) -> set[tuple[str, str]]:
    """The queues whose log ends at a position that the lake does not have."""
    ends = [(*queue, position) for queue, view in views.items() for position in view.positions]
    if not ends:
        return set()
    wanted = lake.spark.createDataFrame(ends, "tenant string, queue string, position string")
    events = lake.read(EVENTS).select("tenant", "queue", "id")
    # An id is log-position-n-incarnation; jobq 0.1 wrote log-position-n (core/wire.py).
    at_position = F.regexp_like(
        events.id, F.concat(F.lit("^[^-]+-"), "position", F.lit("-[0-9]+(-[0-9a-f]{8})?$"))
    )
    arrived = F.broadcast(wanted).join(
        events, (wanted.tenant == events.tenant) & (wanted.queue == events.queue) & at_position
    )
    there = {
        tuple(row)
        for row in arrived.select(wanted.tenant, wanted.queue, "position").distinct().collect()
    }
    return {
        (tenant, queue)
        for tenant, queue, position in ends
        if (tenant, queue, position) not in there
    }


def _queue_audit(row: Row) -> QueueAudit:
    fields = row.asDict()
    return QueueAudit(
        held_by_state={state: fields[f"{state}_now"] for state in HELD},
        faults={fault: fields[fault] for fault in FAULTS},
        **{name: fields[name] for name in QueueAudit.__struct_fields__ if name in fields},
    )


async def _views(url: str, in_lake: Sequence[tuple[str, str]]) -> dict[tuple[str, str], StoreView]:
    """The store's view of these queues and of all its other queues that were ever used."""
    async with LogReader(url) as log:
        names = {*in_lake, *((name.tenant, name.queue) for name in await log.queues())}
        views = {
            name: StoreView(
                counts={state.value: n for state, n in (await log.counts(*name)).items()},
                positions=await log.ends(*name),
            )
            for name in names
        }
    return {
        name: view
        for name, view in views.items()
        if name in in_lake or view.positions or any(view.counts.values())
    }
