"""The annotation of what a function returns. The results of steps are decoded by it."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from weakref import WeakKeyDictionary

from jobq.core.calls import is_plain, names_of

_looked_up: WeakKeyDictionary[types.FunctionType, Any] = WeakKeyDictionary()
"""A look-up takes up to 150 µs, longer than many a step."""


def returns_of(fn: Callable[..., Any]) -> Any:
    """The annotation of what a function returns, or of what its coroutine returns.

    Any if there is none, if it cannot be looked up, or if no conversion is needed.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if inspect.ismethod(fn):
        fn = fn.__func__
    if not inspect.isfunction(fn):  # a callable object or a builtin
        return Any
    try:
        return _looked_up[fn]
    except KeyError:
        found = _looked_up[fn] = _look_up(fn)
        return found


def _look_up(fn: types.FunctionType) -> Any:
    annotations = inspect.get_annotations(fn)
    if "return" not in annotations:
        return Any
    holder = types.SimpleNamespace(__annotations__={"return": annotations["return"]})
    try:
        found = typing.get_type_hints(holder, names_of(fn), include_extras=True)["return"]
    except Exception:  # a name that this module cannot see: the result is decoded to plain values
        return Any
    if typing.get_origin(found) in (Awaitable, Coroutine) and typing.get_args(found):
        found = typing.get_args(found)[-1]
    return Any if is_plain(found) else found
