"""How long a retry waits. Pure: the caller passes in the random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

from jobq.core.policies import Retry
from jobq.core.records.jobs import RetryData
from jobq.core.values.checks import to_ms

Random = Callable[[], float]
"""Returns numbers from 0 up to 1, like `random.random`."""


def delay_ms(policy: Retry | RetryData, n: int, error: BaseException, random: Random) -> int | None:
    """The delay before the n-th retry (1 is the first), in ms. Never negative.

    None if the policy's own function gives up. The delay of such a function is used as it is. A
    listed delay gets jitter but no cap, and the last one repeats. A computed delay is
    min(base·factor^(n-1), cap) ± jitter. What the cap leaves of that span is used evenly: at the
    cap, delays spread below it.
    """
    if isinstance(policy, Retry) and policy.choose is not None:
        chosen = policy.choose(n, error)
        return None if chosen is None else to_ms(chosen, "delays")
    return computed_ms(policy, n, random)


def computed_ms(policy: Retry | RetryData, n: int, random: Random) -> int:
    """The same delay without the policy's own function."""
    if policy.delays_ms:
        listed = policy.delays_ms[min(n, len(policy.delays_ms)) - 1]
        return _spread(listed, math.inf, policy.jitter, random)
    grown = _grown(policy.base_ms, policy.factor, policy.cap_ms, n)
    return _spread(grown, policy.cap_ms, policy.jitter, random)


def _grown(base_ms: int, factor: float, cap_ms: int, n: int) -> int:
    if base_ms >= cap_ms or factor == 1.0 or base_ms == 0:
        return min(base_ms, cap_ms)
    # Compare logarithms, because factor**9999 overflows a float.
    if (n - 1) * math.log(factor) >= math.log(cap_ms / base_ms):
        return cap_ms
    return min(round(base_ms * factor ** (n - 1)), cap_ms)


def _spread(ms: int, cap_ms: float, jitter: float, random: Random) -> int:
    if not jitter or not ms:
        return ms
    low, high = ms * (1 - jitter), min(ms * (1 + jitter), cap_ms)
    return round(low + (high - low) * random())
