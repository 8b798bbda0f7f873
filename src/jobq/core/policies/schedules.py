"""`Cron` and `Every`: when a schedule makes jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from jobq.core.policies._base import policy, set_fields
from jobq.core.records import queues
from jobq.core.records.jobs import JobSpec, QueueName
from jobq.core.records.queues import ScheduleSpec
from jobq.core.values import checks
from jobq.core.values.checks import Seconds, to_epoch_ms, to_ms
from jobq.core.values.crontab import check_expression, check_zone
from jobq.errors import ConfigError


@policy
class Cron:
    """Times given by a cron expression (five fields, or six with seconds first) in a time zone."""

    expression: str
    tz: str
    start_ms: int | None
    end_ms: int | None
    times: int | None
    catch_up: queues.CatchUp

    def __init__(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        times: int | None = None,
        catch_up: Literal["skip", "one", "all"] = "skip",
    ) -> None:
        plain, zone = check_expression(expression), check_zone(tz)
        set_fields(self, expression=plain, tz=zone, **_range("Cron", start, end, times, catch_up))

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
            limit=self.times,
            catch_up=self.catch_up,
        )


@policy
class Every:
    """Times at a fixed interval from `start`, or from when the schedule was created, without drift.

    With `after_complete` the interval counts from the end of the last job, so runs never overlap.
    """

    interval_ms: int
    after_complete: bool
    start_ms: int | None
    end_ms: int | None
    times: int | None
    catch_up: queues.CatchUp

    def __init__(
        self,
        interval: Seconds,
        *,
        after_complete: bool = False,
        start: datetime | None = None,
        end: datetime | None = None,
        times: int | None = None,
        catch_up: Literal["skip", "one", "all"] = "skip",
    ) -> None:
        set_fields(
            self,
            interval_ms=to_ms(
                interval, "Every interval", positive=True, whole=True, error=ConfigError
            ),
            after_complete=checks.check_bool(
                after_complete, "Every after_complete", error=ConfigError
            ),
            **_range("Every", start, end, times, catch_up),
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
            limit=self.times,
            catch_up=self.catch_up,
        )


def _range(
    what: str, start: datetime | None, end: datetime | None, times: int | None, catch_up: str
) -> dict[str, Any]:
    start_ms = None if start is None else to_epoch_ms(start, f"{what} start", error=ConfigError)
    end_ms = None if end is None else to_epoch_ms(end, f"{what} end", error=ConfigError)
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise ConfigError(f"{what} end={end} is before start={start}")
    return {
        "start_ms": start_ms,
        "end_ms": end_ms,
        "times": None
        if times is None
        else checks.check_int(
            times, f"{what} times", low=1, high=checks.MAX_COUNT, error=ConfigError
        ),
        "catch_up": checks.check_choice(
            catch_up, f"{what} catch_up", ("skip", "one", "all"), error=ConfigError
        ),
    }
