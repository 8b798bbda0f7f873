"""Executors call handlers: `inline` runs coroutines in the worker's event loop, `thread` functions.

`process` and `command` are planned. All executors stop a run in two steps: `request_stop` asks
the handler, and after a grace period the run's task is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from jobq.errors import ConfigError
from jobq.executors.running import Running

# Name → module with `open()`. It is imported when a task first needs it.
_MODULES = {"inline": "jobq.executors.inline", "thread": "jobq.executors.thread"}


class Executor(Protocol):
    """Calls functions for one event loop."""

    def call(
        self, run: Running, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """Call `fn` and return its result. Awaited in the task of the run.

        When cancelled, it returns at once. If the function goes on nevertheless, the executor sets
        `run.unfinished` to a future that is done when the function has ended. The run keeps its
        slot until then.
        """
        ...

    def request_stop(self, run: Running) -> None:
        """Ask the function to stop, if there is a way: its job was cancelled."""
        ...

    async def aclose(self) -> None:
        """Release idle resources. Does not wait for functions that still run."""
        ...


def open_executor(name: str) -> Executor:
    """Return the executor of that name for the running event loop."""
    executor: Executor = import_module(_MODULES[check_executor(name)]).open()
    return executor


def check_executor(name: str) -> str:
    """Return the name. Raises ConfigError if there is no executor of that name."""
    if name not in _MODULES:
        raise ConfigError(
            f"there is no executor {name!r} in this version: use one of {', '.join(_MODULES)}"
        )
    return name
