"""The audit: prove from the lake that no event is missing and that every job follows the rules.

Each queue gets a verdict (`jobq.pipeline.audit.verdict`): `proved`, `violated` or `unprovable`.

If a store is given, all its queues are audited up to the end of their logs, including those of
which no event reached the lake. A lake without any queue is `unprovable`.

An audit reads what has arrived since the last one and continues its proof. With `full`, it reads
everything, and finds events that were changed after they had been checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql import functions as F

from jobq.pipeline.audit.evidence import EXAMPLES, Evidence, gather
from jobq.pipeline.audit.proof import Dispute, Proof, ProofFiles, QueueTotals
from jobq.pipeline.audit.store import (
    Contradiction,
    StoreView,
    Tip,
    contradictions,
    records,
    view,
)
from jobq.pipeline.audit.verdict import Audit, QueueAudit
from jobq.pipeline.lake import Lake
from jobq.pipeline.tables import QUARANTINE
from jobq.pipeline.transforms import conservation

Name = tuple[str, str]

SAMPLE = 1_000
"""Jobs of a queue that an audit compares with the store, about, unless it reads everything."""
MAX_DISPUTES = 20  # sentences about one queue that a proof keeps
_CHUNK = 50_000  # jobs of the store that are looked up in the lake at once


def audit(
    lake: Lake, *, store: str | None = None, examples: str | None = None, full: bool = False
) -> Audit:
    """Audit the lake: what is new since the last audit, or everything.

    `store` is the URL of a store to compare with. Counterexamples are written to the folder
    `examples`. Raises ConfigError if there is no lake."""
    at = datetime.now(UTC)
    begun = asyncio.run(view(store, ())) if store else None
    lake.require().reload()
    files = ProofFiles(lake)
    known = files.load()
    old = None if full else known
    evidence = gather(lake, files, old, known)
    try:
        found, stray = _audits(lake, evidence.proof)
        if old is not None:
            found = _disputed(found, old)
        if store and begun is not None:
            found = _compared(found, store, begun, evidence, since=old)
        done = Audit(
            queues=tuple(found[name] for name in sorted(found)),
            full=old is None,
            at_ms=int(at.timestamp() * 1000),
            events=sum(evidence.checked.values()),
            stray=stray,
            previous=_previous(lake),
        )
        if examples:
            _write_examples(lake, examples, evidence, done)
        proof = msgspec.structs.replace(
            evidence.proof,
            disputes=tuple(
                Dispute(tenant=queue.tenant, queue=queue.queue, problem=problem)
                for queue in done.queues
                for problem in queue.disputes[:MAX_DISPUTES]
            ),
            verdict=done.verdict,
            at_ms=done.at_ms,
            # A day earlier, because clocks differ: it only says where to look for new batches.
            day=(at - timedelta(days=1)).date().isoformat(),
        )
        tips = conservation.tips(evidence.jobs, evidence.logs)
        files.save(proof, old, tips, ended=evidence.ended, ahead=evidence.ahead)
    finally:
        evidence.close()
    note = {"at_ms": int(time.time() * 1000), "verdict": done.verdict, "queues": len(done.queues)}
    lake.files.write(_note(lake), msgspec.json.encode(note).decode())
    return done


def _note(lake: Lake) -> str:
    return f"{lake.root}/_jobq/audit.json"


def _previous(lake: Lake) -> str | None:
    """The verdict of the last audit. Not from its proof, which an erasure deletes."""
    text = lake.files.read(_note(lake))
    return None if text is None else str(msgspec.json.decode(text)["verdict"])


def _audits(lake: Lake, proof: Proof) -> tuple[dict[Name, QueueAudit], int]:
    """The queues of the lake, and how many records in quarantine name none of them."""
    rows = lake.read(QUARANTINE).groupBy("tenant", "queue").agg(F.count(F.lit(1)).alias("n"))
    bad = {(row.tenant, row.queue): row.n for row in rows.collect()}
    totals = {(queue.tenant, queue.queue): queue for queue in proof.queues}
    named = {name for name in bad if all(name)}
    found = {
        name: QueueAudit(
            totals=totals.get(name) or QueueTotals(tenant=name[0], queue=name[1]),
            logs=tuple(log for log in proof.logs if log.key[:2] == name),
            quarantined=bad.get(name, 0),
        )
        for name in {*totals, *named}
    }
    return found, sum(n for name, n in bad.items() if not all(name))


def _disputed(found: Mapping[Name, QueueAudit], old: Proof) -> dict[Name, QueueAudit]:
    """Add what earlier audits found unlike the store: the jobs in question are not read again."""
    problems: dict[Name, list[str]] = {}
    for dispute in old.disputes:
        problems.setdefault((dispute.tenant, dispute.queue), []).append(dispute.problem)
    return {
        name: msgspec.structs.replace(queue, disputed=tuple(problems.get(name, ())))
        for name, queue in found.items()
    }


def _compared(
    found: Mapping[Name, QueueAudit],
    store: str,
    begun: Mapping[Name, StoreView],
    evidence: Evidence,
    *,
    since: Proof | None,
) -> dict[Name, QueueAudit]:
    """Add the store's view to each queue, and add queues that only the store has."""
    views = asyncio.run(view(store, found))
    audits = {
        name: msgspec.structs.replace(
            found.get(name) or QueueAudit(totals=QueueTotals(tenant=name[0], queue=name[1])),
            # A lake may have queues of several stores. A log that this store does not have is
            # audited to the end of the lake.
            store=views[name] if name in views and views[name].ends else None,
            ends=tuple(
                (end.log, end.shard, end.number)
                for end in (begun[name].ends if name in begun else ())
            ),
        )
        for name in {*found, *views}
    }
    return asyncio.run(_contradicted(audits, store, evidence, since))


async def _contradicted(
    audits: dict[Name, QueueAudit], store: str, evidence: Evidence, since: Proof | None
) -> dict[Name, QueueAudit]:
    quiet = {name: queue.quiet for name, queue in audits.items()}
    every = {
        name: n // (3 * SAMPLE)  # a job has about three events
        for name, n in evidence.checked.items()
        if since is not None and n >= 6 * SAMPLE
    }
    counted: dict[Name, int] = {}
    compared: dict[Name, int] = {}
    first: dict[Name, list[Contradiction]] = {}
    tips = _counting(evidence.tips(every=every), compared)
    async for one in _all_contradictions(store, evidence, tips, quiet, since):
        name = (one.tenant, one.queue)
        counted[name] = counted.get(name, 0) + 1
        if len(first.setdefault(name, [])) < EXAMPLES:
            first[name].append(one)
    # A queue may have moved on while its jobs were read. The next audit compares it again.
    after = await view(store, audits)
    moved = {name for name, was in quiet.items() if was and after[name].ends != _ends(audits[name])}
    return {
        name: queue
        if name in moved
        else msgspec.structs.replace(
            queue,
            contradictions=tuple(first.get(name, ())),
            contradicted=counted.get(name, 0),
            compared=compared.get(name, 0),
        )
        for name, queue in audits.items()
    }


def _counting(tips: Iterator[Tip], compared: dict[Name, int]) -> Iterator[Tip]:
    """The tips, counted per queue in `compared`."""
    for tip in tips:
        compared[tip.tenant, tip.queue] = compared.get((tip.tenant, tip.queue), 0) + 1
        yield tip


async def _all_contradictions(
    store: str,
    evidence: Evidence,
    tips: Iterator[Tip],
    quiet: dict[Name, bool],
    since: Proof | None,
) -> AsyncIterator[Contradiction]:
    """Jobs of the lake that are different in the store, and jobs that only the store has."""
    async for one in contradictions(store, tips, quiet):
        yield one
    jobs = records(
        store,
        sorted(name for name, is_quiet in quiet.items() if is_quiet),
        most=None if since is None else SAMPLE,
        since_ms=0 if since is None else since.at_ms,
    )
    async for some in _chunks(jobs, _CHUNK):
        for tenant, queue, job in evidence.unknown(some):
            yield Contradiction(
                tenant=tenant, queue=queue, job=job, fault="in the store, but not in the lake"
            )


async def _chunks(
    found: AsyncIterator[tuple[str, str, str]], size: int
) -> AsyncIterator[list[tuple[str, str, str]]]:
    chunk = []
    async for one in found:
        chunk.append(one)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _ends(queue: QueueAudit) -> Any:
    return () if queue.store is None else queue.store.ends


def _write_examples(lake: Lake, folder: str, evidence: Evidence, done: Audit) -> None:
    """Write counterexamples as one file of JSON lines, a bounded number per queue."""
    found: list[dict[str, Any]] = []
    for queue in done.queues:
        who = {"tenant": queue.tenant, "queue": queue.queue}
        found += [{**who, "fault": problem} for problem in queue.problems]
        for log in queue.logs:
            found += [
                {**who, "shard": log.shard, "fault": "lost", "first": first, "last": last}
                for first, last in log.lost[:EXAMPLES]
            ]
        found += [{**who, "fault": c.fault, "job": c.job} for c in queue.contradictions]
    found += [
        {**row.asDict(recursive=True), "fault": "number of two events"}
        for row in evidence.repeated[:1000]
    ]
    if any(sum(queue.totals.faults.values()) for queue in done.queues):
        found += evidence.examples()
    lake.files.delete(folder)
    if found:
        encoder = msgspec.json.Encoder(enc_hook=str)
        lines = "\n".join(encoder.encode(one).decode() for one in found)
        lake.files.write(f"{folder}/examples.json", lines + "\n")
