"""`manage.py check` reports what is wrong in settings.JOBQ."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error

from jobq.django.config import config
from jobq.django.queue import default_url
from jobq.errors import ConfigError


def check_settings(**_: Any) -> list[CheckMessage]:
    """One error for the first mistake in settings.JOBQ."""
    try:
        default_url(config())
    except ConfigError as error:
        return [Error(str(error), id="jobq.E001")]
    return []
