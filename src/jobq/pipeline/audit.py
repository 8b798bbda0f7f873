"""`jq-pipeline audit`: does the lake prove that every accepted job ended once or is still held?

The verdict per tenant and queue is `proved`, `violated`, or `unprovable`: where the store's log lost entries at its hard cap
(a gap), or where the lake has not caught up with the store it is compared with, faults may have an innocent reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Literal

import msgspec
from pyspark.sql import Row
from pyspark.sql import functions as F

from jobq.log import EventLog
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import EVENTS
from jobq.pipeline.transforms.conservation import FAULTS, HELD, balance, counterexamples, judged

Verdict = Literal["proved", "violated", "unprovable"]


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """What a store says of a queue: how many jobs stand where, and the positions its log has reached (one per partition)."""

    counts: Mapping[str, int]
    positions: tuple[str, ...] = ()


class QueueAudit(msgspec.Struct, frozen=True, kw_only=True):
    """One queue's books."""

    tenant: str
    queue: str
    events: int
    jobs: int
    accepted: int  # lives begun by enqueueing
    rerun: int  # lives begun by rerun
    carried: int  # jobs whose beginning retention has removed
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
    behind: bool = False  # the store's log goes on after what the lake has

    @property
    def missing(self) -> int:
        """Lives begun, less those ended and held: 0 if the books balance."""
        return self.accepted + self.rerun + self.carried - self.completed - self.failed - self.cancelled - self.held

    @property
    def differs(self) -> dict[str, tuple[int, int]]:
        """States in which the store holds another number of jobs than the lake: (lake, store)."""
        if self.store is None:
            return {}
        pairs = {state: (self.held_by_state.get(state, 0), self.store.counts.get(state, 0)) for state in HELD}
        return {state: pair for state, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def problems(self) -> list[str]:
        """In words, the worst first."""
        found = [f"{n:,} × {fault}" for fault, n in self.faults.items() if n]
        if self.missing:
            found.append(f"{abs(self.missing):,} lives {'without an end or a place' if self.missing > 0 else 'too many ended'}")
        found += [f"{state}: {lake:,} in the lake, {store:,} in the store" for state, (lake, store) in self.differs.items()]
        return found

    @property
    def verdict(self) -> Verdict:
        """`violated` only by what neither a gap nor a lake that is behind could explain."""
        certain = any(n for fault, n in self.faults.items() if not FAULTS[fault])
        if certain:
            return "violated"
        if self.gaps or self.behind:
            return "unprovable"
        return "violated" if self.problems else "proved"


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """All queues."""

    queues: tuple[QueueAudit, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of them."""
        verdicts = {queue.verdict for queue in self.queues}
        return "violated" if "violated" in verdicts else "unprovable" if "unprovable" in verdicts else "proved"

    @property
    def exit_code(self) -> int:
        """0 proved, 1 violated, 2 unprovable."""
        return {"proved": 0, "violated": 1, "unprovable": 2}[self.verdict]


def audit(lake: Lake, *, store: str | None = None, examples: str | None = None) -> Audit:
    """Go through the whole lake once. `store`: a URL to compare with. `examples`: a folder for the events at fault."""
    rows = judged(lake.read(EVENTS), lake.state.horizon)
    found = [_queue_audit(row) for row in balance(rows).collect()]
    if examples and any(sum(queue.faults.values()) for queue in found):
        counterexamples(rows).coalesce(1).write.mode("overwrite").json(examples)
    if store:
        views = asyncio.run(_views(store, [(queue.tenant, queue.queue) for queue in found]))
        late = _behind(lake, {(queue.tenant, queue.queue): view for queue, view in zip(found, views, strict=True)})
        found = [
            msgspec.structs.replace(queue, store=view, behind=(queue.tenant, queue.queue) in late)
            for queue, view in zip(found, views, strict=True)
        ]
    done = Audit(queues=tuple(found))
    # For the report, which shows when the lake was last audited and with what result.
    note = {"at_ms": int(time.time() * 1000), "verdict": done.verdict, "queues": len(found)}
    lake.files.write(f"{lake.root}/_jobq/audit.json", msgspec.json.encode(note).decode())
    return done


def _behind(lake: Lake, views: Mapping[tuple[str, str], StoreView]) -> set[tuple[str, str]]:
    """The queues whose log has reached a position of which the lake has no event."""
    ends = [(*queue, position) for queue, view in views.items() for position in view.positions]
    if not ends:
        return set()
    wanted = lake.spark.createDataFrame(ends, "tenant string, queue string, position string")
    events = lake.read(EVENTS).select("tenant", "queue", "id")
    arrived = F.broadcast(wanted).join(
        events,
        (wanted.tenant == events.tenant)
        & (wanted.queue == events.queue)
        & F.contains(events.id, F.concat(F.lit("-"), "position", F.lit("-"))),
    )
    there = {tuple(row) for row in arrived.select(wanted.tenant, wanted.queue, "position").distinct().collect()}
    return {(tenant, queue) for tenant, queue, position in ends if (tenant, queue, position) not in there}


def _queue_audit(row: Row) -> QueueAudit:
    fields = row.asDict()
    return QueueAudit(
        held_by_state={state: fields[f"{state}_now"] for state in HELD},
        faults={fault: fields[fault] for fault in FAULTS},
        **{name: fields[name] for name in QueueAudit.__struct_fields__ if name in fields},
    )


async def _views(url: str, queues: list[tuple[str, str]]) -> list[StoreView]:
    async with EventLog(url) as log:
        return [
            StoreView(
                counts={state.value: n for state, n in (await log.counts(tenant, queue)).items()},
                positions=await log.ends(tenant, queue),
            )
            for tenant, queue in queues
        ]
