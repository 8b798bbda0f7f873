"""Copies failed jobs to the dead-letter queue of their queue. The rules are `core.dead_letters`."""

from __future__ import annotations

import msgspec

from jobq.core.dead_letters import letter_id, letter_key, origin, second_letter_id
from jobq.core.options import LETTER
from jobq.core.records import JobSpec, QueueName
from jobq.stores.relational import put
from jobq.stores.relational.options import unpack_options
from jobq.stores.relational.rows import Job, QueueRow
from jobq.stores.relational.tx import Tx


def deliver(tx: Tx) -> None:
    """Copy the jobs that have failed since the last time."""
    failed, tx.failed = tx.failed, []
    for queue, job, number in failed:
        _copy(tx, queue, job, number)


def _copy(tx: Tx, queue: QueueRow, job: Job, number: int) -> None:
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
    (result,) = put.put(tx, [copy], None, bounded=False)
    if result.duplicate:  # a copy of another failure: this one fails only once
        second = second_letter_id(queue.name, job.id, job.life, number)
        copy = msgspec.structs.replace(copy, id=second)
        put.put(tx, [copy], None, bounded=False)
    letter = tx.find(there.qid, copy.id)
    assert letter is not None
    letter.failure = job.failure
    tx.save(letter)
