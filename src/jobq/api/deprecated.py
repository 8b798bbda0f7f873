"""Old names that still work. Each use warns once per call site with a DeprecationWarning.

docs/guide/renames.md lists them all. Type checkers see only the new names.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

REMOVED_IN = "0.3"
"""The release that removes the old names."""


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn that the caller of the calling function used an old name."""
    warnings.warn(
        f"{old} is deprecated and will be removed in jobq {REMOVED_IN}: use {new}",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


def renamed_arguments(**names: str) -> Callable[[F], F]:
    """Let a function take keyword arguments under their old names: `renamed_arguments(old="new")`.

    The warning is raised by the call itself, so it names the caller's line even if the function is
    a coroutine function whose coroutine is awaited elsewhere."""

    def decorate(fn: F) -> F:
        label = fn.__qualname__.removesuffix(".__init__")

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    if new in kwargs:
                        raise TypeError(f"{label}() got both {new}= and its old name {old}=")
                    warn_renamed(f"{label}({old}=…)", f"{new}=")
                    kwargs[new] = kwargs.pop(old)
            return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]  # same signature, for type checkers

    return decorate


class QueueNameOfTask(str):
    """`Task.queue`: the name of the task's queue.

    Until 0.2 it was the Queue itself, so its attributes are still found here, with a warning."""

    __slots__ = ("_queue",)
    _queue: Any

    @classmethod
    def of(cls, name: str, queue: Any) -> QueueNameOfTask:
        """The name of this queue."""
        made = cls(name)
        made._queue = queue
        return made

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_queue":  # not set: a copy made by pickle or copy
            raise AttributeError(attribute)
        value = getattr(self._queue, attribute)
        warn_renamed(f"task.queue.{attribute}", f"the Queue object: queue.{attribute}")
        return value

    def find(self, *args: Any, **kwargs: Any) -> Any:
        """`str.find`, or, with keyword arguments or none, `Queue.find`."""
        if args:
            return super().find(*args)
        warn_renamed("task.queue.find", "the Queue object: queue.find")
        return self._queue.find(**kwargs)
