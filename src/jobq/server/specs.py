"""Checks of what clients send: our own client has made them already, others may not have.

A store takes records as they are. So names, numbers and sizes are checked here, before a call of a
client reaches the store.
"""

from __future__ import annotations

from functools import lru_cache

from jobq.core.checks import (
    MAX_COST,
    MAX_EPOCH_MS,
    MAX_MS,
    check_id,
    check_key,
    check_queue_name,
    check_short_name,
    check_signal,
    check_task_name,
    check_tenant,
    shown,
)
from jobq.core.crontab import check_expression, check_zone
from jobq.core.meta import check_meta
from jobq.core.queues import ScheduleSpec
from jobq.core.records import MAX_PRIORITY, AnyOutcome, Block, Defer, JobSpec, QueueName
from jobq.core.unknown import MAX_TEXT
from jobq.core.workers import MAX_CONCURRENCY, WorkerRecord
from jobq.errors import InvalidJob

_MAX_COUNT = 2**31 - 1
_MAX_WORD = 512
"""Characters of the name of a worker, a call, a reader or a lock: ids with a prefix."""
_MAX_CODEC = 64
"""Characters of the name of a codec."""
_MAX_HOST = 255
"""Characters of a host's name, as in DNS."""
_MAX_QUEUES = 10_000
"""Queues of one worker. Each heartbeat names all of them."""
MAX_TTL_MS = 86_400_000
"""Milliseconds that a heartbeat or a leadership may last: a day. A caller that dies keeps the name
or the leadership as long, so a longer time would keep it for ever."""
_MAX_EDGES = 100_000
"""Jobs that one job may wait for."""


@lru_cache(maxsize=10_000)
def check_queue(queue: QueueName) -> None:
    """InvalidJob unless the tenant and the queue have proper names."""
    check_tenant(queue.tenant)
    check_queue_name(queue.queue)


_task_name = lru_cache(maxsize=10_000)(check_task_name)


def check_spec(spec: JobSpec) -> None:
    """InvalidJob names what is wrong with a new job. Runs for every job that is submitted."""
    check_queue(spec.queue)
    check_id(spec.id)
    _task_name(spec.name)
    if not 0 <= spec.priority <= MAX_PRIORITY:
        _within(spec.priority, 0, MAX_PRIORITY, "priority")
    if spec.delay_ms:
        check_span(spec.delay_ms, "delay_ms")
    if spec.cost != 1:
        _within(spec.cost, 1, MAX_COST, "cost")
    if spec.at_ms is not None:
        _within(spec.at_ms, -MAX_EPOCH_MS, MAX_EPOCH_MS, "at_ms")
    if spec.ttl_ms is not None:
        check_span(spec.ttl_ms, "ttl_ms")
    if spec.result_ttl_ms is not None:
        check_span(spec.result_ttl_ms, "result_ttl_ms")
    if spec.timeout_ms is not None:
        check_span(spec.timeout_ms, "timeout_ms")
    if spec.max_stalls is not None:
        _within(spec.max_stalls, 0, _MAX_COUNT, "max_stalls")
    _check_texts(spec)
    if spec.after:
        _check_edges(spec)


def _check_texts(spec: JobSpec) -> None:
    if spec.key is not None:
        check_key(spec.key)
    if spec.meta is not None:
        check_meta(spec.meta)
    if spec.codec != "json" and len(spec.codec) > _MAX_CODEC:
        raise InvalidJob(f"codec={shown(spec.codec)} is too long: at most {_MAX_CODEC} characters")
    if spec.unique is not None:
        check_word(spec.unique.lock, "unique lock")
        if spec.unique.ttl_ms is not None:
            check_span(spec.unique.ttl_ms, "unique ttl_ms")
    if spec.schedule is not None:
        check_id(spec.schedule, "schedule")


def _check_edges(spec: JobSpec) -> None:
    if len(spec.after) > _MAX_EDGES:
        raise InvalidJob(f"after has {len(spec.after):,} jobs, more than {_MAX_EDGES:,}")
    for edge in spec.after:
        check_queue(edge.job.queue)
        check_id(edge.job.id)


def check_schedule(spec: ScheduleSpec, next_ms: int | None) -> None:
    """InvalidJob or ConfigError names what is wrong with a schedule. The server has to plan it."""
    check_id(spec.id, "schedule")
    if (spec.cron is None) == (spec.every_ms is None):
        raise InvalidJob(f"schedule {shown(spec.id)} needs either cron or every_ms")
    if spec.cron is not None:
        check_expression(spec.cron)
        check_zone(spec.tz)
    else:
        check_span(spec.every_ms or 0, "every_ms", least=1)
    times = {"start_ms": spec.start_ms, "end_ms": spec.end_ms, "next_ms": next_ms}
    for option, at_ms in times.items():
        if at_ms is not None:
            _within(at_ms, -MAX_EPOCH_MS, MAX_EPOCH_MS, option)
    if spec.limit is not None:
        _within(spec.limit, 1, _MAX_COUNT, "limit")


def check_outcome(outcome: AnyOutcome) -> None:
    """InvalidJob names what is wrong with the end of a run."""
    check_queue(outcome.queue)
    delay_ms = getattr(outcome, "delay_ms", None)
    if delay_ms is not None:
        check_span(delay_ms, "delay_ms")
    if isinstance(outcome, Defer) and len(outcome.text) > MAX_TEXT:
        raise InvalidJob(f"the text of a deferral has more than {MAX_TEXT} characters")
    if isinstance(outcome, Block):
        if outcome.timeout_ms is not None:
            check_span(outcome.timeout_ms, "timeout_ms")
        if outcome.signal is not None:
            check_signal(outcome.signal)


def check_worker(worker: WorkerRecord) -> None:
    """InvalidJob names what is wrong with what a worker says about itself."""
    if worker.host:
        check_short_name(worker.host, "host", _MAX_HOST)
    if worker.incarnation:
        check_word(worker.incarnation, "incarnation")
    if len(worker.queues) > _MAX_QUEUES:
        raise InvalidJob(f"queues has {len(worker.queues):,} names, more than {_MAX_QUEUES:,}")
    for option, value, most in (
        ("pid", worker.pid, _MAX_COUNT),
        ("concurrency", worker.concurrency, MAX_CONCURRENCY),
        ("active", worker.active, _MAX_COUNT),
        ("started_ms", worker.started_ms, MAX_EPOCH_MS),
        ("seen_ms", worker.seen_ms, MAX_EPOCH_MS),
    ):
        _within(value, 0, most, option)


def check_ttl(ms: int) -> None:
    """InvalidJob unless a heartbeat or a leadership may last this long."""
    _within(ms, 1, MAX_TTL_MS, "ttl_ms")


def check_span(ms: int, option: str, *, least: int = 0) -> None:
    """InvalidJob unless this is a time that a store can add to another."""
    _within(ms, least, MAX_MS, option)


def check_word(text: str, option: str) -> None:
    """InvalidJob unless this can be the name of a worker, a call, a reader or a lock."""
    check_short_name(text, option, _MAX_WORD)


def _within(value: int, least: int, most: int, option: str) -> None:
    if not least <= value <= most:
        raise InvalidJob(f"{option}={shown(value)} is not between {least:,} and {most:,}")
