"""The policies users write, checked when they are made. `.data` is the form that crosses the Store seam."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from jobq.core import checks, queues, records
from jobq.core.checks import Seconds, shown, to_epoch_ms, to_ms
from jobq.core.control import RetryAfter
from jobq.core.crontab import check_expression, check_zone
from jobq.core.queues import RetentionData, ScheduleSpec, Tokens, Window
from jobq.core.records import JobSpec, QueueName, RetryData
from jobq.errors import ConfigError, InvalidJob

Errors = type[BaseException] | tuple[type[BaseException], ...]
DelayFunction = Callable[[int, BaseException], Seconds | None]

_policy = dataclass(frozen=True, slots=True, init=False)


def _set(policy: object, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(policy, name, value)  # frozen for everybody but its own constructor


# ── retries ───────────────────────────────────────────────────────────────────────────────────────


@_policy
class Retry:
    """When a failed job runs again. The n-th retry waits min(base·factor^(n-1), cap), ± `jitter` as a fraction of it.

    `delays` instead lists the waits (its last one from then on), or is a function of the retry's number and the error
    that answers the wait, or None to give up. Only errors of `on` are retried, and none of `give_up_on`; a timeout
    counts as TimeoutError. `max_retries=0` means none.
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
        jitter: float = 0.0,
        delays: Sequence[Seconds] | DelayFunction | None = None,
        on: Errors = BaseException,
        give_up_on: Errors = (),
    ) -> None:
        base_ms, cap_ms = to_ms(base, "Retry base"), to_ms(cap, "Retry cap", positive=True)
        if base_ms > cap_ms:
            raise InvalidJob(
                f"Retry base={shown(base)} is above cap={shown(cap)}: give a higher cap as well"
            )
        choose = delays if callable(delays) else None
        _set(
            self,
            max_retries=checks.check_int(max_retries, "max_retries", high=2**31 - 1),
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
        """`raise Retry.after(30)`: fail, and retry in 30 seconds if retries are left."""
        return RetryAfter(delay)

    @staticmethod
    def of(value: object) -> Retry:
        """The policy that `retry=value` means: a Retry, or a number of retries."""
        if isinstance(value, Retry):
            return value
        if type(value) is int:
            return Retry(value)
        raise InvalidJob(f"retry={shown(value)} is neither a Retry nor a number of retries")

    @property
    def data(self) -> RetryData:
        """The policy as data, to travel with one call. What only code can say is refused: it belongs to the task."""
        if self.choose is not None:
            raise InvalidJob(
                f"retry: delays={shown(self.choose)} is a function; a call can only carry data, put it in @queue.task(retry=…)"
            )
        if self.on != (BaseException,) or self.give_up_on:
            raise InvalidJob(
                "retry: on= and give_up_on= are classes; a call can only carry data, put them in @queue.task(retry=…)"
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


# ── uniqueness ────────────────────────────────────────────────────────────────────────────────────


@_policy
class Unique:
    """Which calls count as the same one: those that agree in `fields` of their arguments (none named: in all of them).

    simple: until the job ends (or `ttl`) · throttle: for `ttl`, whatever happens · debounce: replaces the pending one and
    waits `ttl` anew · keep_last: while one runs, later ones become a single follow-up with the newest data.
    """

    fields: tuple[str, ...]
    mode: records.UniqueMode
    ttl_ms: int | None

    def __init__(
        self,
        *fields: str,
        ttl: Seconds | None = None,
        mode: Literal["simple", "throttle", "debounce", "keep_last"] = "simple",
    ) -> None:
        for field in fields:
            if not isinstance(field, str) or not field:
                raise InvalidJob(f"Unique field {shown(field)} is not the name of a parameter")
        checks.check_choice(mode, "Unique mode", ("simple", "throttle", "debounce", "keep_last"))
        if ttl is None and mode in ("throttle", "debounce"):
            raise InvalidJob(f"Unique mode={mode!r} needs a ttl: for how long?")
        _set(
            self,
            fields=tuple(dict.fromkeys(fields)),
            mode=mode,
            ttl_ms=checks.check_ttl(ttl, "Unique ttl"),
        )

    @staticmethod
    def of(value: object) -> Unique | None:
        """The policy that `unique=value` means: a Unique, True for all arguments, False or None for none."""
        if isinstance(value, Unique):
            return value
        if value is True:
            return Unique()
        if value is False or value is None:
            return None
        raise InvalidJob(f"unique={shown(value)} is neither a Unique nor True or False")


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────


@_policy
class Rate:
    """At most `limit` starts per window of `per`, which its first start opens."""

    limit: int
    per_ms: int

    def __init__(self, limit: int, *, per: Seconds) -> None:
        _set(
            self,
            limit=checks.check_int(limit, "Rate limit", low=1, high=2**31 - 1, error=ConfigError),
            per_ms=to_ms(per, "Rate per", positive=True, whole=True, error=ConfigError),
        )

    @property
    def data(self) -> Window:
        """As a store keeps it."""
        return Window(limit=self.limit, per_ms=self.per_ms)


@_policy
class Bucket:
    """A token bucket: a start takes its job's `cost`; `refill` tokens come back per second, up to `capacity`."""

    capacity: int
    refill: float

    def __init__(self, capacity: int, *, refill: float) -> None:
        checks.check_number(refill, "Bucket refill", error=ConfigError)
        if (
            refill < 1e-6
        ):  # a token in eleven days; at 0 the queue would stop for ever once the bucket is empty
            raise ConfigError(
                f"Bucket refill={shown(refill)} is too small: it is in tokens per second, at least 0.000001"
            )
        _set(
            self,
            capacity=checks.check_int(
                capacity, "Bucket capacity", low=1, high=2**31 - 1, error=ConfigError
            ),
            refill=float(refill),
        )

    @property
    def data(self) -> Tokens:
        """As a store keeps it."""
        return Tokens(capacity=self.capacity, refill=self.refill)


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


@_policy
class Cron:
    """Times by a cron expression (five fields, or six with seconds first) in a time zone."""

    expression: str
    tz: str
    start_ms: int | None
    end_ms: int | None
    limit: int | None
    catch_up: queues.CatchUp

    def __init__(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        catch_up: Literal["skip", "one", "all"] = "skip",
    ) -> None:
        plain, zone = check_expression(expression), check_zone(tz)
        _set(self, expression=plain, tz=zone, **_range("Cron", start, end, limit, catch_up))

    def spec(self, queue: QueueName, id: str, template: JobSpec) -> ScheduleSpec:
        """The schedule that makes jobs like `template` at these times."""
        return ScheduleSpec(
            queue=queue,
            id=id,
            template=template,
            cron=self.expression,
            tz=self.tz,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
            limit=self.limit,
            catch_up=self.catch_up,
        )


@_policy
class Every:
    """Times at a fixed distance from `start` (or from when the schedule was made), without drift.

    With `after_complete` the distance counts from the end of the last job, so that runs never overlap.
    """

    interval_ms: int
    after_complete: bool
    start_ms: int | None
    end_ms: int | None
    limit: int | None
    catch_up: queues.CatchUp

    def __init__(
        self,
        interval: Seconds,
        *,
        after_complete: bool = False,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        catch_up: Literal["skip", "one", "all"] = "skip",
    ) -> None:
        _set(
            self,
            interval_ms=to_ms(
                interval, "Every interval", positive=True, whole=True, error=ConfigError
            ),
            after_complete=checks.check_bool(
                after_complete, "Every after_complete", error=ConfigError
            ),
            **_range("Every", start, end, limit, catch_up),
        )

    def spec(self, queue: QueueName, id: str, template: JobSpec) -> ScheduleSpec:
        """The schedule that makes jobs like `template` at these times."""
        return ScheduleSpec(
            queue=queue,
            id=id,
            template=template,
            every_ms=self.interval_ms,
            after_complete=self.after_complete,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
            limit=self.limit,
            catch_up=self.catch_up,
        )


def _range(
    what: str, start: datetime | None, end: datetime | None, limit: int | None, catch_up: str
) -> dict[str, Any]:
    start_ms = None if start is None else to_epoch_ms(start, f"{what} start", error=ConfigError)
    end_ms = None if end is None else to_epoch_ms(end, f"{what} end", error=ConfigError)
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise ConfigError(f"{what} end={end} is before start={start}")
    return {
        "start_ms": start_ms,
        "end_ms": end_ms,
        "limit": None
        if limit is None
        else checks.check_int(limit, f"{what} limit", low=1, error=ConfigError),
        "catch_up": checks.check_choice(
            catch_up, f"{what} catch_up", ("skip", "one", "all"), error=ConfigError
        ),
    }


# ── keeping ───────────────────────────────────────────────────────────────────────────────────────

_DAY = 86_400


@_policy
class Retention:
    """How long ended jobs are kept, by age (None: for ever) and by `count` per state (None: any number)."""

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
        _set(
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
        """As a store keeps it."""
        return RetentionData(
            completed_ms=self.completed_ms,
            failed_ms=self.failed_ms,
            cancelled_ms=self.cancelled_ms,
            count=self.count,
        )


def _age(value: Seconds | None, option: str) -> int | None:
    return None if value is None else to_ms(value, f"Retention {option}", error=ConfigError)


# ── permissions ───────────────────────────────────────────────────────────────────────────────────

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@_policy
class Permissions:
    """What a job in executor `process` or `command` may touch. Nothing is allowed unless named.

    `read` and `write` are paths, `env` names of variables, `memory` bytes or "512M", `cpu` seconds of processor time.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    network: bool
    env: tuple[str, ...]
    memory: int | None
    cpu_ms: int | None

    def __init__(
        self,
        *,
        read: Sequence[str] = (),
        write: Sequence[str] = (),
        network: bool = False,
        env: Sequence[str] = (),
        memory: str | int | None = None,
        cpu: Seconds | None = None,
    ) -> None:
        _set(
            self,
            read=_texts(read, "read"),
            write=_texts(write, "write"),
            network=checks.check_bool(network, "Permissions network", error=ConfigError),
            env=_texts(env, "env"),
            memory=None if memory is None else _bytes(memory),
            cpu_ms=None
            if cpu is None
            else to_ms(cpu, "Permissions cpu", positive=True, error=ConfigError),
        )


def _texts(value: object, option: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"Permissions {option}={shown(value)} is not a list of strings")
    items = tuple(value)
    for item in items:
        if not isinstance(item, str) or not item or "\0" in item:
            raise ConfigError(f"Permissions {option}: {shown(item)} is not a name")
    return items


def _bytes(value: object) -> int:
    if type(value) is int and value > 0:
        return value
    if isinstance(value, str) and (
        match := re.fullmatch(r"\s*([1-9]\d*)\s*([KMGT]?)(?:i?B)?\s*", value, re.IGNORECASE)
    ):
        return int(match[1]) * _UNITS[match[2].upper()]
    raise ConfigError(f'Permissions memory={shown(value)} is not a size: give bytes, or "512M"')
