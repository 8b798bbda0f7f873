"""One job: its values, its attempts, its log lines and what happened to it."""

from __future__ import annotations

from typing import Any, Literal

from jobq.core.records.commands import APPLIES
from jobq.core.records.jobs import JobKey, JobRecord, QueueName
from jobq.core.records.states import never_started
from jobq.core.rules.options import APPLIED, Option
from jobq.core.rules.waits import readable
from jobq.errors import AccessDenied, InvalidJob, JobNotFound
from jobq.web.data.jobs import JobRow, job_row
from jobq.web.data.log import LogEntry, events_of
from jobq.web.data.shown import (
    MAX_DOWNLOAD,
    Problem,
    Shown,
    percent,
    problem,
    shown,
    shown_call,
    shown_or_none,
)
from jobq.web.data.view import Shape, View

MAX_LINES = 200
_LINE = 2_000
"""Characters of one log line on a page."""
_REFS = 100
_STEPS = 100
_STEP_TEXT = 1_000
"""Characters of the result of one step."""

Part = Literal["arguments", "result", "progress", "saved"]
"""A value of a job that can be downloaded whole."""


class Ref(Shape, frozen=True, kw_only=True):
    """The name of another job."""

    tenant: str
    queue: str
    id: str


class StepShown(Shape, frozen=True, kw_only=True):
    """A step that the job has recorded."""

    name: str
    result: Shown
    attempt: int
    at_ms: int


class JobShown(Shape, frozen=True, kw_only=True):
    """The page of a job."""

    row: JobRow
    now_ms: int
    arguments: Shown
    result: Shown | None
    progress: Shown | None
    percent: float | None
    """The progress from 0 to 100, if it is a number from 0 to 1, from 1 to 100, or has `percent`,
    or `done` and `total`."""
    saved: Shown | None
    problem: Problem | None
    """Why the job failed, or its last failed run, with its traceback."""
    attempts: tuple[Problem, ...]
    """The last ten failed runs, newest first."""
    steps: tuple[StepShown, ...]
    lines: tuple[str, ...]
    """The newest 200 log lines, oldest first, each cut at 2,000 characters."""
    lines_before: int
    """Log lines that are stored and not shown."""
    timeline: tuple[LogEntry, ...]
    """What happened to the job, oldest first, as far as its record and the log tell."""
    stalls: int
    reason: str | None
    """Why the job was cancelled."""
    hidden: bool
    """Whether the dashboard hides payloads, so that values and log lines are left out."""
    meta: dict[str, str]
    """Hidden with the payloads."""
    options: dict[str, str]
    """Options of the call that are not the default, in words."""
    parents: tuple[Ref, ...]
    """Jobs that wait for this one. At most 100."""
    children: tuple[Ref, ...]
    """Jobs that this one waits for. At most 100."""
    more_parents: int
    more_children: int
    applies: tuple[str, ...]
    """Commands that apply to the job in its state: cancel, rerun, revive, promote, reprioritise,
    reschedule, update, remove, signal."""


class JobLive(Shape, frozen=True, kw_only=True):
    """What a live stream sends about a job whenever it changes."""

    state: str
    attempt: int
    worker: str | None
    cancel_asked: bool
    started_ms: int | None
    finished_ms: int | None
    progress: Shown | None
    percent: float | None
    lines: tuple[str, ...]
    """Log lines since the last message."""
    ended: bool


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


async def job(view: View, tenant: str, queue: str, id: str) -> JobShown:
    """The page of one job. JobNotFound if there is no such job."""
    record = await record_of(view, tenant, queue, id)
    lines = [] if view.hide_payloads else await view.store.logs(JobKey(record.queue, record.id))
    return JobShown(
        row=job_row(view, record),
        now_ms=view.now_ms(),
        arguments=shown_call(view, record.payload, record.codec, record.name),
        result=shown_or_none(view, record.result, record.codec),
        progress=shown_or_none(view, record.progress, record.codec),
        percent=None if view.hide_payloads else percent(record.progress, record.codec),
        saved=shown_or_none(view, record.saved, record.codec),
        problem=problem(view, record.failure),
        attempts=tuple(
            each for each in (problem(view, error) for error in reversed(record.errors)) if each
        ),
        steps=_steps(view, record),
        lines=shown_lines(lines[-MAX_LINES:]),
        lines_before=max(0, len(lines) - MAX_LINES),
        timeline=tuple(await events_of(view, record)),
        stalls=record.stalls,
        reason=record.reason,
        hidden=view.hide_payloads,
        meta={} if view.hide_payloads else record.meta or {},
        options=_options(record),
        parents=_refs(record.parents),
        children=_refs(record.children),
        more_parents=max(0, len(record.parents) - _REFS),
        more_children=max(0, len(record.children) - _REFS),
        applies=applies(record),
    )


async def record_of(view: View, tenant: str, queue: str, id: str) -> JobRecord:
    """A job's record. JobNotFound if there is no such job."""
    (record,) = await view.store.get([JobKey(QueueName(tenant, queue), id)])
    if record is None:
        raise JobNotFound(
            f"there is no job {id!r} in queue {queue!r}: the id is wrong, or retention has removed "
            "the job"
        )
    return record


def applies(record: JobRecord) -> tuple[str, ...]:
    """The commands that apply to a job in its state."""
    return tuple(
        name
        for name, rule in APPLIES.items()
        if record.state in rule.states and (not rule.unstarted or never_started(record.attempt))
    )


def shown_lines(lines: list[str]) -> tuple[str, ...]:
    """Log lines, each cut."""
    return tuple(line if len(line) <= _LINE else f"{line[:_LINE]}…" for line in lines)


def _steps(view: View, record: JobRecord) -> tuple[StepShown, ...]:
    return tuple(
        StepShown(
            name=name,
            result=shown(view, step.result or b"", record.codec, limit=_STEP_TEXT),
            attempt=step.attempt,
            at_ms=step.at_ms,
        )
        for name, step in readable(record.steps)[:_STEPS]
    )


def _refs(keys: tuple[JobKey, ...]) -> tuple[Ref, ...]:
    return tuple(
        Ref(tenant=key.queue.tenant, queue=key.queue.queue, id=key.id) for key in keys[:_REFS]
    )


def _options(record: JobRecord) -> dict[str, str]:
    return {
        "max_retries" if option.kind == "retry" else option.name: _in_words(option, value)
        for option in APPLIED
        if option.label and (value := option.of(record)) != option.default
    }


def _in_words(option: Option, value: Any) -> str:
    match option.kind:
        case "span":
            return f"{value / 1000:g} s"
        case "flag":
            return "yes"
        case "retry":
            return str(value.max_retries)
        case "unique":
            return f"{value.mode} {value.lock}"
        case _:
            return str(value)


async def download(view: View, tenant: str, queue: str, id: str, part: Part) -> bytes:
    """A whole value as it is stored.

    AccessDenied if payloads are hidden. JobNotFound if there is no such value. InvalidJob if it is
    too large.
    """
    if view.hide_payloads:
        raise AccessDenied("this dashboard hides payloads")
    record = await record_of(view, tenant, queue, id)
    values = {
        "arguments": record.payload,
        "result": record.result,
        "progress": record.progress,
        "saved": record.saved,
    }
    value = values.get(part)
    if value is None:
        raise JobNotFound(f"job {id!r} has no {part}")
    if len(value) > MAX_DOWNLOAD:
        raise InvalidJob(
            f"the {part} of job {id!r} has {len(value):,} bytes, and {MAX_DOWNLOAD:,} can be "
            "downloaded here: use jq-ctl job status -o json"
        )
    return value
