"""What is declared, stored and counted about queues. Part of the Store contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from jobq.core.records import defaults
from jobq.core.records.jobs import JobSpec, Mode, QueueName
from jobq.core.records.states import State

CatchUp = Literal["skip", "one", "all"]


class Window(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="window", gc=False):
    """At most `limit` starts per window of `per_ms`.

    The window is fixed, and its first start opens it.
    """

    limit: int
    per_ms: int


class Tokens(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="tokens", gc=False):
    """A token bucket. The start of a job takes its cost; `refill` tokens come back per second."""

    capacity: int
    refill: float


RateData = Window | Tokens


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits on starts and on new jobs. None means no such limit."""

    limit: int | None = None  # active jobs of the queue
    rate: RateData | None = None  # starts of the queue
    key_limit: int | None = None  # active jobs per key (keyed queues; unset there: 1)
    key_rate: RateData | None = None  # starts per key
    max_waiting: int | None = None  # jobs that have not started; see core/rules/limits.py


def limits_reason(
    limits: Limits | None, *, key: str | None = None, version: int | None = None
) -> str:
    """The reason in a `limits` event: the limits as JSON, or `reset`.

    It begins with the key, or with the version that was declared.
    """
    text = "reset" if limits is None else _json(limits).decode()
    if version is not None:
        return f"version {version}: {text}"
    return text if key is None else f"key {key}: {text}"


_json = msgspec.json.Encoder(order="deterministic").encode


class LimitsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The limits in force, and where they come from."""

    declared: Limits = Limits()
    version: int = 0
    changed: Limits | None = None  # set at run time; in force until a higher version is declared
    keys: dict[str, Limits] = {}  # overrides per key (key_limit and key_rate)

    @property
    def effective(self) -> Limits:
        """The limits in force for the queue."""
        return self.declared if self.changed is None else self.changed


class RetentionData(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """How long ended jobs are kept.

    By age (None: forever) and by count per state (None: any number).
    """

    completed_ms: int | None = defaults.COMPLETED_MS
    failed_ms: int | None = defaults.FAILED_MS
    cancelled_ms: int | None = defaults.CANCELLED_MS
    count: int | None = defaults.KEPT_JOBS


class JobDefaults(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Options of the jobs of a queue that neither their call nor their task gives.

    `ttl_ms` applies to jobs that are put from now on. `max_retries` also applies to jobs that are
    already queued: a claim takes it along.
    """

    max_retries: int | None = None  # None: Retry's own default
    ttl_ms: int | None = None  # None: jobs do not expire


NO_DEFAULTS = JobDefaults()


def with_defaults(specs: Sequence[JobSpec], defaults: JobDefaults) -> Sequence[JobSpec]:
    """The specs with the defaults of their queue. Copied by lua/put.lua (J.with_defaults).

    A dead letter gets no ttl: it is a copy that somebody has to look at.
    """
    if defaults.ttl_ms is None:
        return specs
    return [
        msgspec.structs.replace(spec, ttl_ms=defaults.ttl_ms)
        if spec.ttl_ms is None and spec.origin is None
        else spec
        for spec in specs
    ]


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What code declares about a queue. None means not declared: the stored value stays."""

    mode: Mode | None = None
    limits: Limits | None = None
    limits_version: int = 1
    partitions: int | None = None
    retention: RetentionData | None = None
    dead_letters: str | None = None  # failed jobs are copied to this queue of the tenant
    max_stalls: dict[str, int] = {}  # by task name; merged into what is stored
    event_meta: tuple[str, ...] | None = None  # names of meta that events show; (): none
    defaults: JobDefaults | None = None


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored about a queue."""

    queue: QueueName
    mode: Mode | None = None
    limits: LimitsRecord = LimitsRecord()
    partitions: int = 1
    retention: RetentionData = RetentionData()
    dead_letters: str | None = None
    max_stalls: dict[str, int] = {}  # by task name, where it is not the default
    event_meta: tuple[str, ...] = ()
    paused: bool = False
    defaults: JobDefaults = NO_DEFAULTS


def differences(record: QueueRecord, config: QueueConfig) -> dict[str, tuple[object, object]]:
    """The settings that `config` would change: the stored and the declared value, by name.

    The mode, the retention and the defaults of jobs are compared. A store compares the limits and
    the partitions itself, when they are declared.
    """
    found: dict[str, tuple[object, object]] = {}
    if config.mode not in (None, record.mode):
        found["mode"] = (record.mode, config.mode)
    pairs = ((record.defaults, config.defaults), (record.retention, config.retention))
    for stored, declared in pairs:
        if declared is not None:
            before, after = msgspec.structs.asdict(stored), msgspec.structs.asdict(declared)
            found |= {
                name: (before[name], after[name]) for name in after if before[name] != after[name]
            }
    return found


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: when to make jobs, and which. `cron` or `every_ms`, never both."""

    queue: QueueName
    id: str
    template: JobSpec  # its id, delay and at are ignored: the job's id is id@time
    cron: str | None = None
    tz: str = "UTC"
    every_ms: int | None = None
    after_complete: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int | None = None
    catch_up: CatchUp = "skip"


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as stored. `next_ms` None: it waits for its job to end, or it is over."""

    spec: ScheduleSpec
    next_ms: int | None
    fired: int = 0
    last_ms: int | None = None
    paused: bool = False
    created_ms: int = 0


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """Make the job of a schedule for `at_ms`, if that is still its next time.

    The schedule then moves on to `next_ms`. With `skipped` it makes no job. If the time is `missed`
    as well, the log has the event `missed`.
    """

    queue: QueueName
    schedule: str
    at_ms: int
    next_ms: int | None
    skipped: bool = False  # catch_up decided: move on without a job
    missed: bool = False  # it is too late to count as on time

    @property
    def job_id(self) -> str:
        """The id of the job of this time, and the reason in its `missed` event."""
        return f"{self.schedule}@{self.at_ms}"


class StatsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A queue at a glance."""

    queue: QueueName
    counts: dict[State, int]
    paused: bool = False
    mode: Mode | None = None
    oldest_waiting_ms: int | None = None  # how long the next job has been waiting
    next_due_ms: int | None = None  # from now until the next delayed job is due
    workers: int = 0
    held_until_ms: int | None = None  # the end of a hold of the queue


class HoldsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The holds in force, and when they end."""

    until_ms: int | None = None  # the queue
    keys: dict[str, int] = {}  # of single keys: those that end first


class MinuteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one minute of one queue. All figures are sums, so minutes can be added."""

    minute_ms: int  # when the minute began
    accepted: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    stalled: int = 0
    wait_ms: int = 0  # sum over started jobs, from due to start
    run_ms: int = 0  # sum over ended runs, from start to end
