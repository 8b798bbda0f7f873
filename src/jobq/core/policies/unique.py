"""`Unique`: which calls count as the same job."""

from __future__ import annotations

from typing import Literal, get_args

from jobq.core.policies._base import policy, set_fields
from jobq.core.records import jobs
from jobq.core.values import checks
from jobq.core.values.checks import Seconds, shown
from jobq.errors import InvalidJob


@policy
class Unique:
    """Which calls count as the same job: those with equal values in `fields` of their arguments.

    Without fields, all arguments must be equal. `mode` says what happens to a call while an earlier
    job holds the lock:

    - simple: the call is a duplicate until the job ends, or for `period` at most.
    - throttle: the call is a duplicate for `period`, even after the job has ended.
    - debounce: the call replaces the data of the job, which waits for `period` again.
    - keep_last: while the job runs, later calls become one follow-up with the newest data.
    """

    fields: tuple[str, ...]
    mode: jobs.UniqueMode
    period_ms: int | None

    def __init__(
        self,
        *fields: str,
        period: Seconds | None = None,
        mode: Literal["simple", "throttle", "debounce", "keep_last"] = "simple",
    ) -> None:
        for field in fields:
            if not isinstance(field, str) or not field:
                raise InvalidJob(f"Unique field {shown(field)} is not the name of a parameter")
        plain = checks.check_choice(mode, "Unique mode", get_args(jobs.UniqueMode))
        if period is None and mode in ("throttle", "debounce"):
            raise InvalidJob(f"Unique mode={mode!r} needs period=: give seconds or a timedelta")
        set_fields(
            self,
            fields=tuple(dict.fromkeys(map(str.__str__, fields))),
            mode=plain,
            period_ms=checks.check_ttl(period, "Unique period"),
        )

    @staticmethod
    def of(value: object) -> Unique | None:
        """The policy that `unique=value` means.

        The value is a Unique, True for all arguments, or False or None for none.
        """
        if isinstance(value, Unique):
            return value
        if value is True:
            return Unique()
        if value is False or value is None:
            return None
        raise InvalidJob(f"unique={shown(value)} is neither a Unique nor True or False")
