"""Carries out operators' commands on single jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from jobq.core.records import event_log
from jobq.core.records.commands import (
    Altered,
    AnyCommand,
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
    Reschedule,
    Revive,
    SendSignal,
    Update,
    applies,
)
from jobq.core.records.defaults import MAX_SIGNALS
from jobq.core.records.jobs import MAX_AFTER, JobKey, QueueName
from jobq.core.records.states import Kind, QueueKind
from jobq.core.rules.outcomes import due_ms
from jobq.core.rules.waits import CHILD, noted_child
from jobq.stores.relational import ending, flows, history, locks, signals, waiting
from jobq.stores.relational.packed import unpack_options, with_store_fields
from jobq.stores.relational.rows import (
    ACTIVE,
    BLOCKED,
    CANCEL,
    CANCELLED,
    DELAYED,
    ENDED,
    FOREVER,
    LOCKING,
    NOTED,
    UNFOLLOWED,
    WAITING,
    Edge,
    Job,
    QueueRow,
)
from jobq.stores.relational.tx import Tx


def alter(tx: Tx, commands: Sequence[AnyCommand]) -> list[Altered]:
    """Implements `Store.alter`."""
    purged: Counter[tuple[QueueName, str | None]] = Counter()
    results = [_carry_out(tx, command, purged) for command in commands]
    for (name, actor), n in purged.items():
        tx.record_operation(
            tx.ensure_queue(name), QueueKind.PURGED, reason=event_log.jobs_reason(n), actor=actor
        )
    return results


def cancel(tx: Tx, queue: QueueRow, job: Job, *, reason: str, cascade: bool) -> bool:
    """Cancel a job that is not active, or ask the worker that runs it to stop. `job.actor` asked
    for it.
    """
    if job.state in ENDED:
        return False
    if cascade:
        _cancel_below(tx, job, reason)
    if job.state != ACTIVE:
        ending.end(tx, queue, job, CANCELLED, reason=reason)
        return True
    if not job.flags & CANCEL:
        job.flags |= CANCEL
        job.reason = reason
        if job.actor is not None:  # for the event that ends the job
            job.options = with_store_fields(job.options, actor=job.actor)
        tx.save(job)
        signals.ask_to_cancel(tx, job.worker, queue.qname, job.id)
    return True


def _carry_out(
    tx: Tx, command: AnyCommand, purged: Counter[tuple[QueueName, str | None]]
) -> Altered:
    found = _find(tx, command.job)
    if found is None:
        return "missing"
    queue, job = found
    state = event_log.STATES[job.state]
    if job.pk in tx.completing or not applies(command, state, job.starts, job.life):
        return "late"
    if job.flags & UNFOLLOWED:
        ending.follow(tx, queue, job)
    job.actor = command.actor
    how = _applied(tx, queue, job, command)
    if how == "purged":
        purged[command.job.queue, command.actor] += 1
    return "done" if how else "late"


def _applied(tx: Tx, queue: QueueRow, job: Job, command: AnyCommand) -> bool | Literal["purged"]:
    match command:
        case Cancel(cascade=cascade, reason=reason):
            return cancel(tx, queue, job, reason=reason, cascade=cascade)
        case Rerun():
            return _rerun(tx, queue, job)
        case Revive():
            return _revive(tx, queue, job)
        case Promote():
            return _promote(tx, job)
        case Reprioritise(priority=priority):
            return _reprioritise(tx, job, priority)
        case Reschedule():
            return _reschedule(tx, job, command)
        case Update(payload=payload, codec=codec):
            return _update(tx, job, payload, codec)
        case Remove():
            return _remove(tx, queue, job)
        case SendSignal(name=name, value=value):
            return _signal(tx, job, name, value)


def _find(tx: Tx, key: JobKey) -> tuple[QueueRow, Job] | None:
    """The job and its queue; None if its record is past retention, deleted or not."""
    queue = tx.queue(key.queue)
    job = None if queue is None else tx.find_free(queue.qid, key.id)
    if queue is None or job is None or (job.state in ENDED and (job.at_ms or 0) <= tx.now):
        return None
    return queue, job


def _cancel_below(tx: Tx, job: Job, reason: str) -> None:
    """Cancel the jobs that a job waits for, and those that they wait for.

    The nearest come first, so that none fails because of its child before it is cancelled.
    """
    todo, seen = [job], {(job.qid, job.id)}
    while todo:
        for qid, id in _below(tx, todo.pop()):
            child = tx.find_free(qid, id) if (qid, id) not in seen else None
            seen.add((qid, id))
            if child is not None and child.pk not in tx.completing:
                child.actor = job.actor
                todo.append(child)
                cancel(tx, tx.queue_by_qid(qid), child, reason=reason, cascade=False)


def _below(tx: Tx, job: Job) -> list[tuple[int, str]]:
    """The jobs that a job waits for, and those that it has added as its children."""
    edges = [Edge(*row) for row in tx.execute(tx.sql.ties["edges_of"], (job.pk,)).fetchall()]
    found = [(edge.child_qid, edge.child) for edge in edges]
    if job.flags & NOTED:
        tenant = tx.queue_by_qid(job.qid).tenant
        for name, value in tx.execute(tx.sql.ties["signals_of"], (job.pk,)).fetchall():
            child = noted_child(tenant, name, value)
            queue = None if child is None else tx.queue(child.queue)
            if child is not None and queue is not None:
                found.append((queue.qid, child.id))
    return found


def _rerun(tx: Tx, queue: QueueRow, job: Job) -> bool:
    if locks.held_against(tx, queue.qid, job):
        return False
    _begin_life(job)
    job.saved = None
    if job.flags & NOTED:
        tx.execute(tx.sql.ties["delete_signals"], (job.pk,))
    history.forget_steps(tx, job)
    _wait_again(tx, job)
    return True


def _revive(tx: Tx, queue: QueueRow, job: Job) -> bool:
    if locks.held_against(tx, queue.qid, job):
        return False
    _begin_life(job)
    job.follows, job.at_ms = 0, FOREVER
    if unpack_options(job.options).signal is not None:
        job.options = with_store_fields(job.options, signal=None, seen=0)
    fatal = flows.tie_again(tx, job) if job.flags & NOTED else None
    if fatal is None and not (job.flags & NOTED and flows.waits(tx, job)):
        _wait_again(tx, job)
        return True
    tx.move(job, Kind.RERUN, BLOCKED)
    if job.flags & LOCKING:
        locks.take(tx, job)
    if fatal is not None:
        flows.fail_because(tx, job, fatal)
    return True


def _begin_life(job: Job) -> None:
    job.life += 1
    job.failures = job.stalls = job.keep = 0
    job.started_ms = job.finished_ms = job.worker = job.token = job.reason = None
    job.failure = job.result = job.progress = None
    job.flags &= ~CANCEL
    options = unpack_options(job.options)
    if options.actor is not None or options.put_off is not None:
        job.options = with_store_fields(job.options, actor=None, put_off=None, deferred=None)


def _wait_again(tx: Tx, job: Job) -> None:
    waiting.wait(tx, job, Kind.RERUN, "first" if unpack_options(job.options).lifo else "back")
    if job.flags & LOCKING:
        locks.take(tx, job)


def _promote(tx: Tx, job: Job) -> bool:
    job.due_ms = tx.now
    waiting.when_due(tx, job, Kind.PROMOTED, reason="promoted")
    return True


def _reprioritise(tx: Tx, job: Job, priority: int) -> bool:
    job.priority = priority
    if job.state == WAITING:
        job.seq = tx.take_seqs(job.qid)
    tx.save(job)
    tx.record(job, Kind.CHANGED, job.state, reason="reprioritised")
    return True


def _reschedule(tx: Tx, job: Job, command: Reschedule) -> bool:
    due = due_ms(now_ms=tx.now, delay_ms=command.delay_ms, at_ms=command.at_ms, ahead_ms=tx.ahead)
    waiting.due_again(job)
    if due > tx.now:
        waiting.later(tx, job, Kind.CHANGED, due, reason="rescheduled")
    elif job.state == DELAYED:
        job.due_ms = tx.now
        waiting.when_due(tx, job, Kind.PROMOTED, reason="rescheduled")
    return True


def _update(tx: Tx, job: Job, payload: bytes, codec: str) -> bool:
    job.payload, job.codec = payload, codec
    waiting.new_arguments(job)
    tx.save(job)
    tx.record(job, Kind.CHANGED, job.state, reason="updated")
    return True


def _remove(tx: Tx, queue: QueueRow, job: Job) -> bool | Literal["purged"]:
    if job.state in ENDED:
        if job.flags & LOCKING:
            tx.execute(
                tx.sql.ties["drop_lock"], (job.qid, unpack_options(job.options).lock, job.pk)
            )
        ending.forget(tx, job)
        return "purged"
    return cancel(tx, queue, job, reason="removed", cascade=False)


def _signal(tx: Tx, job: Job, name: str, value: bytes) -> bool:
    most = MAX_AFTER if name.startswith(CHILD) else MAX_SIGNALS
    if tx.execute(tx.sql.ties["last_signal"], (job.pk,)).fetchone()[0] >= most:
        return False
    tx.execute(tx.sql.ties["add_signal"], (job.pk, name, value))
    job.flags |= NOTED
    tx.save(job)
    if job.state == BLOCKED and unpack_options(job.options).signal == name:
        waiting.unblock(tx, job)
    return True
