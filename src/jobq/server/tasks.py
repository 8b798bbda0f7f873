"""Tasks that a service starts and does not wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("jobq.server")


class Tasks:
    """Keeps tasks alive until they end, and logs what they raise."""

    def __init__(self, what: str) -> None:
        """`what` names the service in the log."""
        self._what = what
        self.running: set[asyncio.Task[None]] = set()
        """Tasks that have not ended."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.create_task(work)
        self.running.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of %s failed", self._what, exc_info=error)
