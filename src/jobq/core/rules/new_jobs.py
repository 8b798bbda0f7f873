"""The one door for new jobs: checks a JobSpec, wherever it comes from, and makes its values plain.

Every store calls `check_specs` in `put`, and the functions below in `put_schedule`, `alter` and
`restore`. So nothing is stored that another way in would refuse. Callers that collect jobs of
others, or send them on, call it before that: a job that is refused then fails its own caller only.

Values of subclasses (numpy.str_, a SafeString, an IntEnum) become plain ones: no store encodes
those. A bool is not a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, get_args

from msgspec.structs import astuple, replace

from jobq.core.records.commands import (
    AnyCommand,
    Reprioritise,
    Reschedule,
    SendSignal,
    Update,
)
from jobq.core.records.jobs import (
    CallOptions,
    JobRecord,
    JobSpec,
    QueueName,
)
from jobq.core.records.queues import CatchUp, ScheduleSpec
from jobq.core.rules.copies import check_failed, failed_spec
from jobq.core.rules.options import FIELDS, check_codec
from jobq.core.rules.options import check_queue as check_queue  # re-exported: a spec has it
from jobq.core.rules.waits import CHILD, MAX_LABEL
from jobq.core.values import checks
from jobq.core.values.checks import (
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_ID_LENGTH,
    MAX_MS,
    check_bool,
    check_bytes_like,
    check_choice,
    check_id,
    check_int,
)
from jobq.core.values.crontab import check_expression, check_zone
from jobq.errors import InvalidJob

MAX_SCHEDULE_ID = 200
"""Characters of a schedule's id. Its jobs have longer ids, `schedule@milliseconds`, of up to
256."""

_CATCH_UPS = get_args(CatchUp)


class Checked(list[JobSpec]):
    """Specs that `check_specs` has returned, or some of them: they are not checked again."""

    __slots__ = ()


def check_specs(specs: Sequence[JobSpec]) -> Checked:
    """The specs with plain values. InvalidJob names what is wrong with one of them."""
    if isinstance(specs, Checked):
        return specs
    global _last
    checked = Checked(specs)
    queue, name = _last
    like = _DEFAULTS
    for n, spec in enumerate(checked):
        # Most jobs have the queue and the name of the one before, and no options.
        if (
            spec.queue is queue
            and spec.name is name
            and type(id := spec.id) is str
            and id.isalnum()
            and len(id) <= MAX_ID_LENGTH
            and type(spec.payload) is bytes
            and has_no_options(spec)
        ):
            continue
        spec = checked[n] = check_spec(spec, like)
        queue, name = _last = spec.queue, spec.name
        like = astuple(spec)[4:]
    return checked


_last: tuple[QueueName | None, str | None] = (None, None)
"""The queue and the name of the last job that was checked one by one. They are plain, and so are
others that are the very same objects."""


def has_no_options(spec: JobSpec) -> bool:
    """Whether all fields but queue, id, name and payload have their defaults, of these very types.

    It may be False for values that equal them. Written out: a loop takes three times as long, and
    this runs for every job.
    """
    return (
        # begin scripts/options.py: is_plain
        spec.given_id is False
        and spec.priority is _ZERO
        and spec.lifo is False
        and spec.delay_ms is _ZERO
        and spec.at_ms is None
        and spec.ttl_ms is None
        and spec.result_ttl_ms is None
        and spec.retry is None
        and spec.timeout_ms is None
        and spec.max_stalls is None
        and spec.key is None
        and spec.cost is _ONE
        and spec.unique is None
        and spec.after is _NOTHING
        and spec.reserved is False
        and spec.schedule is None
        and spec.origin is None
        and spec.meta is None
        and type(spec.codec) is str
        and spec.codec == "json"
        and type(spec.on_child_failure) is str
        and spec.on_child_failure == "fail"
        # end scripts/options.py
    )


_ZERO, _ONE, _NOTHING = 0, 1, ()
_CHECKS = [(option.field, option.check) for option in FIELDS]
_DEFAULTS = tuple(option.default for option in FIELDS)
"""A value that is this very object needs no check."""


def check_spec(spec: JobSpec, like: tuple[object, ...] | None = None) -> JobSpec:
    """The spec with plain values: the same one, if it has no others.

    InvalidJob names what is wrong. Whether the jobs of `after` exist, and what its queue allows, is
    for the store to say. `like` has the options of a checked spec: the very same objects need no
    second check, unless they can change.
    """
    if not isinstance(spec, JobSpec):
        raise InvalidJob(f"{checks.shown(spec)} is not a new job")
    changed: dict[str, Any] = {}
    if (queue := check_queue(spec.queue)) is not spec.queue:
        changed["queue"] = queue
    id, name = spec.id, spec.name
    if not (type(id) is str and id.isalnum() and len(id) <= MAX_ID_LENGTH):
        changed["id"] = check_id(id)
    if not (type(name) is str and _name_is_known(name)):
        changed["name"] = checks.check_task_name(name)
    if type(spec.payload) is not bytes:
        changed["payload"] = check_bytes_like(spec.payload, "payload")
    if not has_no_options(spec):
        like = like or _DEFAULTS
        for n, value in enumerate(astuple(spec)[4:]):
            if value is not _DEFAULTS[n] and (value is not like[n] or type(value) is dict):
                field, check = _CHECKS[n]
                changed[field] = check(value)
        if spec.at_ms is not None and spec.delay_ms:
            raise InvalidJob(f"delay_ms={spec.delay_ms} and at_ms={spec.at_ms}: give one of them")
    if changed and any(getattr(spec, field) is not value for field, value in changed.items()):
        spec = replace(spec, **changed)
    if spec.after:
        _check_dependencies(spec)
    return spec


@lru_cache(maxsize=10_000)
def _name_is_known(name: str) -> bool:
    checks.check_task_name(name)
    return True


def _check_dependencies(spec: JobSpec) -> None:
    """InvalidJob if a job waits for itself or for a job of another tenant."""
    for edge in spec.after:
        if edge.job.queue.tenant != spec.queue.tenant:
            raise InvalidJob(
                f"job {spec.id!r} ({spec.name}) waits for a job of another tenant: {edge.job.id!r}"
            )
        if edge.job.id == spec.id and edge.job.queue == spec.queue:
            raise InvalidJob(f"job {spec.id!r} ({spec.name}) waits for itself")


# ── other ways to store a job ─────────────────────────────────────────────────────────────────────


def check_schedule(spec: ScheduleSpec, next_ms: int | None) -> ScheduleSpec:
    """The schedule with plain values. InvalidJob or ConfigError names what is wrong with it."""
    queue, template = check_queue(spec.queue), check_spec(spec.template)
    id = check_schedule_id(spec.id)
    if template.queue != queue:
        raise InvalidJob(
            f"schedule {id!r} of queue {queue.queue!r} makes jobs of queue "
            f"{template.queue.queue!r} of tenant {template.queue.tenant!r}: use the same queue"
        )
    if template.after:
        raise refuse_after(id)
    if (spec.cron is None) == (spec.every_ms is None):
        raise InvalidJob(f"schedule {id!r} needs either cron or every_ms")
    start_ms, end_ms = _time(spec.start_ms, "start_ms"), _time(spec.end_ms, "end_ms")
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise InvalidJob(f"end_ms={end_ms} is before start_ms={start_ms}")
    _time(next_ms, "next_ms")
    return ScheduleSpec(
        queue=queue,
        id=id,
        template=template,
        cron=None if spec.cron is None else check_expression(spec.cron),
        tz=check_zone(spec.tz),
        every_ms=_optional(spec.every_ms, "every_ms", 1, MAX_MS),
        after_complete=check_bool(spec.after_complete, "after_complete"),
        start_ms=start_ms,
        end_ms=end_ms,
        limit=_optional(spec.limit, "limit", 1, MAX_COUNT),
        catch_up=check_choice(spec.catch_up, "catch_up", _CATCH_UPS),  # type: ignore[arg-type]
    )


def check_schedule_id(id: object) -> str:
    """A schedule id: like a job id, but short enough for the ids of the schedule's jobs."""
    return checks.check_short_name(id, "schedule id", MAX_SCHEDULE_ID)


def refuse_after(id: str) -> InvalidJob:
    """The error for a schedule whose jobs would wait for others."""
    return InvalidJob(
        f"schedule {id!r}: after= names jobs that will have ended before the next time; "
        "add children in the handler instead"
    )


def _optional(value: object, option: str, low: int, high: int) -> int | None:
    return None if value is None else check_int(value, option, low=low, high=high)


def _time(value: object, option: str) -> int | None:
    return _optional(value, option, 0, MAX_EPOCH_MS)


def check_commands(commands: Sequence[AnyCommand]) -> Sequence[AnyCommand]:
    """The commands with plain values. InvalidJob names what is wrong with one of them."""
    return [check_command(each) for each in commands]


def check_command(command: AnyCommand) -> AnyCommand:
    """The command with plain values. InvalidJob names what is wrong with it."""
    _optional(command.life, "life", 0, checks.MAX_COUNT)
    match command:
        case Reprioritise():
            return replace(command, priority=checks.check_priority(command.priority))
        case Reschedule():
            delay_ms = check_int(command.delay_ms, "delay_ms", high=MAX_MS)
            return replace(command, delay_ms=delay_ms, at_ms=_time(command.at_ms, "at_ms"))
        case Update():
            payload = check_bytes_like(command.payload, "payload")
            return replace(command, payload=payload, codec=check_codec(command.codec))
        case SendSignal():
            # A running job notes its children as signals to itself.
            note = isinstance(command.name, str) and command.name.startswith(CHILD)
            name = (
                checks.check_short_name(command.name, "signal", len(CHILD) + MAX_LABEL)
                if note
                else checks.check_signal(command.name)
            )
            return replace(command, name=name, value=check_bytes_like(command.value, "value"))
        case _:
            return command


def check_restored(records: Sequence[JobRecord]) -> list[tuple[JobRecord, JobSpec]]:
    """The records with plain values, and the spec of each.

    InvalidJob if one is not failed, or names what is wrong with it.
    """
    check_failed(records)
    return [_restored(record) for record in records]


def _restored(record: JobRecord) -> tuple[JobRecord, JobSpec]:
    counts = {
        option: check_int(getattr(record, option), option, high=MAX_COUNT)
        for option in ("attempt", "failures", "stalls")
    }
    times = {
        option: _time(getattr(record, option), option)
        for option in ("created_ms", "due_ms", "started_ms", "finished_ms")
    }
    checks.check_steps(record.steps)
    spec = check_spec(failed_spec(record))
    options = replace(record.options, **_common(spec, record.options))
    return replace(record, **counts, **times, **_common(spec, record), options=options), spec


def _common(spec: JobSpec, other: JobRecord | CallOptions) -> dict[str, Any]:
    """The values of a spec for the fields that the other record has too."""
    known = other.__struct_fields__
    return {name: getattr(spec, name) for name in spec.__struct_fields__ if name in known}
