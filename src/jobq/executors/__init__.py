"""Executors call handlers.

`inline` runs coroutines in the worker's event loop, `thread` runs functions in threads, `process`
runs both in child processes, and `command` runs a program for each job. All of them ask a handler
to stop before anything else. What then happens to one that goes on differs: its process is killed,
but a thread keeps its slot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from jobq.errors import ConfigError
from jobq.executors.exits import Ended
from jobq.executors.handlers import Callee
from jobq.executors.running import Running

if TYPE_CHECKING:
    from jobq.executors.settings import ExecutorSettings

# Name → module with `open()`. It is imported when a task first needs it.
_MODULES = {
    "inline": "jobq.executors.inline",
    "thread": "jobq.executors.thread",
    "process": "jobq.executors.process",
    "command": "jobq.executors.command",
}


class Executor(Protocol):
    """Calls functions for one event loop, in the process of the worker."""

    @property
    def apart(self) -> Literal[False]:
        """False: functions run in the worker's process."""
        ...

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


class ApartExecutor(Protocol):
    """Runs jobs in other processes, which can be killed."""

    @property
    def apart(self) -> Literal[True]:
        """True: functions run in another process."""
        ...

    async def start(self, tasks: Iterable[tuple[str, str, str, Callee]]) -> None:
        """Prepare to run these tasks, each with its tenant, its queue and the URL of its store.

        ConfigError if one cannot run.
        """
        ...

    async def run(self, run: Running, handler: Callee, begin: Callable[[], None]) -> Ended:
        """Run a job, as soon as there is a process for it. Returns how it ended.

        `begin` is called just before the job starts. If it raises, the job does not start.
        """
        ...

    def stop(self, run: Running, grace_s: float) -> None:
        """Ask a run to stop, and kill its process if it goes on for `grace_s`."""
        ...

    def kill(self, run: Running) -> None:
        """Kill the process of a run now."""
        ...

    async def aclose(self) -> None:
        """End all processes, also those that still run a job."""
        ...


def open_executor(name: str, settings: ExecutorSettings) -> Executor | ApartExecutor:
    """Return the executor of that name for the running event loop."""
    module = import_module(_MODULES[check_executor(name)])
    executor: Executor | ApartExecutor = module.open(settings)
    return executor


def check_executor(name: str) -> str:
    """Return the name. Raises ConfigError if there is no executor of that name."""
    if name not in _MODULES:
        raise ConfigError(
            f"there is no executor {name!r} in this version: use one of {', '.join(_MODULES)}"
        )
    return name
