"""The exchange of a worker: ends runs, then claims more jobs.

One statement completes all jobs of a call whose end changes nothing but their own rows. Every other
outcome is applied row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from jobq.core.records.defaults import LOG_LINES
from jobq.core.records.event_log import KIND_CODES, STATE_CODES, Item, with_later
from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Claim,
    Complete,
    Defer,
    Fail,
    Failure,
    Hold,
    Lease,
    LeaseRef,
    LeaseState,
    Note,
    RetryLater,
    Settled,
    SnoozeFor,
)
from jobq.core.records.states import Kind, State
from jobq.core.rules.outcomes import MAX_CHECKPOINTS, keeps_saved
from jobq.core.rules.outcomes import effect as effect_of
from jobq.core.values.checks import check_steps
from jobq.stores.relational import claim as claims
from jobq.stores.relational import (
    ending,
    flows,
    history,
    holds,
    keys,
    put,
    signals,
    waiting,
)
from jobq.stores.relational.mailbox import Address
from jobq.stores.relational.packed import with_store_fields
from jobq.stores.relational.rows import (
    ACTIVE,
    BLOCKED,
    CANCEL,
    COMMITTED,
    COMPLETED,
    FOREVER,
    NOTED,
    UNFOLLOWED,
    WATCHED,
    Job,
    caller_of,
    job_number,
)
from jobq.stores.relational.tx import Granted, Tx

# Finishes a request: other jobs, keys, workers and listeners learn what it has done.


def finish(tx: Tx) -> None:
    """Carry out what the request causes, and collect the notices to send after the commit.

    Runs once per request.
    """
    deliver(tx)
    if tx.changed_keys:
        keys.flush(tx)
    signals.notify(tx)


def deliver(tx: Tx) -> None:
    """Let parents go on or fail, and copy failed jobs to dead-letter queues.

    Both may end more jobs."""
    while tx.wanted or tx.failed:
        put.copy_to_dead_letters(tx)
        flows.deliver(tx)


_COMPLETED = KIND_CODES[Kind.COMPLETED]


def exchange(
    tx: Tx,
    outcomes: Sequence[AnyOutcome],
    worker: str,
    call: str,
    wanted: Claim | None,
    address: Address,
    was_asleep: bool,
) -> tuple[Settled, bool]:
    """Implements `Store.settle`. Also returns whether the worker is registered as asleep."""
    caller = caller_of(worker, call)
    if (stored := tx.repeated(caller, call)) is not None:
        return _repeated(tx, stored[0], worker, call, wanted), was_asleep
    if was_asleep:
        signals.wake_up(tx, worker)
    stale = _settle(tx, outcomes, worker)
    deliver(tx)
    leases: list[Lease] = []
    due, asleep = None, False
    if wanted is not None:
        leases, queues = claims.claim(tx, wanted, worker, call)
        if len(leases) < wanted.limit:
            due = claims.next_due(tx, queues)
        if not leases and wanted.limit and not tx.last_chances:
            asleep = True
            signals.fall_asleep(tx, queues, worker, address, wanted.limit)
    if outcomes or leases:
        tx.remember_call(caller, call, msgspec.msgpack.encode(stale) if stale else None)
    settled = Settled(
        stale=tuple(stale),
        leases=tuple(leases),
        next_due_ms=due,
        last_chance=bool(tx.last_chances),
        asleep=asleep,
    )
    return settled, asleep


def extend(tx: Tx, leases: Sequence[LeaseRef], lease_ms: int) -> list[LeaseState]:
    """Implements `Store.extend`."""
    renewed = [
        (tx.now, lease_ms, job_number(lease.token), lease.id, lease.token, *lease.queue)
        for lease in leases
    ]
    return [_lease_state(row) for row in tx.first_rows(tx.sql.hot["extend"], renewed)]


def note(tx: Tx, notes: Sequence[Note]) -> list[LeaseState]:
    """Implements `Store.note`."""
    for item in notes:
        check_steps(item.steps)
    return [_note(tx, item) for item in notes]


def _note(tx: Tx, item: Note) -> LeaseState:
    pk = job_number(item.lease.token)
    flag = NOTED if item.lines else 0
    if item.steps:
        flag |= history.STEP_FLAGS
    lease = item.lease
    number = 0 if item.saved is None else max(0, min(item.saved_number, MAX_CHECKPOINTS))
    noted = (item.progress, item.saved, number, flag, pk, lease.id, lease.token, *lease.queue)
    row = tx.execute(tx.sql.ties["note"], noted).fetchone()
    state = _lease_state(row)
    if row is None:
        return state
    flags, qid = row
    if flags & WATCHED:
        tx.noted.append((qid, item.lease.queue, item.lease.id))
    for text in item.lines:
        tx.execute(tx.sql.ties["add_line"], (pk, text))
    if item.lines:
        tx.execute(tx.sql.ties["trim_lines"], (pk, LOG_LINES))
    history.put_steps(tx, pk, item.steps)
    return state


def _lease_state(row: tuple[int, ...] | None) -> LeaseState:
    """The state of a lease, from the row that the update of its job has returned: its flags."""
    if row is None:
        return "lost"
    return "cancel" if row[0] & CANCEL else "held"


def _repeated(tx: Tx, stale: bytes | None, worker: str, call: str, wanted: Claim | None) -> Settled:
    refs = msgspec.msgpack.decode(stale, type=tuple[LeaseRef, ...]) if stale else ()
    leases = claims.again(tx, wanted, worker, call) if wanted is not None else []
    return Settled(
        stale=refs,
        leases=tuple(leases),
        next_due_ms=0 if wanted is not None and len(leases) < wanted.limit else None,
    )


def _settle(tx: Tx, outcomes: Sequence[AnyOutcome], worker: str) -> list[LeaseRef]:
    """Apply outcomes. Returns those whose lease is lost."""
    plain: list[tuple[Complete, Granted]] = []
    others: list[AnyOutcome] = []
    for outcome in outcomes:
        granted = tx.memory.granted.pop(outcome.token, None)
        if (
            granted is not None
            and type(outcome) is Complete
            and tx.queue_by_qid(granted.qid).qname == outcome.queue
        ):
            plain.append((outcome, granted))
            tx.not_before(granted.started_ms)
        else:
            others.append(outcome)
    if plain and not _complete(tx, plain, worker):
        others = list(outcomes)  # a row has changed since the claim: read each of them
    stale = []
    for outcome in others:
        job = tx.job_free(job_number(outcome.token))
        if (
            job is None
            or job.token != outcome.token
            or job.id != outcome.id
            or job.pk in tx.completing
            or tx.queue_by_qid(job.qid).qname != outcome.queue
        ):
            stale.append(LeaseRef(outcome.queue, outcome.id, outcome.token))
        elif job.state == COMPLETED and job.flags & COMMITTED:
            if job.flags & UNFOLLOWED:
                ending.follow(tx, tx.queue_by_qid(job.qid), job)
        elif job.state != ACTIVE:
            stale.append(LeaseRef(outcome.queue, outcome.id, outcome.token))
        else:
            _settle_one(tx, job, outcome)
    return stale


def _complete(tx: Tx, plain: list[tuple[Complete, Granted]], worker: str) -> bool:
    """Complete jobs whose end changes only their own rows: all of them, or none.

    One statement does it, and no row is read.
    """
    now = tx.now
    rows: list[tuple[object, ...]] = []
    items: dict[int, list[Item]] = {}
    runs: dict[int, int] = {}
    until: dict[int, int] = {}
    for outcome, job in plain:
        qid = job.qid
        if qid not in items:
            items[qid], runs[qid] = [], 0
            until[qid] = ending.keep_until(tx.queue_by_qid(qid).settings, COMPLETED, now)
        rows.append((outcome.result, now, until[qid], job.pk, outcome.token, outcome.id))
        items[qid].append(completed_item(job, now))
        runs[qid] += now - job.started_ms
    complete = tx.complete_jobs(rows)
    if complete:
        for qid, each in items.items():
            tx.record_batch(
                qid, _COMPLETED, ACTIVE, COMPLETED, each, worker=worker, run_ms=runs[qid]
            )
            keys = [job.key for _, job in plain if job.qid == qid and job.key is not None]
            if keys:
                tx.keys_moved(qid, keys, 0, -1)
    return complete


def completed_item(job: Granted, now: int) -> Item:
    """The event of a job that completes now."""
    item: Item = (
        _COMPLETED, job.id, job.life, job.name, job.key, job.attempt, job.failures, job.stalls,
        COMPLETED, ACTIVE, None, None, None, job.created_ms, job.due_ms, job.started_ms, now,
    )  # fmt: skip
    return item if job.meta is None else with_later(item, None, job.meta)


def _settle_one(tx: Tx, job: Job, outcome: AnyOutcome) -> None:
    queue = tx.queue_by_qid(job.qid)
    delay_ms = outcome.delay_ms if isinstance(outcome, RetryLater | SnoozeFor) else 0
    kind = cast("str", outcome.__struct_config__.tag)
    effect = effect_of(kind, delay_ms=delay_ms, cancel_asked=bool(job.flags & CANCEL))
    job.flags &= ~CANCEL
    failure: Failure | None = None
    if isinstance(outcome, RetryLater | Fail):
        failure = history.add_failed_run(tx, job, outcome.failure)
    if effect.failed:
        job.failures += 1
    if effect.state.ended:
        if isinstance(outcome, Complete):
            job.result = outcome.result
        reason = job.reason or "cancelled" if effect.state is State.CANCELLED else None
        ending.end(tx, queue, job, STATE_CODES[effect.state], reason=reason, failure=failure)
        return
    if isinstance(outcome, Block):
        _block(tx, job, outcome)
        return
    if isinstance(outcome, Defer):
        waiting.defer(tx, queue, job, outcome)
        return
    if isinstance(outcome, SnoozeFor):
        if not keeps_saved(outcome, attempt=job.attempt, newest=job.saved_place):
            job.saved = outcome.saved
    elif isinstance(outcome, Hold):
        holds.put(tx, queue, outcome.delay_ms, job.key)
    if effect.state is State.DELAYED:
        waiting.later(tx, job, effect.kind, tx.now + delay_ms, failure=failure)
    elif effect.returns:
        waiting.wait(tx, job, effect.kind, "front")
    else:
        waiting.when_due(tx, job, effect.kind, failure=failure)


def _block(tx: Tx, job: Job, outcome: Block) -> None:
    if outcome.saved is not None:
        job.saved = outcome.saved
    job.options = with_store_fields(job.options, signal=outcome.signal, seen=outcome.seen)
    job.at_ms = FOREVER if outcome.timeout_ms is None else tx.now + outcome.timeout_ms
    fatal = flows.tie(tx, job, outcome.after)
    tx.move(job, Kind.BLOCKED, BLOCKED)
    if fatal is not None:
        flows.fail_parent(tx, job, fatal)
    elif outcome.after and flows.waits(tx, job):
        return
    elif outcome.signal is None or _signalled(tx, job, outcome.signal, outcome.seen):
        waiting.unblock(tx, job)


def _signalled(tx: Tx, job: Job, name: str, seen: int) -> bool:
    received: int = tx.execute(tx.sql.ties["count_signals"], (job.pk, name)).fetchone()[0]
    return received > seen
