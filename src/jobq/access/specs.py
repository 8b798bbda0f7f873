"""Checks of what workers and operators send: our own client has made them already, others may not
have. New jobs are checked by `core.new_jobs`, as they are everywhere.
"""

from __future__ import annotations

from jobq.core import outcomes
from jobq.core.checks import MAX_COUNT, MAX_EPOCH_MS, MAX_MS, check_int, check_short_name
from jobq.core.new_jobs import check_queue
from jobq.core.records import AnyOutcome
from jobq.core.workers import MAX_CONCURRENCY, WorkerRecord
from jobq.errors import InvalidJob

_MAX_WORD = 512
"""Characters of the name of a worker, a call, a reader or a lock: ids with a prefix."""
_MAX_HOST = 255
"""Characters of a host's name, as in DNS."""
_MAX_QUEUES = 10_000
"""Queues of one worker. Each heartbeat names all of them."""
MAX_TTL_MS = 86_400_000
"""Milliseconds that a heartbeat or a leadership may last: a day. A caller that dies keeps the name
or the leadership as long, so a longer time would keep it for ever."""


def check_outcome(outcome: AnyOutcome) -> None:
    """InvalidJob names what is wrong with the end of a run."""
    check_queue(outcome.queue)
    outcomes.check_outcome(outcome)


def check_worker(worker: WorkerRecord) -> None:
    """InvalidJob names what is wrong with what a worker says about itself."""
    if worker.host:
        check_short_name(worker.host, "host", _MAX_HOST)
    if worker.incarnation:
        check_word(worker.incarnation, "incarnation")
    if len(worker.queues) > _MAX_QUEUES:
        raise InvalidJob(f"queues has {len(worker.queues):,} names, more than {_MAX_QUEUES:,}")
    for option, value, most in (
        ("pid", worker.pid, MAX_COUNT),
        ("concurrency", worker.concurrency, MAX_CONCURRENCY),
        ("active", worker.active, MAX_COUNT),
        ("started_ms", worker.started_ms, MAX_EPOCH_MS),
        ("seen_ms", worker.seen_ms, MAX_EPOCH_MS),
    ):
        check_int(value, option, high=most)


def check_ttl(ms: int) -> None:
    """InvalidJob unless a heartbeat or a leadership may last this long."""
    check_int(ms, "ttl_ms", low=1, high=MAX_TTL_MS)


def check_span(ms: int, option: str, *, least: int = 0) -> None:
    """InvalidJob unless this is a time that a store can add to another."""
    check_int(ms, option, low=least, high=MAX_MS)


def check_word(text: str, option: str) -> None:
    """InvalidJob unless this can be the name of a worker, a call, a reader or a lock."""
    check_short_name(text, option, _MAX_WORD)
