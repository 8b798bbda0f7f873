"""Finds handlers by their address, so that a child process runs the task that its worker means.

Every task is added when its queue registers it. A child imports the module of the address, which
registers the task there too, and then looks it up here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import ref

from jobq.core.policies import Retry
from jobq.core.records.jobs import Lease
from jobq.errors import ConfigError


class Callee(Protocol):
    """A task, as an executor in another process sees it."""

    @property
    def name(self) -> str:
        """The name that is stored with jobs."""
        ...

    @property
    def fn(self) -> Callable[..., Any]:
        """The function."""
        ...

    @property
    def retry(self) -> Retry:
        """The retry policy of jobs that were enqueued without one."""
        ...

    def bind(self, lease: Lease, /) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Decode the arguments of this job."""
        ...

    def encode(self, value: Any, lease: Lease, /, what: str = "the result") -> bytes:
        """Encode a result of this job."""
        ...


class ProgramCall(NamedTuple):
    """The program that a command task runs for one job, and its input."""

    arguments: list[str]
    stdin: bytes


class Address(NamedTuple):
    """Where a task is defined: the module and name of its function, the task and its queue.

    `framework` is a module to import before, which prepares a process for the others. `imports` is
    the module that binds the task to its queue, if that is another one."""

    module: str
    function: str
    task: str
    queue: str
    framework: str | None = None
    imports: str | None = None

    def __str__(self) -> str:
        return f"task {self.task} of queue {self.queue} ({self.module}.{self.function})"


class _Known(NamedTuple):
    """A registered task."""

    handler: ref[Callee]
    queue: str


_known: dict[tuple[str, str, str], list[_Known]] = {}
_moves: dict[str, str] = {}  # queue → the URL that its worker uses, if this is a child process


def location(fn: Callable[..., Any]) -> tuple[str, str]:
    """The module and the name of a function."""
    return getattr(fn, "__module__", None) or "?", getattr(fn, "__qualname__", None) or repr(fn)


def address_of(handler: Callee, queue: str) -> Address:
    """The address of a task. ConfigError if no other process can import its function."""
    module, function = location(handler.fn)
    where = f"task {handler.name} of queue {queue}"
    imports: str | None = getattr(handler, "imports", None)
    if "__main__" in (module, imports):
        raise ConfigError(
            f"{where}: executor='process' cannot run a function of the program's main module, "
            "because child processes import it by its name: move the task to a module"
        )
    if module == "?" or not hasattr(handler.fn, "__qualname__"):
        raise ConfigError(
            f"{where}: executor='process' needs a function that child processes can import, "
            f"and {function} has no module or name: wrap it in a `def` of a module"
        )
    framework: str | None = getattr(handler, "framework", None)
    return Address(module, function, handler.name, queue, framework, imports)


def add(handler: Callee, queue: str, move: Callable[[str], None]) -> None:
    """Remember a task of a queue. `move` makes that queue use the store at another URL."""
    key = (*location(handler.fn), handler.name)
    entries = [entry for entry in _known.get(key, ()) if entry.handler() is not None]
    _known[key] = [*entries, _Known(ref(handler), queue)]
    if queue in _moves:
        move(_moves[queue])


def use_stores(urls: Mapping[str, str]) -> None:
    """Let the queues of this process, by name, use the stores that their worker uses."""
    _moves.update(urls)


def find(address: Address) -> Callee:
    """Import the module of a task and return its handler. ConfigError if there is none."""
    try:
        if address.framework is not None:
            importlib.import_module(address.framework)
        importlib.import_module(address.imports or address.module)
    except Exception as error:
        raise ConfigError(
            f"{address}: a child process cannot import its module: {type(error).__name__}: {error}"
        ) from error
    found = [
        (entry.queue == address.queue, handler)
        for entry in _known.get(address[:3], ())
        if (handler := entry.handler()) is not None
    ]
    if not found:
        raise ConfigError(
            f"{address}: a child process imported the module, but that does not register the "
            "task. Define the task at the top level of its module"
        )
    # The same function may be a task of several queues. The newest entry wins, as in the queue.
    return max(reversed(found), key=lambda pair: pair[0])[1]
