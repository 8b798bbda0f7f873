"""Fire times of schedules."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from jobq.errors import ConfigError


def check_expression(expression: str) -> str:
    """A cron expression that can be read; ConfigError otherwise."""
    try:
        CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ConfigError(f"cron {expression!r}: {error}") from None
    return expression


def check_zone(tz: str) -> str:
    """A time zone there is; ConfigError otherwise."""
    try:
        ZoneInfo(tz)
    except (ValueError, OSError, LookupError):
        raise ConfigError(f"tz={tz!r} is not a known time zone") from None
    return tz
