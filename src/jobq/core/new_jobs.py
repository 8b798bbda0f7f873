"""Checks of a JobSpec that did not come from the API of this process but over the network.

`core.checks` checks what users write. A spec that another process sends is checked here as a whole,
so that nothing is stored that the API would have refused.
"""

from __future__ import annotations

from jobq.core import checks
from jobq.core.call_options import RetryData, UniqueSpec
from jobq.core.checks import MAX_EPOCH_MS, MAX_MS, check_choice, check_id, check_int
from jobq.core.meta import check_meta
from jobq.core.records import JobSpec
from jobq.errors import InvalidJob

MAX_CODEC = 128
"""Characters of the name of a codec. Two names of 63 characters make a pair."""
MAX_EDGES = 10_000
"""Jobs that one job may wait for."""
MAX_DELAYS = 1_000
"""Delays that one retry policy may list. Every lease of the job carries them."""

_I32 = 2**31 - 1
_POLICIES = ("fail", "ignore", "continue")
_MODES = ("simple", "throttle", "debounce", "keep_last")


def check_spec(spec: JobSpec, *, max_payload: int | None = None) -> JobSpec:
    """The spec. InvalidJob names the option that is wrong; PayloadTooLarge its size."""
    checks.check_queue_name(spec.queue.queue)
    checks.check_tenant(spec.queue.tenant)
    check_id(spec.id)
    checks.check_task_name(spec.name)
    checks.check_short_name(spec.codec, "codec", MAX_CODEC)
    if max_payload is not None and len(spec.payload) > max_payload:
        checks.check_payload(spec.payload, max_payload, f"the arguments of {spec.name} take")
    if spec.priority:
        checks.check_priority(spec.priority)
    if spec.cost != 1:
        checks.check_cost(spec.cost)
    if spec.key is not None:
        checks.check_key(spec.key)
    if spec.meta is not None:
        check_meta(spec.meta)
    _check_times(spec)
    if spec.retry is not None:
        check_retry(spec.retry)
    if spec.max_stalls is not None:
        checks.check_max_stalls(spec.max_stalls)
    if spec.unique is not None:
        _check_unique(spec.unique)
    if spec.after:
        _check_edges(spec)
    if spec.on_child_failure != "fail":
        check_choice(spec.on_child_failure, "on_child_failure", _POLICIES)
    return spec


def _check_times(spec: JobSpec) -> None:
    if spec.delay_ms:
        check_int(spec.delay_ms, "delay_ms", high=MAX_MS)
    if spec.at_ms is not None:
        check_int(spec.at_ms, "at_ms", high=MAX_EPOCH_MS)
        if spec.delay_ms:
            raise InvalidJob(f"delay_ms={spec.delay_ms} and at_ms={spec.at_ms}: give one of them")
    if spec.ttl_ms is not None:
        check_int(spec.ttl_ms, "ttl_ms", low=1, high=MAX_MS)
    if spec.result_ttl_ms is not None:
        check_int(spec.result_ttl_ms, "result_ttl_ms", low=1, high=MAX_MS)
    if spec.timeout_ms is not None:
        check_int(spec.timeout_ms, "timeout_ms", high=MAX_MS)


def check_retry(retry: RetryData) -> RetryData:
    """The policy. InvalidJob names what is wrong with it."""
    check_int(retry.max_retries, "retry.max_retries", high=_I32)
    check_int(retry.base_ms, "retry.base_ms", high=MAX_MS)
    check_int(retry.cap_ms, "retry.cap_ms", low=1, high=MAX_MS)
    if retry.base_ms > retry.cap_ms:
        raise InvalidJob(
            f"retry.base_ms={retry.base_ms} is above cap_ms={retry.cap_ms}: raise the cap as well"
        )
    checks.check_number(retry.factor, "retry.factor", low=1)
    checks.check_number(retry.jitter, "retry.jitter", high=1)
    if retry.delays_ms is not None:
        check_int(len(retry.delays_ms), "the number of retry.delays_ms", low=1, high=MAX_DELAYS)
        for n, delay in enumerate(retry.delays_ms):
            check_int(delay, f"retry.delays_ms[{n}]", high=MAX_MS)
    return retry


def _check_unique(unique: UniqueSpec) -> None:
    check_id(unique.lock, "unique.lock")
    check_choice(unique.mode, "unique.mode", _MODES)
    if unique.ttl_ms is not None:
        check_int(unique.ttl_ms, "unique.ttl_ms", low=1, high=MAX_MS)
    elif unique.mode == "throttle":
        raise InvalidJob("unique.mode='throttle' needs unique.ttl_ms: how long the lock is held")


def _check_edges(spec: JobSpec) -> None:
    check_int(len(spec.after), "the number of jobs in after", high=MAX_EDGES)
    for edge in spec.after:
        check_id(edge.job.id, "after id")
        checks.check_queue_name(edge.job.queue.queue, "after queue")
        if edge.job.queue.tenant != spec.queue.tenant:
            raise InvalidJob(f"job {spec.id!r} waits for a job of another tenant: {edge.job.id!r}")
