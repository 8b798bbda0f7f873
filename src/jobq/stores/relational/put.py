"""Accepts jobs.

Most jobs have no unique lock and wait for nothing: one statement inserts a whole batch of them. The
others are inserted one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from jobq.core import refusals
from jobq.core.bounds import depend_on_each_other
from jobq.core.event_log import STATES
from jobq.core.graph import check_locks
from jobq.core.limits import highest_cost
from jobq.core.locks import on_held_lock
from jobq.core.queues import with_defaults
from jobq.core.records import JobKey, JobSpec, PutResult, QueueName
from jobq.core.retention import next_life
from jobq.core.states import Kind, State
from jobq.stores.relational import bounds, ending, flows, locks, new_jobs, waiting
from jobq.stores.relational.codes import DELAYED, WANTED
from jobq.stores.relational.new_jobs import Watch, new_job
from jobq.stores.relational.records import record
from jobq.stores.relational.rows import Job, QueueRow
from jobq.stores.relational.tx import Tx


def put(
    tx: Tx, specs: Sequence[JobSpec], watch: Watch | None, bounded: bool = True
) -> list[PutResult]:
    """Implements `Store.put`. Without `bounded`, no job is refused because its queue is full."""
    tied: list[tuple[Job, JobSpec]] = []
    first = specs[0].queue if specs else None
    if all(spec.queue is first or spec.queue == first for spec in specs):
        results = _put_in(tx, specs, watch, tied, bounded)
    else:
        results = _put_in_several(tx, specs, watch, tied, bounded)
    if tied:
        _tie(tx, specs, results, tied)
    return results


def _put_in_several(
    tx: Tx,
    specs: Sequence[JobSpec],
    watch: Watch | None,
    tied: list[tuple[Job, JobSpec]],
    bounded: bool,
) -> list[PutResult]:
    by_queue: dict[QueueName, list[int]] = {}
    for n, spec in enumerate(specs):
        by_queue.setdefault(spec.queue, []).append(n)
    linked = depend_on_each_other(specs)
    if linked:
        check_locks(specs)
    if bounded and linked:
        for name, indexes in by_queue.items():
            queue = tx.ensure_queue(name)
            room = bounds.room(tx, queue)
            if (
                room is not None
                and room < len(indexes)
                and bounds.needed(tx, queue, [specs[n] for n in indexes]) > max(0, room)
            ):
                return [bounds.refused(queue, spec) for spec in specs]
        bounded = False
    results: dict[int, PutResult] = {}
    for indexes in by_queue.values():
        results.update(
            zip(
                indexes, _put_in(tx, [specs[n] for n in indexes], watch, tied, bounded), strict=True
            )
        )
    return [results[n] for n in range(len(specs))]


def _tie(
    tx: Tx, specs: Sequence[JobSpec], results: list[PutResult], tied: list[tuple[Job, JobSpec]]
) -> None:
    """Make the inserted jobs wait for each other, and update the states in their results."""
    # A spec whose unique lock was held is represented by the job that holds the lock.
    aliases = {
        JobKey(spec.queue, spec.id): r.id
        for spec, r in zip(specs, results, strict=True)
        if r.id != spec.id
    }
    jobs = []
    for pk, spec in [(job.pk, spec) for job, spec in tied]:
        job = tx.job(pk)  # read again: another job of the call may have changed its row
        assert job is not None
        fatal = flows.tie(tx, job, spec.after, aliases)
        tx.save(job)
        if fatal is not None:
            flows.fail_parent(tx, job, fatal)
        elif not job.follows and not flows.waits(tx, job):
            waiting.unblock(tx, job)
        jobs.append(job)
    states = {(job.qid, job.id): STATES[job.state] for job in jobs}
    for n, spec in enumerate(specs):
        state = states.get((tx.ensure_queue(spec.queue).qid, spec.id))
        if state is not None and not results[n].duplicate:
            results[n] = msgspec.structs.replace(results[n], state=state)


def _put_in(
    tx: Tx,
    specs: Sequence[JobSpec],
    watch: Watch | None,
    tied: list[tuple[Job, JobSpec]],
    bounded: bool,
) -> list[PutResult]:
    if not specs:
        return []
    queue = checked(tx.ensure_queue(specs[0].queue), specs)
    if queue.has_settings:
        specs = with_defaults(specs, queue.settings.defaults)
        room = bounds.room(tx, queue) if bounded else None
        if room is not None and room < len(specs):
            return _put_bounded(tx, queue, specs, watch, tied, room)
    if _are_plain(specs):
        return _put_plain(tx, queue, specs, watch)
    if depend_on_each_other(specs):
        check_locks(specs)
    return [_put_one(tx, queue, spec, watch, tied) for spec in specs]


def insert(
    tx: Tx,
    queue: QueueRow,
    specs: Sequence[JobSpec],
    watch: Watch | None,
    tied: list[tuple[Job, JobSpec]],
    wanted: Collection[str],
) -> list[PutResult]:
    """Insert members of one queue whose flow was checked. Others wait for the `wanted` ones.

    New jobs that wait for others are added to `tied`, and get no edges here."""
    if queue.mode is None:  # it was obliterated after the flow was checked
        checked(queue, specs)
    if queue.has_settings:
        specs = with_defaults(specs, queue.settings.defaults)
    if _are_plain(specs):
        return _put_plain(tx, queue, specs, watch, wanted)
    return [_put_one(tx, queue, spec, watch, tied, wanted) for spec in specs]


def _are_plain(specs: Sequence[JobSpec]) -> bool:
    """Whether the specs need neither locks nor edges, and no schedule continues after them."""
    return all(spec.unique is None and not spec.after and spec.schedule is None for spec in specs)


def _put_bounded(
    tx: Tx,
    queue: QueueRow,
    specs: Sequence[JobSpec],
    watch: Watch | None,
    tied: list[tuple[Job, JobSpec]],
    room: int,
) -> list[PutResult]:
    """Insert more specs than there are places.

    Each is accepted or refused separately, unless they depend on each other.
    """
    if depend_on_each_other(specs):
        check_locks(specs)
        if bounds.needed(tx, queue, specs) > max(0, room):
            return [bounds.refused(queue, spec) for spec in specs]
        return [_put_one(tx, queue, spec, watch, tied) for spec in specs]
    results = []
    for spec in specs:
        if room <= 0 and bounds.adds(tx, queue, spec):
            results.append(bounds.refused(queue, spec))
            continue
        results.append(_put_one(tx, queue, spec, watch, tied))
        room -= not results[-1].duplicate
    return results


def _put_plain(
    tx: Tx,
    queue: QueueRow,
    specs: Sequence[JobSpec],
    watch: Watch | None,
    wanted: Collection[str] = (),
) -> list[PutResult]:
    """Insert all at once. Only if fewer rows were inserted, look which ids existed already."""
    qid, now = queue.qid, tx.now
    seq = tx.take_seqs(qid, len(specs))
    rows = [new_job(qid, spec, seq + n, now, tx.ahead, watch) for n, spec in enumerate(specs)]
    if wanted:
        rows = [row._replace(flags=row.flags | WANTED) if row.id in wanted else row for row in rows]
    inserted = tx.insert_jobs(rows)
    taken: set[str] = set()
    repeated = False
    if inserted != len(specs):
        ids = [spec.id for spec in specs]
        taken = {
            id
            for (id,) in tx.execute(
                tx.sql.hot["taken"], (qid, tx.listed(ids), seq, seq + len(ids) - 1)
            )
        }
        repeated = len(set(ids)) != len(ids)
    if not taken and not repeated:
        new_jobs.accepted(tx, queue, rows)
        if watch is not None:
            new_jobs.watch_ends(tx, qid, [spec.id for spec in specs if watch.has(spec)], watch)
        return [PutResult(id=row.id, life=0, state=STATES[row.state]) for row in rows]
    seen: set[str] = set()
    fresh, results = [], []
    for spec, row in zip(specs, rows, strict=True):
        if spec.id in taken or spec.id in seen:
            results.append(_put_one(tx, queue, spec, watch, [], wanted))
        else:
            seen.add(spec.id)
            fresh.append(row)
            results.append(PutResult(id=spec.id, life=0, state=STATES[row.state]))
    new_jobs.accepted(tx, queue, fresh)
    if watch is not None:
        new_jobs.watch_ends(
            tx, qid, [spec.id for spec in specs if watch.has(spec) and spec.id in seen], watch
        )
    return results


def _put_one(
    tx: Tx,
    queue: QueueRow,
    spec: JobSpec,
    watch: Watch | None,
    tied: list[tuple[Job, JobSpec]],
    wanted: Collection[str] = (),
) -> PutResult:
    qid = queue.qid
    old, life = old_job_and_life(tx, queue, spec.id)
    if old is not None:
        return _duplicate(queue, old)
    followed: Job | None = None
    if spec.unique is not None:
        held = locks.holder(tx, qid, spec.unique.lock)
        meeting = "accept" if held is None else on_held_lock(spec.unique.mode, held.standing)
        if held is not None and meeting in ("duplicate", "replace"):
            if held.job is None:
                return PutResult(id=held.id, life=0, state=State.COMPLETED, duplicate=True)
            if meeting == "replace":
                locks.replace(tx, held.job, spec)
            return _duplicate(queue, held.job)
        if held is not None and meeting == "follow":
            follower = locks.follow_up(tx, qid, spec.unique.lock)
            if follower is not None:
                locks.replace(tx, follower, spec)
                return _duplicate(queue, follower)
            followed = held.job
    blocked = bool(spec.after) or followed is not None
    job = new_jobs.insert(tx, qid, spec, life, watch, blocked=blocked, wanted=spec.id in wanted)
    if job is None:
        return _put_one(
            tx, queue, spec, watch, tied, wanted
        )  # finds the job that was put meanwhile
    _accept(tx, job, spec, watch, followed)
    if spec.after:
        tied.append((job, spec))
    return PutResult(id=job.id, life=life, state=STATES[job.state])


def _accept(tx: Tx, job: Job, spec: JobSpec, watch: Watch | None, followed: Job | None) -> None:
    """Record a new job, and give it its lock or make it the follow-up of the lock's holder."""
    tx.record(job, Kind.ACCEPTED, None)
    if job.state == DELAYED and job.due_ms is not None:
        tx.due_at(job.qid, job.due_ms)
    if followed is not None:
        job.follows = 1
        locks.follow(tx, job)
        if not tx.may_change(followed):
            flows.decide_later(tx, job)
        tx.save(job)
    elif spec.unique is not None:
        locks.take(tx, job)
    if watch is not None and watch.has(spec):
        new_jobs.watch_ends(tx, job.qid, [spec.id], watch)


def old_job_and_life(tx: Tx, queue: QueueRow, id: str) -> tuple[Job | None, int]:
    """The job that has this id, or None if the id is free; and the life of a new job with it."""
    old = tx.look(queue.qid, id)
    if old is not None and not bounds.keeps_id(tx, old):
        old = tx.find(queue.qid, id)  # locked: it will be deleted
    if old is None:
        return None, next_life(None)
    if bounds.keeps_id(tx, old):
        return old, old.life
    tx.lock_as_read(old)
    ending.forget(tx, old)
    return None, next_life(old.life, expired=bounds.is_expired(tx, old))


def _duplicate(queue: QueueRow, job: Job) -> PutResult:
    return PutResult(
        id=job.id,
        life=job.life,
        state=STATES[job.state],
        duplicate=True,
        found=record(job, queue.qname),
    )


def checked(queue: QueueRow, specs: Sequence[JobSpec]) -> QueueRow:
    """Check the specs against the queue's mode, which its first job sets, and its limits."""
    mode = queue.mode
    if mode is None:
        mode = "keyed" if specs[0].key is not None else "plain"
        queue.mode, queue.dirty = mode, True
    for spec in specs:
        if (spec.key is not None) != (mode == "keyed"):
            raise refusals.wrong_mode(mode, spec)
    capacity = highest_cost(queue.settings.effective) if queue.has_settings else None
    if capacity is not None:
        for spec in specs:
            if spec.cost > capacity:
                raise refusals.too_costly(spec, capacity)
    return queue
