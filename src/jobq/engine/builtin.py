"""Tasks that every worker has, in addition to those of its queues."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

import msgspec

from jobq.core.codec import convert, get_codec
from jobq.core.policies import Retry
from jobq.core.records import Failure, Lease
from jobq.core.refs import delivered
from jobq.core.stalls import DEFAULT_MAX_STALLS
from jobq.engine.handler import Bound, Handler

GATHER = "jobq.gather"
FAILURE = "$jobq.failure"


async def _gather(results: list[Any]) -> list[Any]:
    return results


class Gather:
    """Returns the results of the jobs it waited for, in the order of its edges. Used by `group`."""

    name = GATHER
    executor: Literal["inline"] = "inline"
    retry = Retry()
    timeout_ms = None
    grace_ms = None
    max_stalls = DEFAULT_MAX_STALLS
    batch = None
    fn: Callable[[list[Any]], Coroutine[Any, Any, list[Any]]] = staticmethod(_gather)

    def bind(self, lease: Lease, /) -> Bound:
        """Take the results from the lease.

        References in the payload would be larger than most results when there are ten thousand.
        """
        return [[marked(delivered(given)) for given in lease.inputs]], {}

    def encode(self, value: Any, lease: Lease, /, what: str = "the result") -> bytes:
        """Encode in the codec of the job."""
        return get_codec(lease.codec).encode(value)


def marked(value: Any) -> Any:
    """Return a result as it is stored in the list: a Failure is marked, to recognise it."""
    return {FAILURE: msgspec.to_builtins(value)} if isinstance(value, Failure) else value


def unmarked(value: Any, annotation: Any) -> Any:
    """Undo `marked`, and convert the result to the annotation."""
    if isinstance(value, dict) and len(value) == 1 and FAILURE in value:
        return convert(value[FAILURE], Failure)
    return value if value is None or annotation is Any else convert(value, annotation)


BUILTIN: Mapping[str, Handler] = {GATHER: Gather()}
