"""Makes a blocking method of one that is awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from jobq.client.portal import run

P = ParamSpec("P")
R = TypeVar("R")


class Blocking:
    """A handle with blocking methods. `_of` is the handle whose methods are awaited."""

    __slots__ = ("_of",)

    _of: Any


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Blocking, P], R]:
    """The same method of `_of`, which may override it, as one that waits for the result."""
    name = method.__name__

    @wraps(method)
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = run(getattr(self._of, name)(*args, **kwargs))
        return result

    return call
