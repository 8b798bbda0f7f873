"""Async handlers, in the worker's own event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jobq.executors.running import Running


class InlineExecutor:
    """The call itself: the run's task is the handler's task, so cancelling the one cancels the other."""

    def call(
        self, run: Running, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """The handler's coroutine."""
        coroutine: Awaitable[Any] = fn(*args, **kwargs)
        return coroutine

    def ask(self, run: Running) -> None:
        """CancelledError at its next `await`: it may clean up, and even finish."""
        if run.task is not None:
            run.task.cancel("the job was cancelled")

    async def aclose(self) -> None:
        """Nothing to give back."""


def open() -> InlineExecutor:
    """For the running event loop."""
    return InlineExecutor()
