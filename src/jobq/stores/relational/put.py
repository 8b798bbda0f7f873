"""Accepts jobs: new, restored, and copies for dead-letter queues, within a queue's max_waiting.

Most jobs have no unique lock and wait for nothing: one statement inserts a whole batch of them. The
others are inserted one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from jobq.core.records import refusals
from jobq.core.records.event_log import KIND_CODES, STATE_CODES, STATES, Item, with_later
from jobq.core.records.jobs import JobKey, JobRecord, JobSpec, PutResult, QueueName
from jobq.core.records.queues import with_defaults
from jobq.core.records.states import Kind, State
from jobq.core.rules import copies, limits
from jobq.core.rules.ended import letter_id, letter_key, next_life, origin, second_letter_id
from jobq.core.rules.flows import check_locks
from jobq.core.rules.limits import depend_on_each_other, highest_cost
from jobq.core.rules.locks import on_held_lock
from jobq.core.rules.options import LETTER
from jobq.stores.relational import ending, flows, history, locks, signals, waiting
from jobq.stores.relational.mailbox import Watch
from jobq.stores.relational.packed import (
    event_meta,
    has_defaults,
    options_of,
    pack_failure,
    pack_options,
    unpack_options,
)
from jobq.stores.relational.records import record
from jobq.stores.relational.rows import (
    BLOCKED,
    CANCELLED,
    DELAYED,
    ENDED,
    ERRED,
    FAILED,
    FOREVER,
    GIVEN,
    LOCKING,
    NOTED,
    SCHEDULED,
    TTL,
    WAITING,
    WANTED,
    WATCHED,
    Job,
    NewJob,
    QueueRow,
)
from jobq.stores.relational.tx import Tx

# Inserts rows of new jobs, and records that they were accepted.

_ACCEPTED = KIND_CODES[Kind.ACCEPTED]


def new_job(
    qid: int, spec: JobSpec, seq: int, now: int, ahead: int, watch: Watch | None, life: int = 0
) -> NewJob:
    """The row of a new job. Runs for every job, so it repeats the rule of
    core.rules.outcomes.due_ms."""
    due = now + spec.delay_ms if spec.at_ms is None else spec.at_ms + ahead
    state = DELAYED if due > now else WAITING
    due = max(due, now)
    flags = (GIVEN if spec.given_id else 0) | (LOCKING if spec.unique else 0)
    if watch is not None and watch.has(spec):
        flags |= WATCHED
    at_ms = due if state == DELAYED else None
    options = None
    if not has_defaults(spec):
        options = pack_options(options_of(spec))
        flags |= (TTL if spec.result_ttl_ms is not None else 0) | (
            SCHEDULED if spec.schedule is not None else 0
        )
        if state == WAITING and spec.ttl_ms is not None:
            at_ms = due + spec.ttl_ms
        if spec.lifo:
            seq = -seq
    columns = (
        qid, spec.id, state, spec.priority, seq, at_ms, spec.key, flags, spec.name, life,
        now, due, spec.codec, options, spec.payload,
    )  # fmt: skip
    return tuple.__new__(NewJob, columns)  # NewJob(...) takes 0.3 µs more per job, of about 4


def insert_one(
    tx: Tx,
    qid: int,
    spec: JobSpec,
    life: int,
    watch: Watch | None,
    *,
    blocked: bool,
    wanted: bool = False,
) -> Job | None:
    """Insert one job and return its row. None: another transaction has just put its id."""
    row = new_job(qid, spec, tx.take_seqs(qid), tx.now, tx.ahead, watch, life)
    if wanted:
        row = row._replace(flags=row.flags | WANTED)
    if blocked:
        row = row._replace(state=BLOCKED, at_ms=FOREVER, due_ms=None, flags=row.flags | NOTED)
    return tx.insert_job(row)


def record_accepted(tx: Tx, queue: QueueRow, rows: list[NewJob]) -> None:
    """Write the acceptance of inserted jobs to the event log, the counters and the keys."""
    names = queue.settings.event_meta
    for state in (WAITING, DELAYED):
        jobs = [row for row in rows if row.state == state]
        if not jobs:
            continue
        items = accepted_items(jobs)
        if names:
            items = [
                with_later(item, None, event_meta(job.options, names))
                for item, job in zip(items, jobs, strict=True)
            ]
        tx.record_batch(queue.qid, _ACCEPTED, None, state, items)
        if state == DELAYED:
            tx.due_at(queue.qid, min(job.due_ms or 0 for job in jobs))
        elif queue.mode == "keyed":
            tx.keys_moved(queue.qid, [job.key or "" for job in jobs], 1, 0)


def accepted_items(rows: Sequence[NewJob]) -> list[Item]:
    """The events of new jobs, without their meta."""
    return [
        (
            _ACCEPTED, id, life, name, key, 0, 0, 0, state, None, None, None, None,
            created_ms, due_ms, None, None,
        )
        for _, id, state, _, _, _, key, _, name, life, created_ms, due_ms, _, _, _ in rows
    ]  # fmt: skip


def watch_ends(tx: Tx, qid: int, ids: list[str], watch: Watch) -> None:
    """Notify the handle that put these new jobs when they end."""
    if ids:
        signals.watch(tx, qid, ids, watch.address)


# Places for new jobs under a queue's max_waiting, and those that flows reserve. The rule is
# `core.rules.limits`.

_COUNTED = tuple(STATE_CODES[state] for state in limits.COUNTED_STATES)


def places_left(tx: Tx, queue: QueueRow) -> int | None:
    """How many new jobs the queue accepts; None: any number."""
    most = queue.settings.effective.max_waiting
    if most is None:
        return None
    return limits.places_left(
        most, sum(tx.count(queue, state) for state in _COUNTED), queue.reserved
    )


def adds(tx: Tx, queue: QueueRow, spec: JobSpec) -> bool:
    """Whether a spec would add a job that max_waiting may refuse.

    Duplicates add none. The follow-up of a `keep_last` job is never refused.
    """
    old = tx.look(queue.qid, spec.id)
    if old is not None and keeps_id(tx, old):
        return False
    return spec.unique is None or locks.is_free_for(tx, queue.qid, spec.unique)


def keeps_id(tx: Tx, job: Job) -> bool:
    """Whether a new job with the id of this one is a duplicate.

    It is not if this one was cancelled, or if it has ended and its record has expired."""
    return job.state != CANCELLED and not is_expired(tx, job)


def is_expired(tx: Tx, job: Job) -> bool:
    """Whether the job has ended and its record has expired: only upkeep still finds it."""
    return job.state in ENDED and (job.at_ms or 0) <= tx.now


def places_needed(tx: Tx, queue: QueueRow, specs: Sequence[JobSpec]) -> int:
    """How many places these specs of one queue need, none of which is stored yet."""
    names = {
        spec.id if spec.unique is None else f"\0{spec.unique.lock}": spec
        for spec in reversed(specs)
    }
    return sum(adds(tx, queue, spec) for spec in names.values())


def refused_as_full(queue: QueueRow, spec: JobSpec) -> PutResult:
    """The result for a job that the full queue refuses."""
    return PutResult(id=spec.id, life=0, state=None, full=queue.settings.effective.max_waiting)


# ── flows ─────────────────────────────────────────────────────────────────────────────────────────


def reserve_places(tx: Tx, specs: Sequence[JobSpec]) -> list[bool]:
    """Reserve a place for each of these new members of a flow that needs one.

    Returns which of them do. QueueFull if they do not all fit.
    """
    by_queue: dict[QueueName, list[int]] = {}
    for n, spec in enumerate(specs):
        by_queue.setdefault(spec.queue, []).append(n)
    takes = [True] * len(specs)
    for name, indexes in by_queue.items():
        queue = tx.ensure_queue(name)
        left = places_left(tx, queue)
        if left is not None and left < len(indexes):
            for n in indexes:
                takes[n] = adds(tx, queue, specs[n])
            if sum(takes[n] for n in indexes) > max(0, left):
                most = queue.settings.effective.max_waiting or 0
                raise limits.queue_full(name.queue, most, refused=len(specs))
        queue.reserved += sum(takes[n] for n in indexes)
        queue.dirty = True
    return takes


def free_places(tx: Tx, reserved: Iterable[tuple[QueueName, int]]) -> None:
    """Free places that members of a flow have reserved: they are jobs now, or never will be."""
    freed: dict[QueueName, int] = {}
    for name, n in reserved:
        if n:
            freed[name] = freed.get(name, 0) + n
    tx.lock_queues(freed)
    for name, n in freed.items():
        queue = tx.ensure_queue(name)
        queue.reserved -= n
        queue.dirty = True


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
            left = places_left(tx, queue)
            if (
                left is not None
                and left < len(indexes)
                and places_needed(tx, queue, [specs[n] for n in indexes]) > max(0, left)
            ):
                return [refused_as_full(queue, spec) for spec in specs]
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
    queue = checked_specs(tx.ensure_queue(specs[0].queue), specs)
    if queue.has_settings:
        specs = with_defaults(specs, queue.settings.defaults)
        left = places_left(tx, queue) if bounded else None
        if left is not None and left < len(specs):
            return _put_bounded(tx, queue, specs, watch, tied, left)
    if _are_plain(specs):
        return _put_plain(tx, queue, specs, watch)
    if depend_on_each_other(specs):
        check_locks(specs)
    return [_put_one(tx, queue, spec, watch, tied) for spec in specs]


def insert_members(
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
        checked_specs(queue, specs)
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
    left: int,
) -> list[PutResult]:
    """Insert more specs than there are places.

    Each is accepted or refused separately, unless they depend on each other.
    """
    if depend_on_each_other(specs):
        check_locks(specs)
        if places_needed(tx, queue, specs) > max(0, left):
            return [refused_as_full(queue, spec) for spec in specs]
        return [_put_one(tx, queue, spec, watch, tied) for spec in specs]
    results = []
    for spec in specs:
        if left <= 0 and adds(tx, queue, spec):
            results.append(refused_as_full(queue, spec))
            continue
        results.append(_put_one(tx, queue, spec, watch, tied))
        left -= not results[-1].duplicate
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
        record_accepted(tx, queue, rows)
        if watch is not None:
            watch_ends(tx, qid, [spec.id for spec in specs if watch.has(spec)], watch)
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
    record_accepted(tx, queue, fresh)
    if watch is not None:
        watch_ends(
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
    job = insert_one(tx, qid, spec, life, watch, blocked=blocked, wanted=spec.id in wanted)
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
        watch_ends(tx, job.qid, [spec.id], watch)


def old_job_and_life(tx: Tx, queue: QueueRow, id: str) -> tuple[Job | None, int]:
    """The job that has this id, or None if the id is free; and the life of a new job with it."""
    old = tx.look(queue.qid, id)
    if old is not None and not keeps_id(tx, old):
        old = tx.find(queue.qid, id)  # locked: it will be deleted
    if old is None:
        return None, next_life(None)
    if keeps_id(tx, old):
        return old, old.life
    tx.lock_as_read(old)
    ending.forget(tx, old)
    return None, next_life(old.life, expired=is_expired(tx, old))


def _duplicate(queue: QueueRow, job: Job) -> PutResult:
    return PutResult(
        id=job.id,
        life=job.life,
        state=STATES[job.state],
        duplicate=True,
        found=record(job, queue.qname),
    )


def checked_specs(queue: QueueRow, specs: Sequence[JobSpec]) -> QueueRow:
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


# Stores failed jobs of another store.


def restore(tx: Tx, checked: Sequence[tuple[JobRecord, JobSpec]]) -> list[bool]:
    """Implements `Store.restore`, for what `check_restored` returns."""
    return [_restore(tx, record, spec) for record, spec in checked]


def _restore(tx: Tx, record: JobRecord, spec: JobSpec) -> bool:
    assert record.failure is not None  # check_restored
    queue = checked_specs(tx.ensure_queue(record.queue), [spec])
    old, life = old_job_and_life(tx, queue, record.id)
    if old is not None:
        return False
    job = insert_one(tx, queue.qid, spec, life, None, blocked=True)
    if job is None:  # another transaction has just taken the id
        return False
    job.created_ms, job.due_ms = min(record.created_ms, tx.now), _past(tx, record.due_ms)
    job.attempt, job.failures = record.attempt, record.failures
    job.stalls = copies.stalls_before(record)
    tx.record(job, Kind.ACCEPTED, None)
    job.stalls = record.stalls
    job.started_ms, job.worker = _past(tx, record.started_ms), record.worker
    job.finished_ms = tx.now
    for error in record.errors:
        tx.execute(tx.sql.ties["add_error"], (job.pk, error.attempt, pack_failure(error)))
        job.flags |= ERRED
    if record.steps:
        history.put_steps(tx, job.pk, record.steps)
        job.flags |= history.STEP_FLAGS
    job.keep = 1 if job.flags & (GIVEN | TTL) else 0
    job.at_ms = ending.keep_until(queue.settings, FAILED, tx.now, result_ttl_ms=spec.result_ttl_ms)
    tx.move(job, Kind.FAILED, FAILED, failure=record.failure)
    return True


def _past(tx: Tx, ms: int | None) -> int | None:
    """A time of the other store, whose clock may be ahead: nothing has happened after now."""
    return None if ms is None else min(ms, tx.now)


# Copies failed jobs to the dead-letter queue of their queue. The rules are `core.rules.ended`.


def copy_to_dead_letters(tx: Tx) -> None:
    """Copy the jobs that have failed since the last time."""
    failed, tx.failed = tx.failed, []
    for queue, job, number in failed:
        _copy_one(tx, queue, job, number)


def _copy_one(tx: Tx, queue: QueueRow, job: Job, number: int) -> None:
    """Copy a failed job to the dead-letter queue. The original stays failed.

    `number` is the number of the event that recorded the failure.
    """
    target = queue.settings.dead_letters
    assert target is not None
    if target == queue.name:
        return
    there = tx.ensure_queue(QueueName(queue.tenant, target))
    options = unpack_options(job.options)
    copy = JobSpec(
        queue=there.qname,
        id=letter_id(queue.name, job.id, job.life),
        name=job.name,
        payload=job.payload,
        given_id=True,
        key=letter_key(there.mode, job.key, queue.name),
        origin=origin(queue.name, job.id),
        **{
            each.field: getattr(job if each.packed is None else options, each.field)
            for each in LETTER
        },
    )
    # Not bounded: this work was accepted before, so a full queue must not refuse it.
    (result,) = put(tx, [copy], None, bounded=False)
    if result.duplicate:  # a copy of another failure: this one fails only once
        second = second_letter_id(queue.name, job.id, job.life, number)
        copy = msgspec.structs.replace(copy, id=second)
        put(tx, [copy], None, bounded=False)
    letter = tx.find(there.qid, copy.id)
    assert letter is not None
    letter.failure = job.failure
    tx.save(letter)
