"""Checks of the fields of a new job that need more than `core.checks`.

Each returns a plain value: the same object, if it is one.
"""

from __future__ import annotations

from functools import lru_cache
from operator import is_
from typing import get_args

from msgspec.structs import astuple

from jobq.core import checks
from jobq.core.call_options import RetryData, UniqueMode, UniqueSpec
from jobq.core.checks import MAX_COUNT, MAX_MS, check_bool, check_choice, check_id, check_int
from jobq.core.records import MAX_AFTER, MAX_ID_LENGTH, Edge, JobKey, QueueName
from jobq.errors import InvalidJob

MAX_CODEC = 128
"""Characters of the name of a codec. Two names of 63 characters make a pair."""
MAX_DELAYS = 1_000
"""Delays that one retry policy may list. Every lease of the job carries them."""
MAX_ORIGIN = checks.MAX_NAME_LENGTH + 1 + MAX_ID_LENGTH
"""Characters of the `origin` of a dead letter: queue, slash and id."""

_MODES = get_args(UniqueMode)


def check_queue(value: object, option: str = "queue") -> QueueName:
    """The full name of a queue."""
    if (
        type(value) is QueueName
        and type(value[0]) is type(value[1]) is str
        and _queue_is_known(value, option)
    ):
        return value
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidJob(f"{option}={checks.shown(value)} is not the name of a queue")
    tenant, queue = value
    return QueueName(checks.check_tenant(tenant), checks.check_queue_name(queue, option))


@lru_cache(maxsize=10_000)
def _queue_is_known(queue: QueueName, option: str) -> bool:
    checks.check_tenant(queue.tenant)
    checks.check_queue_name(queue.queue, option)
    return True


def check_codec(value: object) -> str:
    """The name of a codec."""
    return checks.check_short_name(value, "codec", MAX_CODEC)


def check_retry(retry: object) -> RetryData:
    """A retry policy."""
    if not isinstance(retry, RetryData):
        raise InvalidJob(f"retry={checks.shown(retry)} is not a retry policy")
    plain = RetryData(
        max_retries=check_int(retry.max_retries, "retry.max_retries", high=MAX_COUNT),
        base_ms=check_int(retry.base_ms, "retry.base_ms", high=MAX_MS),
        factor=checks.check_number(retry.factor, "retry.factor", low=1),
        cap_ms=check_int(retry.cap_ms, "retry.cap_ms", low=1, high=MAX_MS),
        jitter=checks.check_number(retry.jitter, "retry.jitter", high=1),
        delays_ms=None if retry.delays_ms is None else _delays(retry.delays_ms),
    )
    if plain.base_ms > plain.cap_ms:
        raise InvalidJob(
            f"retry.base_ms={plain.base_ms} is above cap_ms={plain.cap_ms}: raise the cap as well"
        )
    return retry if _is_same(retry, plain) else plain


def _is_same(one: RetryData | UniqueSpec, plain: RetryData | UniqueSpec) -> bool:
    """Whether the values of a record are those that a check returned, plain ones."""
    return type(one) is type(plain) and all(map(is_, astuple(one), astuple(plain)))


def _delays(value: object) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        raise InvalidJob(f"retry.delays_ms={checks.shown(value)} is not a list of delays")
    check_int(len(value), "the number of retry.delays_ms", low=1, high=MAX_DELAYS)
    plain = tuple(
        check_int(delay, f"retry.delays_ms[{n}]", high=MAX_MS) for n, delay in enumerate(value)
    )
    return value if type(value) is tuple and all(map(is_, value, plain)) else plain


def check_unique(value: object) -> UniqueSpec:
    """A unique lock."""
    if not isinstance(value, UniqueSpec):
        raise InvalidJob(f"unique={checks.shown(value)} is not a unique lock")
    mode = check_choice(value.mode, "unique.mode", _MODES)
    ttl_ms = value.ttl_ms
    if ttl_ms is not None:
        ttl_ms = check_int(ttl_ms, "unique.ttl_ms", low=1, high=MAX_MS)
    elif mode == "throttle":
        raise InvalidJob("unique.mode='throttle' needs unique.ttl_ms: how long the lock is held")
    lock = check_id(value.lock, "unique.lock")
    plain = UniqueSpec(lock=lock, mode=mode, ttl_ms=ttl_ms)  # type: ignore[arg-type]
    return value if _is_same(value, plain) else plain


def check_edges(value: object) -> tuple[Edge, ...]:
    """The jobs that a job waits for."""
    if not isinstance(value, (tuple, list)):
        raise InvalidJob(f"after={checks.shown(value)} is not a list of edges")
    check_int(len(value), "the number of jobs in after", high=MAX_AFTER)
    edges = tuple(map(_edge, value))
    same = type(value) is tuple and all(map(is_, edges, value))
    return value if same else edges  # type: ignore[return-value]  # the very same edges


def _edge(edge: object) -> Edge:
    if not isinstance(edge, Edge) or not isinstance(edge.job, JobKey):
        raise InvalidJob(f"after: {checks.shown(edge)} is not an edge to a job")
    (queue, id), data = edge.job, check_bool(edge.data, "after result")
    there, plain = check_queue(queue, "after queue"), check_id(id, "after id")
    same = there is queue and plain is id and type(edge) is Edge and type(edge.job) is JobKey
    return edge if same else Edge(JobKey(there, plain), data)
