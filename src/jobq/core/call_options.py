"""The options of one call, as stores keep them. Part of the Store contract."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec

ChildPolicy = Literal["fail", "ignore", "continue"]
UniqueMode = Literal["simple", "throttle", "debounce", "keep_last"]


class RetryData(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A retry policy as data, to be stored with a job.

    The n-th retry (1 is the first) waits min(base·factor^(n-1), cap), or delays_ms[n-1], of which
    the last one repeats. `jitter` is a fraction of the delay, added or subtracted: 0 unless
    it is given, also by callers in other languages. `Retry` gives 0.1.
    """

    max_retries: int = 3
    base_ms: int = 1000
    factor: float = 2.0
    cap_ms: int = 3_600_000
    jitter: float = 0.0
    delays_ms: Annotated[tuple[int, ...], msgspec.Meta(max_length=100_000)] | None = None


class UniqueSpec(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The unique lock of a job.

    `lock` is a digest of what makes two jobs of a queue the same. `ttl_ms` is how long the lock is
    held at most.
    """

    lock: str
    mode: UniqueMode = "simple"
    ttl_ms: int | None = None


class CallOptions(msgspec.Struct, frozen=True, gc=False):
    """The options that a call gave for its job, for readers. Give them by name.

    The fields mean the same as in `JobSpec`. Priority, key and meta are fields of the
    record itself.
    """

    # begin scripts/options.py: call_options
    lifo: bool = False
    delay_ms: int = 0
    at_ms: int | None = None
    ttl_ms: int | None = None
    result_ttl_ms: int | None = None
    retry: RetryData | None = None
    timeout_ms: int | None = None
    max_stalls: int | None = None
    cost: int = 1
    unique: UniqueSpec | None = None
    on_child_failure: ChildPolicy = "fail"
    # end scripts/options.py


NO_OPTIONS = CallOptions()
"""The options of a job whose call gave none. Shared, so that reading such a job costs nothing."""
_values = attrgetter(*CallOptions.__struct_fields__)


def call_options(stored: Any) -> CallOptions:
    """The options of a job, of whatever stores them under the same names."""
    return CallOptions(*_values(stored))
