"""Unique locks. A lock is held by a job; by its mode it ends with the job, with its time, or passes to a follow-up."""

from __future__ import annotations

import msgspec

from jobq.core.records import JobSpec, UniqueSpec
from jobq.core.states import Kind
from jobq.stores.sqlite import line
from jobq.stores.sqlite.queries import load
from jobq.stores.sqlite.rows import (
    BLOCKED,
    CANCELLED,
    DELAYED,
    WAITING,
    Job,
    options_of,
    pack_options,
    unpack_options,
)
from jobq.stores.sqlite.tx import QueueRow, Tx

TIES = load("ties.sql")
_NEXT = "\0next"


def holder(tx: Tx, qid: int, lock: str) -> Job | None:
    """The job that holds a lock, if it is held. A job that has ended may hold one still (throttle)."""
    row = tx.execute(TIES["lock"], (qid, lock)).fetchone()
    if row is None:
        return None
    pk, until_ms = row
    if until_ms is not None and until_ms <= tx.now:
        return None
    found = tx.execute(TIES["load_job"], (pk,)).fetchone()
    return None if found is None else Job(*found)


def held_against(tx: Tx, qid: int, job: Job) -> bool:
    """Whether the lock this job would need is another's."""
    lock = unpack_options(job.options).lock
    if lock is None:
        return False
    found = holder(tx, qid, lock)
    return found is not None and found.pk != job.pk


def is_free_for(tx: Tx, qid: int, unique: UniqueSpec) -> bool:
    """Whether a new job with this lock would be accepted as a job of its own that follows none."""
    found = holder(tx, qid, unique.lock)
    return found is None or (unique.mode == "debounce" and found.state not in (DELAYED, WAITING, BLOCKED))


def take(tx: Tx, job: Job) -> None:
    """The job holds its lock from now on."""
    options = unpack_options(job.options)
    if options.lock is not None:
        until = None if options.lock_ttl_ms is None else tx.now + options.lock_ttl_ms
        tx.execute(TIES["take_lock"], (job.qid, options.lock, job.pk, until))


def follow(tx: Tx, job: Job) -> None:
    """The job is the follow-up of the one that runs: it holds the place behind it."""
    lock = unpack_options(job.options).lock
    assert lock is not None
    tx.execute(TIES["take_lock"], (job.qid, lock + _NEXT, job.pk, None))


def follow_up(tx: Tx, qid: int, lock: str) -> Job | None:
    """The follow-up of a running keep_last job."""
    return holder(tx, qid, lock + _NEXT)


def release(tx: Tx, queue: QueueRow, job: Job) -> None:
    """The job has ended: its lock is free, unless it holds for a time (throttle; a cancel frees it all the same)."""
    options = unpack_options(job.options)
    if options.lock is None:
        return
    tx.execute(TIES["drop_lock"], (job.qid, options.lock + _NEXT, job.pk))
    if options.lock_mode == "throttle" and job.state != CANCELLED:
        return
    held = tx.execute(TIES["lock"], (job.qid, options.lock)).fetchone()
    if held is None or held[0] != job.pk:
        return
    tx.execute(TIES["drop_lock"], (job.qid, options.lock, job.pk))
    follower = follow_up(tx, job.qid, options.lock) if options.lock_mode == "keep_last" else None
    if follower is not None and follower.state == BLOCKED:
        tx.execute(TIES["drop_lock"], (job.qid, options.lock + _NEXT, follower.pk))
        follower.follows = 0
        take(tx, follower)
        if tx.execute(TIES["any_open"], (follower.pk,)).fetchone():
            tx.save(follower)  # it waits for other jobs as well
        else:
            line.unblock(tx, follower)


def replace(tx: Tx, job: Job, spec: JobSpec) -> None:
    """A pending job gets the newest data, and its wait starts anew."""
    job.payload, job.codec = spec.payload, spec.codec
    options = msgspec.structs.replace(options_of(spec), lock=unpack_options(job.options).lock)
    job.options = pack_options(options)
    take_again = options.lock_mode == "debounce"
    if job.state in (DELAYED, WAITING) and take_again:
        due = tx.now + spec.delay_ms if spec.at_ms is None else spec.at_ms
        if due > tx.now:
            line.later(tx, job, Kind.CHANGED, due, reason="replaced")
            take(tx, job)
            return
    tx.save(job)
    tx.record(job, Kind.CHANGED, job.state, reason="replaced")
    if take_again:
        take(tx, job)
