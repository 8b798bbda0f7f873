"""Raises one error in several callers."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from typing import Any


def fail_each(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    """Raise the error in each caller that still waits.

    Each gets a copy: a shared exception would collect all their tracebacks."""
    for future in futures:
        if not future.done():
            future.set_exception(_copied(error))


def _copied(error: Exception) -> Exception:
    try:
        copied = copy.copy(error)
    except Exception:  # a store's own error may need more arguments than it has kept
        return error
    copied.__cause__ = error.__cause__
    return copied.with_traceback(error.__traceback__)
