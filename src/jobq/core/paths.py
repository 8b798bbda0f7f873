"""Finds what cannot be encoded inside a value.

So an error can name the place: `args[0].items[3]['when']`. This runs only when something is wrong
or may be, never on the usual path.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from jobq.core.checks import shown
from jobq.errors import InvalidJob

_MAX_DEPTH = 200
"""Levels of nesting that are searched."""


def is_model(value: Any) -> bool:
    """Whether the value is a pydantic model or the class of one. Never imports pydantic."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return False
    base: type = pydantic.BaseModel
    return issubclass(value, base) if isinstance(value, type) else isinstance(value, base)


def dump_model(value: Any, *fields: str) -> dict[str, Any]:
    """A pydantic model, or some fields of it, as plain values.

    Pydantic reads them back from any codec. NaN stays NaN, so that it is refused like any other.
    """
    dumped: dict[str, Any] = value.model_dump(
        mode="json", include=set(fields) or None, by_alias=True, round_trip=True, warnings=False
    )
    return dumped


def load_model(model: Any, value: Any) -> Any:
    """The model made of plain values.

    A strict model accepts text for a time only when it reads JSON.
    """
    if model.model_config.get("strict"):
        return model.model_validate_json(msgspec.json.encode(value))
    return model.model_validate(value)


def explain(value: Any, root: str, encode: Callable[[Any], bytes], error: Exception) -> InvalidJob:
    """The error for a value on which `encode` raised `error`.

    It names the innermost place that causes it.
    """
    path, culprit = _blame(value, root, encode, 0)
    return _refusal(path, _why(culprit, encode, error))


def _refusal(path: str, why: str) -> InvalidJob:
    refusal = InvalidJob(f"{path or 'value'}: {why}")
    refusal._unencodable = (path, why)
    return refusal


def refuse_non_finite(value: Any, root: str) -> None:
    """Raise InvalidJob if the value contains a NaN or an infinity.

    Other systems could not read it.
    """
    try:
        if _surely_finite(value):  # most often the value merely contains a None
            return
        for path, leaf in _leaves(value, root):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise _refusal(path, f"{leaf} is not a finite number")
    except RecursionError:
        raise _refusal(root, "the value is nested too deeply") from None


_SCALARS = frozenset({str, int, bool, type(None), bytes})


def _surely_finite(value: Any) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind is list or kind is tuple:
        return all(map(_surely_finite, value))
    return (
        kind is dict
        and all(map(_surely_finite, value.values()))
        and all(map(_surely_finite, value))
    )


def _blame(value: Any, path: str, encode: Callable[[Any], bytes], depth: int) -> tuple[str, Any]:
    if depth < _MAX_DEPTH:
        for inner, part in _parts(value, path):
            if not _encodes(part, encode):
                return _blame(part, inner, encode, depth + 1)
    return path, value


def _encodes(value: Any, encode: Callable[[Any], bytes]) -> bool:
    try:
        encode(value)
    except Exception:
        return False
    return True


def _why(culprit: Any, encode: Callable[[Any], bytes], error: Exception) -> str:
    try:
        encode(culprit)
    except RecursionError:
        return f"{shown(culprit)} refers to itself, or is nested too deeply"
    except (TypeError, NotImplementedError) as own:
        if isinstance(culprit, Mapping):
            bad = next((key for key in culprit if not isinstance(key, (str, int, float))), None)
            return f"the key {shown(bad)} is neither a string nor a number"
        return f"a value of type {_kind(culprit)} cannot be encoded: {shown(culprit)} ({own})"
    except Exception as own:
        return f"{shown(culprit)}: {own}"
    return str(error)


def _kind(value: Any) -> str:
    cls = type(value)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (str, int, float, bytes, type(None))):
        yield path, value
        return
    for inner, part in _parts(value, path):
        yield from _leaves(part, inner)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The parts of a value with their paths.

    "call" is the path of (args, kwargs), whose parts begin a path.
    """
    if path == "call":
        yield "args", value[0]
        yield "kwargs", value[1]
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield f"{path}[{shown(key)}]", part
            if isinstance(key, float):
                yield f"{path} key", key
    elif isinstance(value, (list, tuple, set, frozenset)):
        for n, part in enumerate(value):
            yield f"{path}[{n}]", part
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f"{path}.{name}", getattr(value, name, None)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"{path}.{field.name}", getattr(value, field.name, None)
    elif is_model(value) and not isinstance(value, type):
        for name in type(value).model_fields:
            yield f"{path}.{name}", _field(value, name)


def _field(model: Any, name: str) -> Any:
    try:
        return next(iter(dump_model(model, name).values()), None)
    except Exception:  # pydantic cannot dump this field
        return getattr(model, name, None)
