"""Old names that still work. Each use warns once per call site with a DeprecationWarning.

docs/guide/renames.md lists them all. Type checkers see only the new names.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

REMOVED_IN = "0.3"
"""The release that removes the old names."""


def warn_renamed(old: str, new: str) -> None:
    """Warn that an old name was used. The warning names the nearest line outside of jobq."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith("jobq."):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"{old} is deprecated and will be removed in jobq {REMOVED_IN}: use {new}",
        DeprecationWarning,
        stacklevel=level,
    )


def renamed_arguments(**names: str) -> Callable[[F], F]:
    """Let a method take keyword arguments under their old names: `renamed_arguments(old="new")`.

    The call itself warns, not the coroutine it may return, so that the warning names the caller's
    line wherever the coroutine is awaited."""

    def decorate(fn: F) -> F:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    label = type(args[0]).__name__  # users know this class, not where fn is defined
                    if fn.__name__ != "__init__":
                        label = f"{label}.{fn.__name__}"
                    if new in kwargs:
                        raise TypeError(f"{label}() got both {new}= and its old name {old}=")
                    warn_renamed(f"{label}({old}=…)", f"{new}=")
                    kwargs[new] = kwargs.pop(old)
            return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]  # same signature, for type checkers

    return decorate


def renamed_attribute(old: str, new: str) -> Any:
    """A property under an old name: reading it warns and returns the attribute of the new name."""

    def read(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old}", f".{new}")
        return getattr(self, new)

    return property(read, doc=f"The old name of `{new}`.")
