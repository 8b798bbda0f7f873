"""What a store accepts as a new job: the same values, by every call that stores one.

The rule is `core.rules.new_jobs`. Here, every field gets wrong values, boundaries and subclasses,
and each call of the contract must do with them what the rule says: store plain values, or refuse
the job and store nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from jobq.core.records.commands import AnyCommand, Reprioritise, Reschedule, Update
from jobq.core.records.jobs import Failure, JobKey, JobRecord, JobSpec, QueueName
from jobq.core.records.queues import Fire, ScheduleSpec
from jobq.core.records.states import State
from jobq.core.rules.new_jobs import check_schedule
from jobq.core.values.checks import shown
from jobq.errors import ConfigError, InvalidJob, JobqError
from jobq.stores.base import pipeline_of
from jobq_conformance.kit import DAY, Desk
from jobq_conformance.roles import needs
from jobq_conformance.spec_values import (
    ANYTHING,
    FIELDS,
    SCHEDULES,
    UNREAD,
    Case,
    base,
    cases,
    field_names,
    fits,
    given,
    rule,
    seen,
    with_value,
)

pytestmark = needs("operators", "reads", "delays")


def test_every_field_of_a_new_job_has_values() -> None:
    for record, values in FIELDS.items():
        assert tuple(values) == field_names(record), record.__name__
    assert tuple(SCHEDULES) == field_names(ScheduleSpec)


async def by_put(q: Desk, spec: JobSpec) -> JobKey:
    await q.store.put([spec])
    return JobKey(spec.queue, spec.id)


async def by_prepared_put(q: Desk, spec: JobSpec) -> JobKey:
    pipeline = pipeline_of(q.store)
    await q.store.put([spec] if pipeline is None else pipeline.prepare([spec]))
    return JobKey(spec.queue, spec.id)


async def by_flow(q: Desk, spec: JobSpec) -> JobKey:
    await q.store.put([spec], flow=f"flow of {shown(spec.id)}")
    return JobKey(spec.queue, spec.id)


async def by_restore(q: Desk, spec: JobSpec) -> JobKey:
    await q.store.restore([failed(q, spec)])
    return JobKey(spec.queue, spec.id)


def failed(q: Desk, spec: JobSpec) -> JobRecord:
    """A failed job of another store with the values of the spec."""
    record = JobRecord(
        queue=spec.queue,
        id=spec.id,
        name=spec.name,
        state=State.FAILED,
        payload=spec.payload,
        failure=Failure(reason="error", type="E", message="", at_ms=q.clock()),
    )
    options = record.options
    of_record = {f: getattr(spec, f) for f in record.__struct_fields__ if hasattr(spec, f)}
    of_options = {f: getattr(spec, f) for f in options.__struct_fields__}
    return replace(record, **of_record, options=replace(options, **of_options))


async def by_schedule(q: Desk, spec: JobSpec) -> JobKey:
    id = f"schedule of {spec.id}"
    schedule = ScheduleSpec(queue=spec.queue, id=id, template=spec, every_ms=DAY)
    now = q.clock()
    try:
        await q.store.put_schedule(schedule, next_ms=now)
        at = Fire(queue=spec.queue, schedule=id, at_ms=now, next_ms=None)
        assert await q.store.fire([at]) == [True]
        return JobKey(spec.queue, at.job_id)
    finally:
        await q.store.drop_schedule(spec.queue, id)


CALLS: dict[str, tuple[Callable[[Desk, JobSpec], Awaitable[JobKey]], frozenset[str]]] = {
    "put": (by_put, frozenset()),
    "prepared": (by_prepared_put, frozenset()),
    "flow": (by_flow, frozenset()),
    # A record has no delay and no edges, and it was ended by then.
    "restore": (by_restore, frozenset({"delay_ms", "after", "reserved"})),
    # A schedule gives its jobs an id and a time, and they wait for nothing.
    "schedule": (
        by_schedule,
        frozenset({"id", "given_id", "delay_ms", "at_ms", "after", "schedule", "queue"}),
    ),
}
"""The calls that store a job, and the fields of a spec that each does not take over."""


@pytest.mark.parametrize("call", CALLS)
async def test_every_call_stores_plain_values_or_refuses_the_job(q: Desk, call: str) -> None:
    store_by, ignored = CALLS[call]
    await q.put("there")
    wrong: list[str] = []
    accepted = {q.key("there")}
    for n, case in enumerate(cases()):
        if case.field.split(".")[0] in ignored:
            continue
        # A queue has jobs with keys, or jobs without.
        queue = q.queue if case.field != "key" else QueueName(q.queue.tenant, "keyed")
        spec = with_value(base(queue, f"j{n}", case.field), case)
        expected = rule(spec)
        if isinstance(expected, JobSpec) and (
            not fits(expected) or (case.field == "key" and expected.key is None)
        ):
            continue
        try:
            key = await store_by(q, spec)
        except InvalidJob as error:
            if str(error) != expected:
                wrong.append(f"{case!r}: {error}, and not {expected}")
            continue
        except JobqError as error:
            wrong.append(f"{case!r}: {type(error).__name__}: {error}")
            continue
        if isinstance(expected, str):
            wrong.append(f"{case!r}: accepted, and not refused: {expected}")
            continue
        key = JobKey(expected.queue, expected.id if "id" not in ignored else key.id)
        accepted.add(key)
        (record,) = await q.store.get([key])
        if record is None:
            wrong.append(f"{case!r}: not stored")
        elif case.field not in UNREAD and seen(record, case.field) != given(expected, case.field):
            wrong.append(f"{case!r}: stored as {seen(record, case.field)!r}")
        if case.field == "unique.lock":  # the next job gets the same lock
            await q.store.release_lock(q.queue, given(expected, "unique.lock"))
    assert "\n".join(wrong) == ""
    for each in await q.store.queues(q.queue.tenant):  # nothing is left of a refused job
        known = sum(key.queue == each.queue for key in accepted)
        assert sum((await q.store.count(each.queue)).values()) == known


async def test_a_refused_job_takes_the_jobs_of_its_call_with_it(q: Desk) -> None:
    with pytest.raises(InvalidJob, match="priority=-1 is out of range"):
        await q.store.put([q.spec("a"), q.spec("b", priority=-1), q.spec("c")])
    assert await q.counts() == {}


async def test_a_refused_part_of_a_flow_discards_the_flow(q: Desk) -> None:
    await q.store.put([q.spec("a")], flow="f", last=False)
    with pytest.raises(InvalidJob, match="cost=0 is out of range"):
        await q.store.put([q.spec("b", cost=0)], flow="f")
    with pytest.raises(InvalidJob):
        await q.store.put([q.spec("c", after=(q.edge("a"),))], flow="f")
    assert await q.counts() == {}


COMMANDS: dict[str, Callable[[JobKey, Any], AnyCommand]] = {
    "priority": lambda job, value: Reprioritise(job=job, priority=value),
    "delay_ms": lambda job, value: Reschedule(job=job, delay_ms=value),
    "at_ms": lambda job, value: Reschedule(job=job, at_ms=value),
    "payload": lambda job, value: Update(job=job, payload=value),
    "codec": lambda job, value: Update(job=job, payload=b"[[],{}]", codec=value),
}
"""The commands that change a job, by the field that they change."""


@pytest.mark.parametrize("field", COMMANDS)
async def test_a_command_changes_a_job_as_put_would_have_stored_it(q: Desk, field: str) -> None:
    wrong: list[str] = []
    for n, case in enumerate(cases()):
        if case.field != field:
            continue
        spec = base(q.queue, f"j{n}", field)
        expected = rule(with_value(spec, case))
        await q.store.put([spec])
        before = await q.get(spec.id)
        try:
            await q.store.alter([COMMANDS[field](q.key(spec.id), case.value)])
        except InvalidJob as error:
            if str(error) != expected or await q.get(spec.id) != before:
                wrong.append(f"{case!r}: {error}, and not {expected}")
            continue
        if isinstance(expected, str):
            wrong.append(f"{case!r}: accepted, and not refused: {expected}")
        elif field in ("priority", "payload", "codec"):
            found = getattr(await q.get(spec.id), field)
            if found != getattr(expected, field):
                wrong.append(f"{case!r}: changed to {found!r}")
    assert "\n".join(wrong) == ""


async def test_a_schedule_is_checked_like_its_jobs(q: Desk) -> None:
    wrong: list[str] = []
    schedule = ScheduleSpec(queue=q.queue, id="s", template=q.spec("s"), every_ms=DAY)
    for field, values in SCHEDULES.items():
        for value in (*ANYTHING, *values):
            case = Case(field, value)
            changed = replace(schedule, **{field: value})
            if field == "cron":
                changed = replace(changed, every_ms=None)
            if field == "every_ms":  # a server allows any, if the schedule waits for its job
                changed = replace(changed, after_complete=True)
            expected: ScheduleSpec | str
            try:
                expected = check_schedule(changed, None)
            except JobqError as error:
                expected = str(error)
            try:
                found: ScheduleSpec | str = (await q.store.put_schedule(changed, next_ms=None)).spec
            except (InvalidJob, ConfigError) as error:
                found = str(error)
            if found != expected:
                wrong.append(f"{case!r}: {found}, and not {expected}")
    assert "\n".join(wrong) == ""
