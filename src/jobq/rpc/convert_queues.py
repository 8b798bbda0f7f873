"""Queues, limits, schedules and workers between protobuf messages and core records."""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import asdict

from jobq.core.policies import Cron, Every
from jobq.core.records.jobs import JobSpec, Mode, RetryData, UniqueSpec
from jobq.core.records.queues import (
    CatchUp,
    JobDefaults,
    Limits,
    MinuteRecord,
    QueueConfig,
    QueueRecord,
    RateData,
    RetentionData,
    ScheduleRecord,
    Tokens,
    Window,
)
from jobq.core.records.workers import WorkerRecord
from jobq.core.values import checks
from jobq.core.values.checks import MAX_COUNT, MAX_MS, check_choice, check_int
from jobq.core.values.meta import check_event_names
from jobq.core.values.units import moment
from jobq.errors import ConfigError, InvalidJob
from jobq.rpc.convert import text
from jobq.rpc.v1 import admin_pb2 as pb
from jobq.rpc.v1 import common_pb2 as common

MAX_PARTITIONS = 1024
"""As `Queue(partitions=…)` allows."""
_MIN_REFILL = 1e-6
"""Tokens per second, as `Bucket` allows: one in eleven days."""


# ── what clients send ─────────────────────────────────────────────────────────────────────────────


def queue_config(config: pb.QueueConfig, stored: QueueRecord | None) -> QueueConfig:
    """What a request declares about a queue, checked. Defaults that it omits stay as stored."""
    return QueueConfig(
        mode=cast(Mode, check_choice(config.mode, "mode", ("plain", "keyed")))
        if config.mode
        else None,
        limits=limits(config.limits) if config.HasField("limits") else None,
        limits_version=check_int(config.limits_version, "limits_version", high=MAX_COUNT) or 1,
        partitions=check_int(config.partitions, "partitions", high=MAX_PARTITIONS) or None,
        retention=_retention(config.retention) if config.HasField("retention") else None,
        dead_letters=checks.check_queue_name(config.dead_letters, "dead_letters")
        if config.dead_letters
        else None,
        event_meta=check_event_names(config.event_meta, error=InvalidJob)
        if config.event_meta
        else None,
        defaults=_defaults(config, JobDefaults() if stored is None else stored.defaults),
    )


def _defaults(config: pb.QueueConfig, stored: JobDefaults) -> JobDefaults | None:
    if not (config.HasField("max_retries") or config.HasField("ttl_ms")):
        return None
    return JobDefaults(
        max_retries=check_int(config.max_retries, "max_retries", high=MAX_COUNT)
        if config.HasField("max_retries")
        else stored.max_retries,
        ttl_ms=check_int(config.ttl_ms, "ttl_ms", low=1, high=MAX_MS)
        if config.HasField("ttl_ms")
        else stored.ttl_ms,
    )


def limits(given: common.Limits) -> Limits:
    """Limits, checked."""
    return Limits(
        limit=_number(given.limit, "limit") if given.HasField("limit") else None,
        rate=_rate(given.rate, "rate") if given.HasField("rate") else None,
        key_limit=_number(given.key_limit, "key_limit") if given.HasField("key_limit") else None,
        key_rate=_rate(given.key_rate, "key_rate") if given.HasField("key_rate") else None,
        max_waiting=_number(given.max_waiting, "max_waiting")
        if given.HasField("max_waiting")
        else None,
    )


def _number(value: int, option: str) -> int:
    return check_int(value, option, low=1, high=MAX_COUNT)


def _rate(rate: common.Rate, option: str) -> RateData:
    match rate.WhichOneof("kind"):
        case "window":
            return Window(
                limit=_number(rate.window.limit, f"{option}.window.limit"),
                per_ms=check_int(rate.window.per_ms, f"{option}.window.per_ms", low=1, high=MAX_MS),
            )
        case "bucket":
            return Tokens(
                capacity=_number(rate.bucket.capacity, f"{option}.bucket.capacity"),
                refill=checks.check_number(
                    rate.bucket.refill, f"{option}.bucket.refill", low=_MIN_REFILL
                ),
            )
    raise InvalidJob(f"{option} is empty: give a window or a bucket")


def _retention(retention: pb.Retention) -> RetentionData:
    default = RetentionData()

    def kept(given: bool, value: int, option: str, otherwise: int | None) -> int | None:
        return check_int(value, f"retention.{option}", high=MAX_MS) if given else otherwise

    has, of = retention.HasField, retention
    return RetentionData(
        completed_ms=kept(
            has("completed_ms"), of.completed_ms, "completed_ms", default.completed_ms
        ),
        failed_ms=kept(has("failed_ms"), of.failed_ms, "failed_ms", default.failed_ms),
        cancelled_ms=kept(
            has("cancelled_ms"), of.cancelled_ms, "cancelled_ms", default.cancelled_ms
        ),
        count=kept(has("count"), of.count, "count", default.count),
    )


def schedule_times(schedule: pb.Schedule) -> Cron | Every:
    """When a schedule makes jobs. InvalidJob says what is wrong."""
    if bool(schedule.cron) == bool(schedule.every_ms):
        raise InvalidJob("a schedule needs `cron` or `every_ms`, and not both")
    catch_up = cast(CatchUp, schedule.catch_up or "skip")
    start, end = (
        moment(check_int(ms, f"{option}_ms", high=checks.MAX_EPOCH_MS)) if given else None
        for given, ms, option in (
            (schedule.HasField("start_ms"), schedule.start_ms, "start"),
            (schedule.HasField("end_ms"), schedule.end_ms, "end"),
        )
    )
    times = schedule.limit if schedule.HasField("limit") else None
    try:
        if schedule.cron:
            return Cron(
                schedule.cron,
                tz=schedule.tz or "UTC",
                start=start,
                end=end,
                times=times,
                catch_up=catch_up,
            )
        return Every(
            check_int(schedule.every_ms, "every_ms", low=1, high=MAX_MS) / 1000,
            after_complete=schedule.after_complete,
            start=start,
            end=end,
            times=times,
            catch_up=catch_up,
        )
    except ConfigError as wrong:
        raise InvalidJob(str(wrong)) from None


# ── what clients receive ──────────────────────────────────────────────────────────────────────────


def queue(record: QueueRecord) -> pb.Queue:
    """A queue as it is stored."""
    return pb.Queue(
        tenant=record.queue.tenant,
        name=record.queue.queue,
        mode=record.mode or "",
        limits=_limits(record.limits.effective),
        limits_version=record.limits.version,
        limits_changed=record.limits.changed is not None,
        key_limits={key: _limits(each) for key, each in record.limits.keys.items()},
        partitions=record.partitions,
        retention=pb.Retention(
            completed_ms=record.retention.completed_ms,
            failed_ms=record.retention.failed_ms,
            cancelled_ms=record.retention.cancelled_ms,
            count=record.retention.count,
        ),
        dead_letters=record.dead_letters or "",
        event_meta=record.event_meta,
        paused=record.paused,
        max_retries=record.defaults.max_retries,
        ttl_ms=record.defaults.ttl_ms,
    )


def _limits(given: Limits) -> common.Limits:
    return common.Limits(
        limit=given.limit,
        rate=_rate_message(given.rate),
        key_limit=given.key_limit,
        key_rate=_rate_message(given.key_rate),
        max_waiting=given.max_waiting,
    )


def _rate_message(rate: RateData | None) -> common.Rate | None:
    if rate is None:
        return None
    if isinstance(rate, Window):
        return common.Rate(window=common.Window(limit=rate.limit, per_ms=rate.per_ms))
    return common.Rate(bucket=common.Bucket(capacity=rate.capacity, refill=rate.refill))


def minute(record: MinuteRecord) -> pb.Minute:
    """The figures of a minute."""
    return pb.Minute(
        minute_ms=record.minute_ms,
        accepted=record.accepted,
        started=record.started,
        completed=record.completed,
        failed=record.failed,
        cancelled=record.cancelled,
        retried=record.retried,
        stalled=record.stalled,
        wait_ms=record.wait_ms,
        run_ms=record.run_ms,
    )


def schedule(record: ScheduleRecord) -> pb.ScheduleInfo:
    """A schedule and what became of it."""
    spec = record.spec
    return pb.ScheduleInfo(
        schedule=pb.Schedule(
            queue=spec.queue.queue,
            id=spec.id,
            job=_template(spec.template),
            cron=spec.cron or "",
            tz=spec.tz,
            every_ms=spec.every_ms or 0,
            after_complete=spec.after_complete,
            start_ms=spec.start_ms,
            end_ms=spec.end_ms,
            limit=spec.limit,
            catch_up=spec.catch_up,
        ),
        next_ms=record.next_ms,
        fired=record.fired,
        last_ms=record.last_ms,
        paused=record.paused,
        created_ms=record.created_ms,
        tenant=spec.queue.tenant,
    )


def _template(spec: JobSpec) -> common.NewJob:
    """The job of a schedule, without what the schedule decides."""
    return common.NewJob(**_given({name: _part(getattr(spec, name)) for name in _TEMPLATE}))


_TEMPLATE = {field.name for field in common.NewJob.DESCRIPTOR.fields} - {
    "queue",
    "id",
    "delay_ms",
    "at_ms",
    "after",
    "on_child_failure",
}


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _part(value: Any) -> Any:
    """A value of a spec as a value of a message."""
    if isinstance(value, RetryData):
        return common.Retry(**_given(asdict(value)))
    if isinstance(value, UniqueSpec):
        return common.Unique(**_given(asdict(value)))
    return value


def worker(record: WorkerRecord) -> pb.Worker:
    """A worker as it described itself last."""
    return pb.Worker(
        name=text(record.name),
        host=text(record.host),
        pid=record.pid,
        queues=[name.queue for name in record.queues],
        concurrency=record.concurrency,
        active=record.active,
        paused=record.paused,
        draining=record.draining,
        started_ms=record.started_ms,
        seen_ms=record.seen_ms,
    )
