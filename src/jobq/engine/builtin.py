"""Tasks that every worker has, in addition to those of its queues."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

import msgspec

from jobq.core.policies import Retry
from jobq.core.records.jobs import Failure, Lease
from jobq.core.rules.calls import undecoded
from jobq.core.rules.flows import delivered
from jobq.core.rules.outcomes import DEFAULT_MAX_STALLS
from jobq.core.values.codec import convert, get_codec
from jobq.engine.handler import RESULT, Bound, Handler, unstorable

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
        try:
            return [[tagged(delivered(given)) for given in lease.inputs]], {}
        except Exception as error:  # a codec of the user's may raise anything
            raise undecoded(error) from error

    def encode(self, value: Any, lease: Lease, /, what: str = RESULT) -> bytes:
        """Encode in the codec of the job."""
        try:
            return get_codec(lease.codec).encode(value)
        except Exception as error:
            raise unstorable(error) from error


def tagged(value: Any) -> Any:
    """Return a result as it is stored in the list: a Failure is tagged, to recognise it."""
    return {FAILURE: msgspec.to_builtins(value)} if isinstance(value, Failure) else value


def untagged(value: Any, annotation: Any) -> Any:
    """Undo `tagged`, and convert the result to the annotation."""
    if isinstance(value, dict) and len(value) == 1 and FAILURE in value:
        return convert(value[FAILURE], Failure)
    return value if value is None or annotation is Any else convert(value, annotation)


BUILTIN: Mapping[str, Handler] = {GATHER: Gather()}
