"""`Retention`: how long the records of ended jobs are kept."""

from __future__ import annotations

from jobq.core.policies._base import policy, set_fields
from jobq.core.records.queues import RetentionData
from jobq.core.values import checks
from jobq.core.values.checks import Seconds, to_ms
from jobq.errors import ConfigError

_DAY = 86_400


@policy
class Retention:
    """How long ended jobs are kept.

    By age per state (None keeps them forever) and by `count` per state (None keeps any number).
    """

    completed_ms: int | None
    failed_ms: int | None
    cancelled_ms: int | None
    count: int | None

    def __init__(
        self,
        *,
        completed: Seconds | None = _DAY,
        failed: Seconds | None = 30 * _DAY,
        cancelled: Seconds | None = _DAY,
        count: int | None = 100_000,
    ) -> None:
        set_fields(
            self,
            completed_ms=_age(completed, "completed"),
            failed_ms=_age(failed, "failed"),
            cancelled_ms=_age(cancelled, "cancelled"),
            count=None
            if count is None
            else checks.check_int(count, "Retention count", error=ConfigError),
        )

    @property
    def data(self) -> RetentionData:
        """The retention as a store keeps it."""
        return RetentionData(
            completed_ms=self.completed_ms,
            failed_ms=self.failed_ms,
            cancelled_ms=self.cancelled_ms,
            count=self.count,
        )


def _age(value: Seconds | None, option: str) -> int | None:
    return None if value is None else to_ms(value, f"Retention {option}", error=ConfigError)
