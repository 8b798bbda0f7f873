"""Errors, traces and cron monitors in Sentry. Needs `jobq[sentry]`.

    sentry_sdk.init(…)
    reporting = jobq.sentry.Sentry()
    mail = Queue("mail", middleware=[reporting.run], enqueue_middleware=[reporting.enqueue])

An error is reported when its job has failed for good, once: a run that will be retried reports
nothing, and what jobq logs about the failure is not reported again. Each run has a scope of its own
with the job's queue, task, id and attempt as tags.

A schedule is a cron monitor in Sentry, which tells you when a job of it fails, takes too long, or
is missing. Sentry's shortest interval is a minute: schedules with seconds have no monitor.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from uuid import NAMESPACE_URL, uuid5

try:
    import sentry_sdk
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "jobq.sentry needs the package sentry_sdk: pip install 'jobq[sentry]'", name=error.name
    ) from None

from sentry_sdk.consts import OP
from sentry_sdk.crons import MonitorStatus, capture_checkin
from sentry_sdk.scope import add_global_event_processor

from jobq.api.current import CurrentJob
from jobq.api.enqueueing import EnqueueNext, EnqueueRequest
from jobq.api.job import Job
from jobq.api.middleware import CallNext, Ended, OncePerRun, endings_of
from jobq.core.control import RetryAfter
from jobq.core.records.jobs import Failure
from jobq.core.records.queues import ScheduleSpec
from jobq.core.values.checks import check_choice
from jobq.core.values.meta import check_meta
from jobq.engine.handler import FailedApart
from jobq.errors import ConfigError, InvalidJob, JobqError

if TYPE_CHECKING:
    from sentry_sdk._types import Event, Hint, MonitorConfig

__all__ = ["Sentry"]

Report = Literal["final", "every"]

_ORIGIN = "auto.queue.jobq"
_LOGGER = "jobq.job"
"""Where jobq logs failures. In a run that this module watches, they are not reported again."""
_TRACE, _BAGGAGE = "sentry-trace", "sentry-baggage"
"""Names in meta. Sentry's header for the second is `baggage`, which OpenTelemetry uses as well."""
_SCHEDULED = re.compile(r"(.+)@\d{12,}")
"""The id of a schedule's job: `schedule@milliseconds`."""
_MAX_SCHEDULES = 1000
"""Schedules of a queue that are looked up for their monitors."""
_LOOKED_UP_S = 60.0
"""Seconds that the schedules of a queue are remembered. They may change at run time."""
_MAX_SLUG = 50
"""Characters of a monitor's name in Sentry."""

_FAILURES = ("failed", "retried")

_watched = OncePerRun("jobq_sentry_watched")


class Sentry:
    """`run` is a middleware, `enqueue` an enqueue middleware.

    `report`: "final" reports failures for good only; "every" also those that are retried.
    `monitors`: whether schedules are cron monitors. `ignore`: exceptions that are not reported.
    """

    def __init__(
        self,
        *,
        report: Report = "final",
        monitors: bool = True,
        ignore: tuple[type[BaseException], ...] = (),
    ) -> None:
        check_choice(report, "report", ("final", "every"), error=ConfigError)
        self._reported = ("failed",) if report == "final" else ("failed", "retried")
        self._monitors = monitors
        self._ignore = ignore
        self._schedules: dict[tuple[str, str], tuple[float, Mapping[str, ScheduleSpec]]] = {}

    async def run(self, job: CurrentJob, call_next: CallNext) -> object:
        """Run a job in a scope and a transaction of its own, and report its failure."""
        if not _watched.enter(job):  # the worker and the queue both have this middleware
            return await call_next(job)
        schedule = await self._schedule_of(job)
        result: object = None
        error: BaseException | None = None
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            _describe(scope, job)
            if schedule is not None:
                _check_in(job, schedule, MonitorStatus.IN_PROGRESS)
            start = time.perf_counter()
            with _transaction(job) as transaction:
                try:
                    result = await call_next(job)
                except BaseException as raised:  # raised again below
                    error = raised
                ended = endings_of(job, result=result, error=error)
                failed = any(each.ending.outcome in _FAILURES for each in ended)
                transaction.set_status("internal_error" if failed else "ok")
                for each in ended:
                    self._report(each)
            if schedule is not None:
                _check_out(job, schedule, ended, time.perf_counter() - start)
        if error is not None:
            raise error
        if not failed:  # if the result cannot be stored, the log is what tells
            _watched.leave()
        return result

    async def enqueue(self, request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
        """Enqueue a job that continues the current trace, and leave a breadcrumb.

        A schedule does not: its jobs do not belong to the trace that stored it."""
        if request.via == "schedule":
            return await call_next(request)
        with sentry_sdk.start_span(op=OP.QUEUE_PUBLISH, name=request.name, origin=_ORIGIN) as span:
            _carry(request)
            job = await call_next(request)
            span.set_data("messaging.system", "jobq")
            span.set_data("messaging.destination.name", request.queue)
            span.set_data("messaging.message.id", job.id)
        sentry_sdk.add_breadcrumb(
            category="jobq",
            message=f"enqueued {request.name}",
            data={"queue": request.queue, "job": job.id},
        )
        return job

    def _report(self, ended: Ended) -> None:
        job, ending, error = ended
        failure = ending.failure
        if ending.outcome not in self._reported or failure is None:
            return
        if isinstance(error, self._ignore):
            return
        if getattr(job._run, "concluded", False):  # it went on after its timeout: the log has told
            return
        with sentry_sdk.new_scope() as scope:
            _tag(scope, job)
            scope.set_tag("jobq.outcome", ending.outcome)
            if isinstance(error, RetryAfter) and error.__cause__ is not None:
                error = error.__cause__  # what made the handler ask for a retry
            if isinstance(error, Exception) and not isinstance(error, FailedApart):
                scope.capture_exception(error)
            else:  # it timed out, or the error is in another process
                scope.capture_event(_event(failure))

    async def _schedule_of(self, job: CurrentJob) -> ScheduleSpec | None:
        """The schedule that made the job, if Sentry can monitor it."""
        match = _SCHEDULED.fullmatch(job.id) if self._monitors and not job.batch else None
        if match is None:
            return None
        run, now = job._run, time.monotonic()
        until, known = self._schedules.get((job.tenant, job.queue), (0.0, {}))
        if now >= until:
            try:
                records = await run.store.list_schedules(run.lease.queue, limit=_MAX_SCHEDULES)
            except JobqError:  # a run without a check-in is better than a run that fails
                return None
            known = {each.spec.id: each.spec for each in records if _times(each.spec) is not None}
            self._schedules[job.tenant, job.queue] = now + _LOOKED_UP_S, known
        return known.get(match[1])


# ── scopes, traces and events ─────────────────────────────────────────────────────────────────────


@add_global_event_processor
def _without_logged_failures(event: Event, hint: Hint) -> Event | None:
    """Drop what jobq logs about the failure of a run that is watched: it is reported already.

    jobq logs it at the end of the run's task, in the same context."""
    record = hint.get("log_record")
    ours = record is not None and record.name == _LOGGER
    return None if ours and _watched.is_in(getattr(record, "job_id", None)) else event


def _describe(scope: sentry_sdk.Scope, job: CurrentJob) -> None:
    scope.set_transaction_name(job.name, source="task")
    scope.set_tags({"jobq.task": job.name, "jobq.queue": job.queue, "jobq.tenant": job.tenant})
    if job.batch:
        scope.set_context("job", {"batch": [each.id for each in job.batch]})
        return
    _tag(scope, job)
    scope.set_context(
        "job",
        {
            "id": job.id,
            "task": job.name,
            "queue": job.queue,
            "attempt": job.attempt,
            "failures": job.failures,
            "max_retries": job.max_retries,
            "created_at": job.created_at.isoformat(),
        },
    )
    scope.add_breadcrumb(category="jobq", message=f"attempt {job.attempt} of {job.name} started")


def _tag(scope: sentry_sdk.Scope, job: CurrentJob) -> None:
    scope.set_tags({"jobq.job_id": job.id, "jobq.attempt": str(job.attempt)})


def _transaction(job: CurrentJob) -> Any:
    headers = {"sentry-trace": job.meta.get(_TRACE), "baggage": job.meta.get(_BAGGAGE)}
    transaction = sentry_sdk.continue_trace(
        {} if job.batch else {name: text for name, text in headers.items() if text},
        op=OP.QUEUE_PROCESS,
        name=job.name,
        source="task",
        origin=_ORIGIN,
    )
    started = sentry_sdk.start_transaction(transaction)
    started.set_data("messaging.system", "jobq")
    started.set_data("messaging.destination.name", job.queue)
    if not job.batch:
        started.set_data("messaging.message.id", job.id)
        started.set_data("messaging.message.retry.count", job.attempt - 1)
    return started


def _carry(request: EnqueueRequest) -> None:
    """Store the current trace in the job's meta, if there is room."""
    found = {_TRACE: sentry_sdk.get_traceparent(), _BAGGAGE: sentry_sdk.get_baggage()}
    headers = {name: text for name, text in found.items() if text}
    try:
        if check_meta({**request.meta, **headers}):
            request.meta.update(headers)
    except InvalidJob:  # the meta is full: the job is worth more than its trace
        pass


def _event(failure: Failure) -> Event:
    """An event for a failure without an exception in this process."""
    return {
        "level": "error",
        "exception": {
            "values": [
                {
                    "type": failure.type,
                    "value": failure.message,
                    "mechanism": {"type": "jobq", "handled": False},
                }
            ]
        },
        "extra": {"traceback": failure.traceback, "reason": failure.reason},
    }


# ── cron monitors ─────────────────────────────────────────────────────────────────────────────────


def _check_in(job: CurrentJob, schedule: ScheduleSpec, status: str, **more: Any) -> None:
    """All attempts of a job are one check-in, so its id is made from the job's."""
    place = f"jobq:{job.tenant}/{job.queue}/{job.id}"
    capture_checkin(
        monitor_slug=_slug(schedule),
        check_in_id=uuid5(NAMESPACE_URL, place).hex,
        status=status,
        monitor_config=_config(schedule),
        **more,
    )


def _check_out(
    job: CurrentJob, schedule: ScheduleSpec, ended: Sequence[Ended], seconds: float
) -> None:
    """End the check-in, unless the job runs again."""
    outcome = ended[0].ending.outcome
    if outcome in ("completed", "failed"):
        status = MonitorStatus.OK if outcome == "completed" else MonitorStatus.ERROR
        _check_in(job, schedule, status, duration=seconds)


def _slug(schedule: ScheduleSpec) -> str:
    """The name of the monitor: Sentry allows small letters, digits, `-` and `_`.

    A name that is too long, or has no such character, ends with a hash: two schedules are two
    monitors."""
    name = f"{schedule.queue.queue}-{schedule.id}"
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    if 0 < len(plain) <= _MAX_SLUG and name.isascii():
        return plain
    digest = uuid5(NAMESPACE_URL, name).hex[:8]
    return f"{plain[: _MAX_SLUG - 9]}-{digest}".strip("-")


def _config(schedule: ScheduleSpec) -> MonitorConfig:
    times = _times(schedule)
    assert times is not None
    return {"schedule": times, "timezone": schedule.tz}  # type: ignore[typeddict-item]


def _times(schedule: ScheduleSpec) -> Mapping[str, str | int] | None:
    """When the schedule fires, in Sentry's words. None if Sentry has no words for it."""
    if schedule.cron is not None:
        five = len(schedule.cron.split()) == 5
        return {"type": "crontab", "value": schedule.cron} if five else None
    minutes, rest = divmod(schedule.every_ms or 1, 60_000)
    return None if rest else {"type": "interval", "value": minutes, "unit": "minute"}
