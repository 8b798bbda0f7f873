"""`Rate` and `Bucket`: how many jobs may start in a given time."""

from __future__ import annotations

from jobq.core.policies._base import policy, set_fields
from jobq.core.records.queues import Tokens, Window
from jobq.core.values import checks
from jobq.core.values.checks import Seconds, shown, to_ms
from jobq.errors import ConfigError


@policy
class Rate:
    """At most `count` starts per window of `per`. The first start opens the window."""

    count: int
    per_ms: int

    def __init__(self, count: int, *, per: Seconds) -> None:
        set_fields(
            self,
            count=checks.check_int(
                count, "Rate count", low=1, high=checks.MAX_COUNT, error=ConfigError
            ),
            per_ms=to_ms(per, "Rate per", positive=True, whole=True, error=ConfigError),
        )

    @property
    def data(self) -> Window:
        """The rate as a store keeps it."""
        return Window(limit=self.count, per_ms=self.per_ms)


@policy
class Bucket:
    """A token bucket: the start of a job takes `cost` tokens.

    `refill` tokens come back per second, up to `capacity`.
    """

    capacity: int
    refill: float

    def __init__(self, capacity: int, *, refill: float) -> None:
        checks.check_number(refill, "Bucket refill", error=ConfigError)
        # 1e-6 is one token in eleven days. With 0, the queue would stop once the bucket is empty.
        if refill < 1e-6:
            raise ConfigError(
                f"Bucket refill={shown(refill)} is too small: "
                "it is in tokens per second, at least 0.000001"
            )
        set_fields(
            self,
            capacity=checks.check_int(
                capacity, "Bucket capacity", low=1, high=checks.MAX_COUNT, error=ConfigError
            ),
            refill=float(refill),
        )

    @property
    def data(self) -> Tokens:
        """The bucket as a store keeps it."""
        return Tokens(capacity=self.capacity, refill=self.refill)
