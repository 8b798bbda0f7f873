"""`jq-pipeline audit`: does the lake prove that every accepted job ended once or is still held?

The verdict per tenant and queue is `proved`, `violated`, or `unprovable`: where the store's log lost entries at its hard cap
(a gap), or where the lake has not caught up with the store it is compared with, faults may have an innocent reason. Compared
with a store, every queue of it is audited, also one of which nothing ever reached the lake. No queue at all proves nothing.
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
        """States in which the store holds another number of jobs than the lake: (lake, store)."""
        if self.store is None:
            return {}
        pairs = {
            state: (self.held_by_state.get(state, 0), self.store.counts.get(state, 0))
            for state in HELD
        }
        return {state: pair for state, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def problems(self) -> list[str]:
        """In words, the worst first."""
        found = [f"{n:,} × {fault}" for fault, n in self.faults.items() if n]
        if self.missing:
            found.append(
                f"{abs(self.missing):,} lives {'without an end or a place' if self.missing > 0 else 'too many ended'}"
            )
        found += [
            f"{state}: {lake:,} in the lake, {store:,} in the store"
            for state, (lake, store) in self.differs.items()
        ]
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
        """The worst of them; where there are none, nothing is proved."""
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
    """Go through the whole lake once. `store`: a URL to compare with. `examples`: a folder for the events at fault.

    ConfigError if there is no lake."""
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
    # For the report, which shows when the lake was last audited and with what result.
    note = {"at_ms": int(time.time() * 1000), "verdict": done.verdict, "queues": len(found)}
    lake.files.write(f"{lake.root}/_jobq/audit.json", msgspec.json.encode(note).decode())
    return done


def _compared(
    lake: Lake, found: list[QueueAudit], views: Mapping[tuple[str, str], StoreView]
) -> list[QueueAudit]:
    """The queues with what the store says of them, and those that only the store has."""
    known = {(queue.tenant, queue.queue): queue for queue in found}
    late = _behind(lake, views)
    return [
        msgspec.structs.replace(known.get(name) or _nothing(*name), store=view, behind=name in late)
        for name, view in sorted(views.items())
    ]


def _nothing(tenant: str, queue: str) -> QueueAudit:
    """The books of a queue of which the lake has no event."""
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
    """The queues whose log has reached a position of which the lake has no event."""
    ends = [(*queue, position) for queue, view in views.items() for position in view.positions]
    if not ends:
        return set()
    wanted = lake.spark.createDataFrame(ends, "tenant string, queue string, position string")
    events = lake.read(EVENTS).select("tenant", "queue", "id")
    # log-position-n-incarnation; of jobq 0.1, log-position-n (core/wire.py)
    there_by_then = F.regexp_like(
        events.id, F.concat(F.lit("^[^-]+-"), "position", F.lit("-[0-9]+(-[0-9a-f]{8})?$"))
    )
    arrived = F.broadcast(wanted).join(
        events, (wanted.tenant == events.tenant) & (wanted.queue == events.queue) & there_by_then
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
    """Of these queues and of all others of the store, except those that nothing was ever put in."""
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
