"""Where handlers run: `inline` (async, in the worker's event loop), `thread` (plain functions), later `process` and `command`.

Two-phase stop in all of them: `ask`, and past its grace (or at once, where nothing can be asked) the run's task is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from jobq.errors import ConfigError
from jobq.executors.running import Running

# name → module with `open()`; imported when a task asks for it
_MODULES = {"inline": "jobq.executors.inline", "thread": "jobq.executors.thread"}


class Executor(Protocol):
    """One way to run functions, for one event loop."""

    def call(
        self, run: Running, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        """Run `fn` to its end; awaited in the run's own task.

        Cancelled, it answers at once. If what it started goes on all the same, it sets `run.unfinished` to a future that is
        done when that has ended, and the run's slot stays taken until then."""
        ...

    def ask(self, run: Running) -> None:
        """Its job was cancelled (`run.cancelled` is set): ask the function to stop, as far as that can be asked."""
        ...

    async def aclose(self) -> None:
        """No more calls; give back what is idle. Waits for nobody's code."""
        ...


def open_executor(name: str) -> Executor:
    """The executor of that name, for the running event loop."""
    executor: Executor = import_module(_MODULES[check_executor(name)]).open()
    return executor


def check_executor(name: str) -> str:
    """ConfigError if there is no executor of that name."""
    if name not in _MODULES:
        raise ConfigError(
            f"executor={name!r} is not one of those this version has: {', '.join(_MODULES)}"
        )
    return name
