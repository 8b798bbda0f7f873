"""What the functions that put jobs reply: results, and refusals in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from jobq.core import refusals
from jobq.core.bounds import queue_full
from jobq.core.event_log import STATES
from jobq.core.records import JobSpec, PutResult, QueueName
from jobq.stores.valkey import job_replies
from jobq.stores.valkey.calls import Refused

_FULL = -1  # instead of a state: the queue is full and the job was refused


def put_result(queue: QueueName, answer: list[Any]) -> PutResult:
    """The result for a job that is not simply new and waiting (see J.put_one in lua/put.lua)."""
    _, id, life, state, *found = answer
    if state == _FULL:
        return PutResult(id=id.decode(), life=0, state=None, full=found[0])
    if not found:
        return PutResult(id=id.decode(), life=life, state=STATES[state])
    known = job_replies.record(queue, found[0]) if found[0] else None
    return PutResult(id=id.decode(), life=life, state=STATES[state], duplicate=True, found=known)


def refuse(refused: Refused, specs: Sequence[JobSpec]) -> NoReturn:
    """Raise the exception that says why these jobs were refused."""
    queue = specs[0].queue.queue
    if refused.word == "FULL":
        raise queue_full(queue, int(refused.rest[0]), refused=len(specs))
    if refused.word == "COST":
        capacity = int(float(refused.rest[0]))
        spec = next(s for s in specs if s.cost > capacity)
        raise refusals.too_costly(spec, capacity)
    spec = specs[int(refused.rest[1]) - 1]
    raise refusals.wrong_mode("keyed" if refused.rest[0] == "keyed" else "plain", spec)
