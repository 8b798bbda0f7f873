"""Leases and how runs ended, between messages of WorkerService and core records.

What comes from the network is checked by `core.values.checks`, so a message can contain anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from jobq.core.control import RateLimited, Reject, RetryAfter
from jobq.core.records.failures import ReportedError
from jobq.core.records.jobs import (
    Input,
    JobRecord,
    Lease,
    LeaseRef,
    LeaseState,
    Note,
    QueueName,
    Reason,
    SnoozeFor,
)
from jobq.core.rules.decide import End, Raised, Returned, Unknown
from jobq.core.values import checks
from jobq.errors import InvalidJob, UnfitArguments
from jobq.rpc import convert
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import workers_pb2 as pb

MAX_LEASES = 1_000
"""Jobs that one message may name."""
MAX_BYTES = 2 * 2**20
"""Bytes of jobs in one message. Clients of gRPC refuse messages of more than 4 MiB by default."""
MAX_LINES = 1_000
"""Log lines of one note: a job keeps no more."""
_MAX_TOKEN = 1_024
"""Characters of a token. It contains the names of a worker and of a call."""

_REASONS: dict[str, Reason] = {
    "": "error",
    "error": "error",
    "timeout": "timeout",
    "crashed": "crashed",
}


# ── what workers send ─────────────────────────────────────────────────────────────────────────────


def lease_ref(ref: pb.LeaseRef, tenant: str) -> LeaseRef:
    """The lease that a message names."""
    queue = checks.check_queue_name(ref.queue, "lease.queue")
    token = checks.check_short_name(ref.token, "lease.token", _MAX_TOKEN)
    return LeaseRef(QueueName(tenant, queue), checks.check_id(ref.id, "lease.id"), token)


def lease_refs(refs: Sequence[pb.LeaseRef], tenant: str, field: str) -> list[LeaseRef]:
    """The leases that a message names. InvalidJob if there are too many."""
    bounded(refs, field)
    return [lease_ref(ref, tenant) for ref in refs]


def bounded(items: Sequence[object], field: str) -> None:
    """InvalidJob if a list of a message is too long."""
    if len(items) > MAX_LEASES:
        raise InvalidJob(
            f"{field} has {len(items)} entries: send at most {MAX_LEASES} in one message"
        )


def needs_record(result: pb.Result) -> bool:
    """Whether the outcome depends on what is stored about the job."""
    return result.WhichOneof("end") in ("failed", "unknown", "unfit")


def lease_of(ref: LeaseRef, result: pb.Result, record: JobRecord | None) -> Lease:
    """The lease as `core.rules.decide` needs it. `record` is the job, if `needs_record`."""
    retry = None if record is None else record.options.retry
    if retry is None and result.WhichOneof("end") == "failed" and result.failed.HasField("retry"):
        retry = convert.retry_data(result.failed.retry)
    deferred = None if record is None else record.deferred
    given = result.unknown.unknown_ms if result.unknown.HasField("unknown_ms") else None
    return Lease(
        queue=ref.queue,
        id=ref.id,
        token=ref.token,
        life=0 if record is None else record.life,
        name="" if record is None else record.name,
        payload=b"",
        codec="json" if record is None else record.codec,
        attempt=0 if record is None else record.attempt,
        failures=0 if record is None else record.failures,
        stalls=0,
        created_ms=0,
        started_ms=0,
        expires_ms=0,
        retry=retry,
        unknown_ms=given,
        unfit_ms=None if deferred is None else deferred.unfit_ms or None,
    )


def end_of(result: pb.Result) -> End | SnoozeFor:
    """How a run ended. InvalidJob if the message does not say so."""
    match result.WhichOneof("end"):
        case "completed":
            done = result.completed
            return Returned(done.result if done.HasField("result") else None)
        case "failed":
            return Raised(_error(result.failed))
        case "rate_limited":
            return Raised(RateLimited(_span(result.rate_limited.delay_ms, "rate_limited") / 1000))
        case "snoozed":
            snoozed = result.snoozed
            return SnoozeFor(
                queue=QueueName("", ""),
                id="",
                token="",
                delay_ms=_span(snoozed.delay_ms, "snoozed"),
                saved=snoozed.saved if snoozed.HasField("saved") else None,
                # A number without a value: what was saved before is kept.
                saved_number=snoozed.saved_number if snoozed.HasField("saved") else 1,
            )
        case "unknown":
            return Unknown("")
        case "unfit":
            return Raised(UnfitArguments(result.unfit.message or "the arguments do not fit"))
    raise InvalidJob(
        f"the result of job {result.lease.id!r} does not say how the run ended: set completed, "
        "failed, snoozed, rate_limited, unknown or unfit"
    )


def _error(failed: pb.Failed) -> BaseException:
    reason = _REASONS.get(failed.reason)
    if reason is None:
        raise InvalidJob(
            f"failed.reason={checks.shown(failed.reason)} is not known: use error, timeout or "
            "crashed"
        )
    error = ReportedError(failed.type, failed.message, failed.traceback or None, reason=reason)
    other: Exception
    if failed.rejected:
        other = Reject(failed.message or "rejected")
    elif failed.HasField("retry_in_ms"):
        other = RetryAfter(_span(failed.retry_in_ms, "retry_in_ms") / 1000)
    else:
        return error
    other.__cause__ = error
    return other


def _span(ms: int, field: str) -> int:
    return checks.check_int(ms, field if field.endswith("_ms") else f"{field}.delay_ms", high=_MAX)


_MAX = checks.MAX_MS


def note(message: pb.JobNote, tenant: str) -> Note:
    """What a running job reports."""
    if len(message.lines) > MAX_LINES:
        raise InvalidJob(f"lines has {len(message.lines)} entries: a job keeps {MAX_LINES}")
    return Note(
        lease=lease_ref(message.lease, tenant),
        progress=message.progress if message.HasField("progress") else None,
        lines=tuple(message.lines),
        saved=message.saved if message.HasField("saved") else None,
        saved_number=message.saved_number,
    )


# ── what workers receive ──────────────────────────────────────────────────────────────────────────


def lease(given: Lease) -> pb.Lease:
    """A claimed job."""
    message = pb.Lease(
        queue=given.queue.queue,
        id=given.id,
        token=given.token,
        name=given.name,
        payload=given.payload,
        codec=given.codec,
        life=given.life,
        attempt=given.attempt,
        failures=given.failures,
        stalls=given.stalls,
        created_ms=given.created_ms,
        started_ms=given.started_ms,
        expires_ms=given.expires_ms,
        key=given.key or "",
        timeout_ms=given.timeout_ms,
        saved=given.saved,
        cancel_asked=given.cancel_asked,
        last_chance=given.last_chance,
        tenant=given.queue.tenant,
        unknown_ms=given.unknown_ms,
        unfit_ms=given.unfit_ms,
    )
    if given.inputs:
        message.inputs.extend(map(_input, given.inputs))
    for name, value in given.signals:
        message.signals.add(name=name, value=value)
    if given.meta:
        message.meta.update(given.meta)
    return message


def that_fit(leases: Sequence[Lease]) -> list[pb.Lease]:
    """As many of the first jobs as fit into one message. The first one always does."""
    fitting: list[pb.Lease] = []
    size = 0
    for given in leases:
        message = lease(given)
        size += message.ByteSize()
        if fitting and size > MAX_BYTES:
            break
        fitting.append(message)
    return fitting


def _input(given: Input) -> pb.Input:
    return pb.Input(
        job=common.JobRef(queue=given.job.queue.queue, id=given.job.id),
        result=given.result,
        codec=given.codec,
        failure=None if given.failure is None else convert.failure(given.failure),
    )


def ref(lease: LeaseRef) -> pb.LeaseRef:
    """The name of a lease."""
    return pb.LeaseRef(queue=lease.queue.queue, id=lease.id, token=lease.token)


def states(leases: Sequence[LeaseRef], found: Iterable[LeaseState]) -> list[pb.LeaseState]:
    """The states of leases, in order."""
    return [
        pb.LeaseState(lease=ref(lease), state=cast("str", state))
        for lease, state in zip(leases, found, strict=True)
    ]
