"""Unique locks. A job holds its lock until it ends or the lock's time is over; `keep_last` passes
it on.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from jobq.core.records.event_log import STATES
from jobq.core.records.jobs import JobSpec, LockRecord, QueueName, UniqueSpec
from jobq.core.records.states import Kind, QueueKind, State
from jobq.core.rules.locks import (
    Standing,
    on_held_lock,
    passes_on,
    releases,
    standing,
)
from jobq.core.rules.options import KEPT
from jobq.core.rules.outcomes import due_ms
from jobq.stores.relational import waiting
from jobq.stores.relational.packed import options_of, pack_options, unpack_options
from jobq.stores.relational.rows import BLOCKED, ENDED, TTL, UNFOLLOWED, WAITING, Job, Lock
from jobq.stores.relational.tx import Tx


class Held(NamedTuple):
    """The holder of a lock: its id, and its job unless the record is gone."""

    id: str
    job: Job | None

    @property
    def standing(self) -> Standing:
        """How far the holder is, for the rules of core.rules.locks."""
        if self.job is None:
            return standing(None, 0)
        if self.job.flags & UNFOLLOWED:  # its end passes the lock on, which is still to do
            return standing(State.ACTIVE, self.job.starts)
        return standing(STATES[self.job.state], self.job.starts)


def holder(tx: Tx, qid: int, lock: str) -> Held | None:
    """The holder of a lock; None: the lock is free. A job that has ended can still hold one
    (throttle).
    """
    lock_row = tx.lock_row(qid, lock)
    if lock_row is None:
        return None
    if lock_row.until_ms is not None and lock_row.until_ms <= tx.now:
        return None
    job = tx.job_free(lock_row.pk)
    if job is not None and (
        job.id != lock_row.id
        or job.qid != qid
        or (job.state in ENDED and (job.at_ms or 0) <= tx.now)
    ):
        job = None  # the numbers of deleted rows may be used again
    return Held(lock_row.id, job)


def held_against(tx: Tx, qid: int, job: Job) -> bool:
    """Whether another job holds the lock that this job needs."""
    lock = unpack_options(job.options).lock
    if lock is None:
        return False
    found = holder(tx, qid, lock)
    return found is not None and found.id != job.id


def is_free_for(tx: Tx, qid: int, unique: UniqueSpec) -> bool:
    """Whether a new job with this lock would be accepted, and not as a follow-up."""
    found = holder(tx, qid, unique.lock)
    return found is None or on_held_lock(unique.mode, found.standing) == "accept"


def take(tx: Tx, job: Job) -> None:
    """Give the job its lock."""
    options = unpack_options(job.options)
    if options.lock is not None:
        until = None if options.lock_ttl_ms is None else tx.now + options.lock_ttl_ms
        tx.give_lock(job.qid, options.lock, Lock(job.pk, until, job.id))


def follow(tx: Tx, job: Job) -> None:
    """Make the job the follow-up of the running `keep_last` job: it starts after that one."""
    lock = unpack_options(job.options).lock
    assert lock is not None
    tx.give_lock(job.qid, lock + tx.follow_up, Lock(job.pk, None, job.id))


def follow_up(tx: Tx, qid: int, lock: str) -> Job | None:
    """The follow-up of a running `keep_last` job."""
    found = holder(tx, qid, lock + tx.follow_up)
    return None if found is None else found.job


def find(tx: Tx, name: QueueName, lock: str) -> LockRecord | None:
    """Implements `Store.find_lock`."""
    queue = tx.queue(name)
    row = None if queue is None else _row(tx, queue.qid, lock)
    if queue is None or row is None:
        return None
    follower = _row(tx, queue.qid, lock + tx.follow_up)
    until_ms = None if row.until_ms is None else row.until_ms - tx.ahead
    return LockRecord(row.id, until_ms, None if follower is None else follower.id)


def release_by_name(tx: Tx, name: QueueName, lock: str, job: str | None, actor: str | None) -> bool:
    """Implements `Store.release_lock`."""
    queue = tx.queue(name)
    row = None if queue is None else _row(tx, queue.qid, lock)
    if queue is None or row is None or job not in (None, row.id):
        return False
    tx.execute(tx.sql.ties["drop_lock"], (queue.qid, lock, row.pk))
    if (left := tx.lock_row(queue.qid, lock)) is not None and left.pk == row.pk:
        return False  # an open transaction of a caller is taking it over
    tx.record_operation(queue, QueueKind.RELEASED_LOCK, reason=row.id, actor=actor)
    _pass_on(tx, queue.qid, lock)
    return True


def _row(tx: Tx, qid: int, lock: str) -> Lock | None:
    """The row of a lock that is held now."""
    row = tx.lock_row(qid, lock)
    return None if row is None or (row.until_ms or tx.now + 1) <= tx.now else row


def release(tx: Tx, job: Job) -> None:
    """Free the lock of a job that has ended. A throttle keeps its lock, unless the job was
    cancelled.
    """
    options = unpack_options(job.options)
    if options.lock is None:
        return
    tx.execute(tx.sql.ties["drop_lock"], (job.qid, options.lock + tx.follow_up, job.pk))
    if releases(options.lock_mode or "simple", STATES[job.state]):
        tx.execute(tx.sql.ties["drop_lock"], (job.qid, options.lock, job.pk))
    _pass_on(tx, job.qid, options.lock)


def _pass_on(tx: Tx, qid: int, lock: str) -> None:
    """Release the follow-up, if there is one and the job it follows has ended."""
    follower = follow_up(tx, qid, lock)
    if follower is None or follower.state != BLOCKED:
        return
    held = holder(tx, qid, lock)
    if not passes_on(None if held is None else held.standing):
        return
    tx.execute(tx.sql.ties["drop_lock"], (qid, lock + tx.follow_up, follower.pk))
    follower.follows = 0
    if held is None:
        take(tx, follower)
    if tx.execute(tx.sql.ties["any_open"], (follower.pk,)).fetchone():
        tx.save(follower)  # it still waits for other jobs
    else:
        waiting.unblock(tx, follower)


def pass_on(tx: Tx, follower: Job) -> None:
    """Release a follow-up if the job that it follows has ended already."""
    lock = unpack_options(follower.options).lock
    assert lock is not None
    _pass_on(tx, follower.qid, lock)


def replace(tx: Tx, job: Job, spec: JobSpec) -> None:
    """Give a job that has never started the data and options of a new one.

    core.rules.options.KEPT lists what stays. With debounce the job's wait begins again.
    """
    tx.lock_as_read(job)
    old = unpack_options(job.options)
    kept = {each.field: getattr(old, each.field) for each in KEPT if each.packed is not None}
    options = msgspec.structs.replace(options_of(spec), lock=old.lock, put_off=old.put_off, **kept)
    job.payload, job.codec, job.options = spec.payload, spec.codec, pack_options(options)
    job.flags = job.flags & ~TTL | (TTL if options.result_ttl_ms is not None else 0)
    debounced = options.lock_mode == "debounce"
    if debounced:
        take(tx, job)
        due = due_ms(now_ms=tx.now, delay_ms=spec.delay_ms, at_ms=spec.at_ms, ahead_ms=tx.ahead)
        if due > tx.now and job.state != BLOCKED:
            waiting.due_again(job)
            waiting.later(tx, job, Kind.CHANGED, due, reason="replaced")
            return
    if job.state == WAITING:
        job.at_ms = waiting.ttl_end(job, job.due_ms or tx.now)
    tx.save(job)
    tx.record(job, Kind.CHANGED, job.state, reason="replaced")
