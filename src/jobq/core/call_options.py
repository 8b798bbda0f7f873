"""What a call says about its job, as stores keep it. Records of the Store seam, like `records`."""

from __future__ import annotations

from typing import Literal

import msgspec

ChildPolicy = Literal["fail", "ignore", "continue"]
UniqueMode = Literal["simple", "throttle", "debounce", "keep_last"]


class RetryData(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A retry policy as data: what a call may carry with it. The n-th retry (from 1) waits
    min(base·factor^(n-1), cap), or delays_ms[n-1] (its last one from then on), with ±jitter as a fraction."""

    max_retries: int = 3
    base_ms: int = 1000
    factor: float = 2.0
    cap_ms: int = 3_600_000
    jitter: float = 0.0
    delays_ms: tuple[int, ...] | None = None


class UniqueSpec(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """`lock`: a digest of what makes two jobs the same (unique in the queue). `ttl_ms`: how long it holds at most."""

    lock: str
    mode: UniqueMode = "simple"
    ttl_ms: int | None = None


class CallOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The options of a job as its call gave them, for readers; priority and key are fields of the record itself.

    The fields mean what they mean in `JobSpec`."""

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


NO_OPTIONS = CallOptions()
"""Of a job whose call gave none: shared, so that reading such a job costs nothing for them."""
