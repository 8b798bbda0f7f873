"""Milliseconds since the epoch as aware datetimes, for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(ms: int) -> datetime:
    """Milliseconds since the epoch as an aware datetime, exactly."""
    return _EPOCH + timedelta(milliseconds=ms)


def moment_or_none(ms: int | None) -> datetime | None:
    """The same for a time that may be None."""
    return None if ms is None else moment(ms)
