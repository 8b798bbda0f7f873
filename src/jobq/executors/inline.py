"""Runs async handlers in the worker's event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from jobq.executors.running import Running
from jobq.executors.settings import ExecutorSettings


class InlineExecutor:
    """Calls the handler in the run's task, so that cancelling the task cancels the handler."""

    apart: Literal[False] = False

    def call(
        self, run: Running, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """Return the handler's coroutine."""
        coroutine: Awaitable[Any] = fn(*args, **kwargs)
        return coroutine

    def request_stop(self, run: Running) -> None:
        """Raise CancelledError at the handler's next `await`. It may clean up, and even finish."""
        if run.task is not None:
            run.task.cancel("the job was cancelled")

    async def aclose(self) -> None:
        """Nothing to release."""


def open(settings: ExecutorSettings) -> InlineExecutor:
    """Return an executor for the running event loop."""
    return InlineExecutor()
