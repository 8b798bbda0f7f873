"""Jobs that wait for other jobs. A child's end is copied to its parents; each parent's policy
applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobq.core.records import refusals
from jobq.core.records.event_log import STATES
from jobq.core.records.jobs import ChildPolicy, Edge, Input, JobKey, QueueName
from jobq.core.records.states import State
from jobq.core.rules import outcomes
from jobq.core.rules.outcomes import ChildEnd
from jobq.stores.relational import ending, locks, rows, waiting
from jobq.stores.relational.packed import pack_failure, unpack_failure, unpack_options
from jobq.stores.relational.rows import (
    BLOCKED,
    COMPLETED,
    ENDED,
    FAILED,
    FOREVER,
    NOTED,
    WANTED,
    Job,
)
from jobq.stores.relational.tx import Tx

_BATCH = 500
"""Parents of one child that are read at a time."""
_LOADED = 50
"""Parents whose rows are loaded at a time. Each may have a payload of megabytes."""
_COMPLETED, _NOT_COMPLETED = 1, 2
"""`edges.done` of a child that has completed, and of one that has ended otherwise. 0: not ended."""
_CHECK_MS = 1_000
"""Milliseconds between two looks at a child that its handler completes in an open transaction."""


def tie(
    tx: Tx, parent: Job, edges: tuple[Edge, ...], aliases: Mapping[JobKey, str] | None = None
) -> Job | None:
    """Make a blocked job wait for others. Jobs that have ended already count at once.

    `aliases` names the jobs that hold the unique locks of members; the parent gets their results
    under the id it asked for. Returns the first child whose end fails the parent by its policy, if
    there is one.
    """
    there = set(tx.execute(tx.sql.ties["edge_names"], (parent.pk,)))
    ordinal = len(there)
    tenant = tx.queue_by_qid(parent.qid).tenant
    fatal: Job | None = None
    for edge in edges:
        queue = (
            tx.queue(edge.job.queue) if edge.job.queue.tenant == tenant else None
        )  # a flow lives in one tenant
        id = edge.job.id if aliases is None else aliases.get(edge.job, edge.job.id)
        child = None if queue is None else tx.find_free(queue.qid, id)
        if queue is None or (child is None and id == edge.job.id):
            raise refusals.unknown_child(parent.id, edge.job)
        if (queue.qid, edge.job.id) in there:
            continue
        there.add((queue.qid, edge.job.id))
        failing = tie_to(tx, parent, edge, ordinal, queue.qid, id, child)
        fatal = fatal or failing
        ordinal += 1
    parent.flags |= NOTED
    return fatal


def tie_to(
    tx: Tx, parent: Job, edge: Edge, ordinal: int, qid: int, id: str, child: Job | None
) -> Job | None:
    """Make a blocked job wait for another one, which has this id. Returns it if it has ended, and
    its end fails the parent."""
    asked = None if id == edge.job.id else edge.job.id
    if child is None:
        # A throttle whose job's record is gone has refused the member. It counts as completed, as
        # in the result of `put`.
        gone = rows.Edge(
            ordinal, qid, id, int(edge.data), _COMPLETED, None, "json", None, edge.job.id
        )
        tx.execute(tx.sql.ties["add_edge"], (parent.pk, *gone))
        return None
    policy = unpack_options(parent.options).on_child_failure
    fatal = None
    done, result, failure = _stored_end(child, policy) if child.state in ENDED else (0, None, None)
    if done and outcomes.fails_parent(policy, STATES[child.state]):
        if tx.may_change(child):
            fatal = child
        else:
            done, failure = 0, None
    row = rows.Edge(
        ordinal=ordinal,
        child_qid=qid,
        child=id,
        data=int(edge.data),
        done=done,
        result=result if edge.data else None,
        codec=child.codec,
        failure=failure,
        asked=asked,
    )
    tx.execute(tx.sql.ties["add_edge"], (parent.pk, *row))
    if not done:
        _want(tx, parent, child)
    return fatal


def tie_to_gone(tx: Tx, parent: Job, edge: Edge, ordinal: int, qid: int) -> ChildEnd | None:
    """The same for a job that was deleted after its flow was checked: it counts as cancelled.

    Returns its end if that fails the parent."""
    policy = unpack_options(parent.options).on_child_failure
    row = rows.Edge(
        ordinal, qid, edge.job.id, int(edge.data), _NOT_COMPLETED, None, "json", None, None
    )
    end, _, failure = _gone(row, policy)
    tx.execute(tx.sql.ties["add_edge"], (parent.pk, *row._replace(failure=failure)))
    return end if outcomes.fails_parent(policy, end.state) else None


def meet(tx: Tx, qid: int, id: str) -> None:
    """Let a stored job reach the parents that wait for its id and that it does not know.

    If it has ended, they get its end now. If its record is gone, it counts as completed."""
    child = tx.find_free(qid, id)
    edges = tx.execute(tx.sql.ties["waiting_parents"], (qid, id, _BATCH)).fetchall()
    if child is not None and child.state not in ENDED:
        for pk, _, _ in edges if child.pk in tx.completing else edges[:1]:
            parent = tx.job(pk)
            if parent is not None:
                _want(tx, parent, child)
                tx.save(parent)
        return
    while edges:
        if child is not None:
            _hand_over(tx, edges, child)
        for pk, ordinal, _ in edges if child is None else ():
            tx.execute(tx.sql.ties["end_edge"], (_COMPLETED, None, "json", None, pk, ordinal))
            _release(tx, pk)
        edges = tx.execute(tx.sql.ties["waiting_parents"], (qid, id, _BATCH)).fetchall()


def _release(tx: Tx, pk: int) -> None:
    parent = tx.job(pk)
    if parent is not None and parent.state == BLOCKED and not (parent.follows or waits(tx, parent)):
        waiting.unblock(tx, parent)


def tie_again(tx: Tx, parent: Job) -> ChildEnd | None:
    """Make a revived job wait again for the jobs whose results it does not have.

    Returns the first end that fails the parent by its policy, if there is one.
    """
    policy = unpack_options(parent.options).on_child_failure
    fatal: ChildEnd | None = None
    for row in tx.execute(tx.sql.ties["edges_of"], (parent.pk,)).fetchall():
        edge = rows.Edge(*row)
        if edge.done and edge.result is not None:
            continue
        child = tx.find_free(edge.child_qid, edge.child)
        if child is None and _is_staged(edge):
            continue
        if child is None:
            if edge.done == _COMPLETED and (edge.asked is not None or not edge.data):
                continue  # it has completed, or counts as completed (see `tie`)
            done, codec = _NOT_COMPLETED, edge.codec or "json"
            end, result, failure = _gone(edge, policy)
        elif child.state in ENDED:
            end, codec = end_of(child), child.codec
            done, result, failure = _stored_end(child, policy)
        else:
            tx.execute(tx.sql.ties["reopen_edge"], (parent.pk, edge.ordinal))
            _want(tx, parent, child)
            continue
        if outcomes.fails_parent(policy, end.state):
            fatal = fatal or end
        tx.execute(
            tx.sql.ties["end_edge"],
            (done, result if edge.data else None, codec, failure, parent.pk, edge.ordinal),
        )
    return fatal


def _is_staged(edge: rows.Edge) -> bool:
    """Whether an edge may lead to a member of its flow that is no job yet (see submission.py)."""
    return not edge.done and edge.codec is None


def _gone(edge: rows.Edge, policy: ChildPolicy) -> tuple[ChildEnd, None, bytes | None]:
    """The end of a child whose record is gone, and which had not completed."""
    end = ChildEnd(edge.asked or edge.child, None, State.CANCELLED)
    failure = outcomes.failure_for_parent(policy, end)
    return end, None, None if failure is None else pack_failure(failure)


def _want(tx: Tx, parent: Job, child: Job) -> None:
    """Let the end of a child reach its parent. If the child must stay as it is, look later."""
    if child.pk in tx.completing or not tx.may_change(child):
        decide_later(tx, parent)
    elif not child.flags & WANTED:
        child.flags |= WANTED
        tx.save(child)


def decide_later(tx: Tx, job: Job) -> None:
    """Let the first claim or tick after the commit decide how long a blocked job waits.

    A job that has ended while its flow was submitted waits again only if it is revived."""
    if job.state != BLOCKED:
        return
    job.at_ms = tx.now
    tx.due_at(job.qid, tx.now)


def decide(tx: Tx, pk: int) -> None:
    """Decide how long a blocked job waits that a caller's transaction has put (`decide_later`).

    The jobs that it waits for may have ended before that transaction committed."""
    parent = tx.job(pk)
    if parent is None or parent.state != BLOCKED:
        return
    parent.at_ms = FOREVER
    ended: list[tuple[rows.Edge, Job | None]] = []
    for row in tx.execute(tx.sql.ties["edges_of"], (pk,)).fetchall():
        edge = rows.Edge(*row)
        child = None if edge.done else tx.find_free(edge.child_qid, edge.child)
        if child is None and _is_staged(edge):
            parent.at_ms = tx.now + _CHECK_MS
        elif child is None or child.state in ENDED:
            ended += [] if edge.done else [(edge, child)]
        elif child.pk in tx.completing:  # its row is locked
            parent.at_ms = tx.now + _CHECK_MS
        else:
            _want(tx, parent, child)
    tx.save(parent)
    for edge, child in ended:
        if child is None:
            # Its record is gone. It counts as completed, like the job of an old throttle.
            tx.execute(tx.sql.ties["end_edge"], (_COMPLETED, None, "json", None, pk, edge.ordinal))
        else:
            _hand_over(tx, [(pk, edge.ordinal, edge.data)], child)
    parent = tx.job(pk)
    if parent is None or parent.state != BLOCKED:
        return
    if parent.follows:
        locks.pass_on(tx, parent)
    elif not waits(tx, parent):
        waiting.unblock(tx, parent)


def waits(tx: Tx, parent: Job) -> bool:
    """Whether a job that the parent waits for has not ended."""
    return tx.execute(tx.sql.ties["any_open"], (parent.pk,)).fetchone() is not None


def deliver(tx: Tx) -> None:
    """Give the ends of jobs to their parents, which are released or fail. More jobs may end."""
    while tx.wanted:
        child = tx.wanted.pop()
        more = True
        while more:
            edges = tx.execute(
                tx.sql.ties["waiting_parents"], (child.qid, child.id, _BATCH)
            ).fetchall()
            _hand_over(tx, edges, child)
            more = len(edges) == _BATCH


def fail_parent(tx: Tx, parent: Job, child: Job) -> None:
    """Fail a parent because of a child, by policy `fail`."""
    fail_because(tx, parent, end_of(child))


def fail_because(tx: Tx, parent: Job, end: ChildEnd) -> None:
    """The same for a child of which only the end is known."""
    failure = outcomes.parent_failure(end, attempt=parent.attempt, now_ms=tx.now)
    ending.end(tx, tx.queue_by_qid(parent.qid), parent, FAILED, failure=failure)


def end_of(child: Job) -> ChildEnd:
    """How a job has ended."""
    failure = unpack_failure(child.failure)
    return ChildEnd(
        child.id, child.name, STATES[child.state], failure, child.attempt, child.finished_ms or 0
    )


def inputs(tx: Tx, pk: int) -> tuple[Input, ...]:
    """How the jobs that this one waited for have ended, in the order of the edges."""
    found = []
    for row in tx.execute(tx.sql.ties["edges_of"], (pk,)).fetchall():
        edge = rows.Edge(*row)
        if edge.done:
            found.append(
                Input(
                    job=JobKey(tx.queue_by_qid(edge.child_qid).qname, edge.asked or edge.child),
                    result=edge.result if edge.data else None,
                    codec=edge.codec or "json",
                    failure=unpack_failure(edge.failure),
                )
            )
    return tuple(found)


def family(tx: Tx, job: Job) -> tuple[tuple[JobKey, ...], tuple[JobKey, ...]]:
    """The parents and children of a job."""
    parents: tuple[JobKey, ...] = ()
    children: tuple[JobKey, ...] = ()
    if job.flags & WANTED:
        parents = _keys(tx.execute(tx.sql.ties["parents_of"], (job.qid, job.id)).fetchall())
    if job.flags & NOTED:
        children = _keys(tx.execute(tx.sql.ties["children_of"], (job.pk,)).fetchall())
    return parents, children


def _keys(found: list[tuple[str, str, str]]) -> tuple[JobKey, ...]:
    return tuple(JobKey(QueueName(tenant, queue), id) for tenant, queue, id in found)


def _stored_end(child: Job, policy: ChildPolicy) -> tuple[int, bytes | None, bytes | None]:
    if child.state == COMPLETED:
        return _COMPLETED, child.result, None
    failure = outcomes.failure_for_parent(policy, end_of(child))
    return _NOT_COMPLETED, None, None if failure is None else pack_failure(failure)


def _hand_over(tx: Tx, edges: Sequence[tuple[int, int, int]], child: Job) -> None:
    """Give a child's end to parents, by the parent's number, the edge's ordinal, and whether the
    parent wants the result.

    The row of a parent is read only if that releases or fails it: a parent may have 10,000
    children. A child may have as many parents, so the statements about all of them are sent
    together: one by one, each took 0.4 ms on PostgreSQL.
    """
    asked = tx.first_rows(tx.sql.ties["parent"], [(pk,) for pk, _, _ in edges])
    found = [(None, 0, None) if row is None else row for row in asked]
    ends: list[tuple[Any, ...]] = []
    fatal: list[int] = []
    others: dict[int, None] = {}  # each once: it may have two edges to the child
    for (pk, ordinal, data), (state, follows, packed) in zip(edges, found, strict=True):
        options = unpack_options(packed)
        done, result, failure = _stored_end(child, options.on_child_failure)
        ends.append((done, result if data else None, child.codec, failure, pk, ordinal))
        if state == BLOCKED and outcomes.fails_parent(
            options.on_child_failure, STATES[child.state]
        ):
            fatal.append(pk)
        elif state == BLOCKED and not follows and options.signal is None:
            others[pk] = None
    tx.many(tx.sql.ties["end_edge"], ends)
    still_open = tx.first_rows(tx.sql.ties["any_open"], [(pk,) for pk in others])
    free = [pk for pk, row in zip(others, still_open, strict=True) if row is None]
    for start in range(0, len(free), _LOADED):
        some = free[start : start + _LOADED]
        jobs = {job.pk: job for job in tx.load(some)}
        for pk in some:
            waiting.unblock(tx, jobs[pk])
    for pk in fatal:
        # Read one by one: the end of one may give its unique lock to another.
        parent = tx.job(pk)
        if parent is not None and parent.state == BLOCKED:
            fail_parent(tx, parent, child)
