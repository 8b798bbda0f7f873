"""`Retry`: when a failed job runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import cast

from jobq.core.control import RetryAfter
from jobq.core.policies._base import policy, set_fields
from jobq.core.records.jobs import RetryData
from jobq.core.values import checks
from jobq.core.values.checks import Seconds, shown, to_ms
from jobq.errors import InvalidJob

Errors = type[BaseException] | tuple[type[BaseException], ...]
DelayFunction = Callable[[int, BaseException], Seconds | None]
"""From the number of the retry (1 is the first) and the error to a delay. None gives up."""


@policy
class Retry:
    """When a failed job runs again.

    The n-th retry waits min(base·factor^(n-1), cap), plus or minus `jitter`, a fraction of the
    delay; so jobs that failed together do not come back together. At the cap, delays spread below
    it. `delays` replaces this formula: it is a list of delays, of which the last one repeats, or a
    function of the retry's number and the error that returns a delay, or None to give up. Only
    errors of `on` are retried, and none of `give_up_on`. A timeout counts as TimeoutError.
    `max_retries=0` means no retries.
    """

    max_retries: int
    base_ms: int
    factor: float
    cap_ms: int
    jitter: float
    delays_ms: tuple[int, ...] | None
    choose: DelayFunction | None
    on: tuple[type[BaseException], ...]
    give_up_on: tuple[type[BaseException], ...]

    def __init__(
        self,
        max_retries: int = 3,
        *,
        base: Seconds = 1,
        factor: float = 2,
        cap: Seconds = 3600,
        jitter: float = 0.1,
        delays: Sequence[Seconds] | DelayFunction | None = None,
        on: Errors = BaseException,
        give_up_on: Errors = (),
    ) -> None:
        base_ms, cap_ms = to_ms(base, "Retry base"), to_ms(cap, "Retry cap", positive=True)
        if base_ms > cap_ms:
            raise InvalidJob(
                f"Retry base={shown(base)} is above cap={shown(cap)}: raise the cap as well"
            )
        choose = delays if callable(delays) else None
        set_fields(
            self,
            max_retries=checks.check_int(max_retries, "max_retries", high=checks.MAX_COUNT),
            base_ms=base_ms,
            factor=checks.check_number(factor, "Retry factor", low=1),
            cap_ms=cap_ms,
            jitter=checks.check_number(jitter, "Retry jitter", high=1),
            delays_ms=None if delays is None or callable(delays) else _delays(delays),
            choose=choose,
            on=_errors(on, "on"),
            give_up_on=_errors(give_up_on, "give_up_on"),
        )

    @staticmethod
    def after(delay: Seconds) -> RetryAfter:
        """`raise Retry.after(30)` fails the run, and retries in 30 seconds if retries are left."""
        return RetryAfter(delay)

    @staticmethod
    def of(value: object) -> Retry:
        """The policy that `retry=value` means. The value is a Retry or a number of retries."""
        if isinstance(value, Retry):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return Retry(value)
        raise InvalidJob(f"retry={shown(value)} is neither a Retry nor a number of retries")

    @property
    def data(self) -> RetryData:
        """The policy as data, to be stored with a job.

        InvalidJob if the policy contains functions or classes: those belong in
        `@queue.task(retry=…)`.
        """
        if self.choose is not None:
            raise InvalidJob(
                f"retry: delays={shown(self.choose)} is a function, which cannot be stored with a "
                "job: put it in @queue.task(retry=…)"
            )
        if self.on != (BaseException,) or self.give_up_on:
            raise InvalidJob(
                "retry: on= and give_up_on= are classes, which cannot be stored with a job: "
                "put them in @queue.task(retry=…)"
            )
        return RetryData(
            max_retries=self.max_retries,
            base_ms=self.base_ms,
            factor=self.factor,
            cap_ms=self.cap_ms,
            jitter=self.jitter,
            delays_ms=self.delays_ms,
        )

    def retries(self, error: BaseException) -> bool:
        """Whether errors of this type are retried at all."""
        return isinstance(error, self.on) and not isinstance(error, self.give_up_on)


def _delays(delays: object) -> tuple[int, ...]:
    if isinstance(delays, (str, bytes)) or not isinstance(delays, Iterable):
        raise InvalidJob(
            f"Retry delays={shown(delays)} is neither a sequence of times nor a function"
        )
    listed = tuple(to_ms(delay, f"Retry delays[{n}]") for n, delay in enumerate(delays))
    if not listed:
        raise InvalidJob("Retry delays is empty: list at least one time, or leave it out")
    return listed


def _errors(value: object, option: str) -> tuple[type[BaseException], ...]:
    listed = value if isinstance(value, tuple) else (value,)
    for item in listed:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise InvalidJob(
                f"Retry {option}={shown(value)}: {shown(item)} is not an exception class"
            )
    return cast("tuple[type[BaseException], ...]", listed)


UNDECLARED = Retry()
"""The policy of a task that declares none. A queue's default comes before it."""


def stored_retry(data: RetryData) -> Retry:
    """The policy that was stored as `data`. InvalidJob if no policy can be."""
    return Retry(
        data.max_retries,
        base=timedelta(milliseconds=data.base_ms),
        factor=data.factor,
        cap=timedelta(milliseconds=data.cap_ms),
        jitter=data.jitter,
        delays=None
        if data.delays_ms is None
        else [timedelta(milliseconds=ms) for ms in data.delays_ms],
    )
