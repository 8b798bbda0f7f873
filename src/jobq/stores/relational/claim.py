"""Claims jobs: the jobs at the head of a queue become active.

A plain queue takes one statement for the whole claim, however many jobs wait.
"""

from __future__ import annotations

from jobq.core.records.event_log import KIND_CODES, Item, with_later
from jobq.core.records.jobs import Claim, Input, Lease, QueueName, Steps
from jobq.core.records.states import Kind
from jobq.stores.relational import flows, keys, limits, put, upkeep
from jobq.stores.relational.history import steps_of
from jobq.stores.relational.packed import BROKEN, event_meta, unpack_options
from jobq.stores.relational.rows import (
    ACTIVE,
    CANCEL,
    ENDING,
    NOTED,
    WAITING,
    ClaimedJob,
    KeyHead,
    QueueRow,
    RepeatedClaim,
    read_all,
    token_of,
    token_suffix,
)
from jobq.stores.relational.tx import Granted, Tx

_STARTED = KIND_CODES[Kind.STARTED]
REMEMBERED = 100_000
"""Leases that a process remembers. It reads the rows of the others again when their jobs end."""
UPKEEP = 500
"""Due jobs and expired leases that one claim takes care of in each queue."""


def claim(tx: Tx, wanted: Claim, worker: str, call: str) -> tuple[list[Lease], list[QueueRow]]:
    """Claim up to `wanted.limit` jobs, or a single job that is on its last chance.

    Returns the leases, and the queues that were looked at."""
    leases: list[Lease] = []
    seen: list[QueueRow] = []
    alone = False  # the claim has a job on its last chance, which is returned alone
    for name in wanted.queues:
        queue = tx.ensure_queue(name)
        if queue.has_settings and not tx.readable(queue, needed=len(wanted.queues) == 1):
            continue
        seen.append(queue)
        upkeep.queue_due(tx, queue, UPKEEP)
        if tx.failed:  # their copies may be in a queue of this claim
            put.copy_to_dead_letters(tx)
        room = wanted.limit - len(leases)
        if room > 0 and not queue.paused and not alone:
            found = _claim_from(
                tx, queue, room, wanted.lease_ms, worker, call, alone=wanted.alone and not leases
            )
            leases += found
            if queue.qid in tx.last_chances:  # a worker that is alone may claim the job
                tx.woken[queue.qid] = max(1, tx.count(queue, WAITING))
            if found and found[0].last_chance:
                alone = True
                # This worker claims nothing more for now, so wake others for the rest.
                tx.woken[queue.qid] = max(1, tx.count(queue, WAITING))
            elif found and len(leases) == wanted.limit and tx.count(queue, WAITING):
                tx.woken.setdefault(queue.qid, 1)  # more jobs wait than this worker has room for
    return leases, seen


def again(tx: Tx, wanted: Claim, worker: str, call: str) -> list[Lease]:
    """The leases that this call was granted when it came the first time."""
    suffix = token_suffix(worker, call)
    leases = []
    for name in wanted.queues:
        queue = tx.queue(name)
        if queue is not None:
            rows = tx.execute(tx.sql.hot["claimed_by_call"], (queue.qid, suffix)).fetchall()
            leases += [
                _lease(tx, queue, job, job.token, job.started_ms, job.at_ms)
                for job in sorted(read_all(rows, RepeatedClaim), key=queue_order)
            ]
    return leases


def next_due(tx: Tx, queues: list[QueueRow]) -> int | None:
    """Milliseconds until a job of these queues may become claimable by the clock; None: never."""
    times = []
    for queue in queues:
        for statement in ("next_due", "next_expiry", "next_wait"):
            row = tx.execute(tx.sql.hot[statement], (queue.qid,)).fetchone()
            if row is not None:
                times += row
        if not queue.paused:
            times += limits.next_times(tx, queue)
    return None if not times else max(0, min(times) - tx.now)


def _claim_from(
    tx: Tx, queue: QueueRow, room: int, lease_ms: int, worker: str, call: str, *, alone: bool
) -> list[Lease]:
    room = limits.starts_left(tx, queue, room)
    frail = queue.settings.frail > 0
    if frail and room > 0 and queue.mode != "keyed":
        room = limits.claimable_together(tx, queue, room, alone=alone)
    if room <= 0:
        return []
    now, suffix = tx.now, token_suffix(worker, call)
    expires = now + lease_ms
    jobs: list[ClaimedJob]
    if queue.mode == "keyed":
        jobs = [*_claim_keyed(tx, queue, room, (suffix, worker, now, expires), frail, alone)]
    elif queue.has_settings and limits.by_cost(queue):
        chosen = (suffix, worker, now, expires, tx.listed(limits.affordable(tx, queue, room)))
        jobs = read_all(tx.execute(tx.sql.hot["claim_these"], chosen).fetchall(), ClaimedJob)
    elif room <= tx.few:
        head = tx.execute(tx.sql.hot["head_of_queue"], (queue.qid, now, room)).fetchall()
        jobs = read_all(head, ClaimedJob)
        for job in jobs:
            claimed_one = (token_of(job, suffix), worker, now, expires, job.pk)
            tx.execute(tx.sql.hot["claim_one"], claimed_one)
    else:
        claimed = (suffix, worker, now, expires, queue.qid, room)
        jobs = read_all(tx.execute(tx.sql.hot["claim_plain"], claimed).fetchall(), ClaimedJob)
    if len(jobs) < room:
        tx.recount_waiting(queue, len(jobs))
    if not jobs:
        return []
    limits.started(tx, queue, len(jobs))
    if queue.mode != "keyed":
        jobs.sort(key=queue_order)
    tokens = _record(tx, queue, jobs, worker, suffix)
    if len(tx.memory.granted) > REMEMBERED:
        tx.memory.granted.clear()
    return [
        _lease(tx, queue, job, token, now, expires) for job, token in zip(jobs, tokens, strict=True)
    ]


def _claim_keyed(
    tx: Tx, queue: QueueRow, room: int, claim: tuple[str, str, int, int], frail: bool, alone: bool
) -> list[KeyHead]:
    """Claim in rounds: each ready key starts one job per round, until there is no room or no key is
    ready.

    A job on its last chance is claimed alone, so the round before it is the last one."""
    keys.flush(tx)
    suffix, *rest = claim
    jobs: list[KeyHead] = []
    while len(jobs) < room:
        wanted = room - len(jobs)
        rows = tx.execute(tx.sql.keyed["next_keys"], (queue.qid, tx.now, wanted)).fetchall()
        heads = read_all(rows, KeyHead)
        going = limits.together(queue, heads, alone=alone and not jobs) if frail else heads
        if heads and not going and not jobs:  # the next job is on its last chance: see `alone`
            if limits.key_pays_for(tx, queue, heads[0]):
                tx.last_chances.add(queue.qid)
            elif queue.held_ms <= tx.now:
                continue  # its key must wait: look at the other keys
            break
        overrides = keys.overrides(tx, queue.qid, [head.key or "" for head in going])
        chosen = limits.keys_affordable(tx, queue, going, overrides)
        tx.many(
            tx.sql.hot["claim_one"], [(token_of(head, suffix), *rest, head.pk) for head in chosen]
        )
        still_ready = keys.started(tx, queue, chosen, overrides)
        jobs += chosen
        if queue.held_ms > tx.now or (
            len(heads) < wanted and not still_ready and len(going) == len(heads)
        ):
            break
        if frail and (
            not going or (jobs and (len(going) < len(heads) or limits.is_last(queue, jobs[-1])))
        ):
            break  # a job on its last chance is next, or was claimed
    return jobs


def queue_order(job: ClaimedJob) -> tuple[int, int]:
    """The place of a waiting job in its queue."""
    return -job.priority, job.seq


def _record(tx: Tx, queue: QueueRow, jobs: list[ClaimedJob], worker: str, suffix: str) -> list[str]:
    """Write the starts to the event log and the counters, and remember the leases.

    Returns their tokens."""
    tx.check_claimed(jobs)
    now, qid, granted = tx.now, queue.qid, tx.memory.granted
    waited = stalled = 0
    items: list[Item] = []
    tokens: list[str] = []
    names = queue.settings.event_meta
    meta = None
    for job in jobs:
        id, life, name, key, attempt = job.id, job.life, job.name, job.key, job.attempt
        failures, stalls, created, due = job.failures, job.stalls, job.created_ms, job.due_ms
        waited += now - due
        if stalls:
            stalled += 1
        if names:
            meta = event_meta(job.options, names)
        pk = job.pk
        token = f"{pk}.{life}.{attempt}{suffix}"  # token_of, inlined: this runs for every job
        tokens.append(token)
        if not job.flags & ENDING:
            granted[token] = Granted(
                qid, pk, id, life, name, key, attempt, failures, stalls, created, due, now, meta
            )
        item: Item = (
            _STARTED, id, life, name, key, attempt, failures, stalls, ACTIVE, WAITING,
            None, None, None, created, due, now, None,
        )  # fmt: skip
        items.append(item if meta is None else with_later(item, None, meta))
    tx.record_batch(qid, _STARTED, WAITING, ACTIVE, items, worker=worker, wait_ms=waited)
    if stalled:
        tx.count_stalled(qid, -stalled)
    return tokens


def _lease(
    tx: Tx, queue: QueueRow, job: ClaimedJob, token: str, started: int, expires: int
) -> Lease:
    default = queue.settings.defaults.max_retries
    if not job.stalls and not job.flags & NOTED:
        return lease_of(queue.qname, job, token, started, expires, default_retries=default)
    noted = bool(job.flags & NOTED)
    return lease_of(
        queue.qname,
        job,
        token,
        started,
        expires,
        default_retries=default,
        last_chance=limits.is_last(queue, job),
        inputs=flows.inputs(tx, job.pk) if noted else (),
        signals=tuple(tx.execute(tx.sql.ties["signals_of"], (job.pk,)).fetchall()) if noted else (),
        steps=steps_of(tx, job),
    )


def lease_of(
    queue: QueueName,
    job: ClaimedJob,
    token: str,
    started: int,
    expires: int,
    *,
    default_retries: int | None = None,
    last_chance: bool = False,
    inputs: tuple[Input, ...] = (),
    signals: tuple[tuple[str, bytes], ...] = (),
    steps: Steps = (),
) -> Lease:
    """The lease of a claimed job. The options are what its row does not have."""
    packed = job.options
    if packed is None and not job.stalls and not job.flags & (CANCEL | NOTED):
        return Lease(
            queue=queue,
            id=job.id,
            token=token,
            life=job.life,
            name=job.name,
            payload=job.payload,
            codec=job.codec,
            attempt=job.attempt,
            failures=job.failures,
            stalls=job.stalls,
            created_ms=job.created_ms,
            started_ms=started,
            expires_ms=expires,
            key=job.key,
            saved=job.saved,
            due_ms=job.due_ms,
            default_retries=default_retries,
        )
    options = unpack_options(packed)
    return Lease(
        queue=queue,
        id=job.id,
        token=token,
        life=job.life,
        name=job.name,
        payload=job.payload,
        codec=job.codec,
        attempt=job.attempt,
        failures=job.failures,
        stalls=job.stalls,
        created_ms=job.created_ms,
        started_ms=started,
        expires_ms=expires,
        key=job.key,
        saved=job.saved,
        # begin scripts/options.py: lease
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        meta=options.meta,
        # end scripts/options.py
        cancel_asked=bool(job.flags & CANCEL),
        unknown_ms=None if options.put_off is None else options.put_off.since_ms,
        unfit_ms=None if options.deferred is None else options.deferred.unfit_ms or None,
        last_chance=last_chance,
        inputs=inputs,
        signals=signals,
        steps=steps,
        unreadable=options is BROKEN,
        due_ms=job.due_ms,
        default_retries=default_retries,
    )
