"""Finding what cannot be encoded inside a value, so that a refusal names its place: `args[0].items[3]['when']`.

Only walked when something is wrong, or may be: never on the ordinary path.
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

_DEEPEST = 200


def is_model(value: Any) -> bool:
    """Whether it is a pydantic model, or the class of one. pydantic is never imported for the question."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return False
    base: type = pydantic.BaseModel
    return issubclass(value, base) if isinstance(value, type) else isinstance(value, base)


def dump_model(value: Any, *fields: str) -> dict[str, Any]:
    """A pydantic model (or some fields of it) as plain values, as pydantic reads them from JSON in any codec.
    NaN stays NaN, so that it is refused like any other."""
    dumped: dict[str, Any] = value.model_dump(
        mode="json", include=set(fields) or None, by_alias=True, round_trip=True, warnings=False
    )
    return dumped


def load_model(model: Any, value: Any) -> Any:
    """The model again. A strict one takes text for a time only when it is told that it reads JSON."""
    if model.model_config.get("strict"):
        return model.model_validate_json(msgspec.json.encode(value))
    return model.model_validate(value)


def explain(value: Any, root: str, encode: Callable[[Any], bytes], error: Exception) -> InvalidJob:
    """The refusal for a value that `encode` raised `error` on, with the innermost place that is to blame."""
    place, culprit = _blame(value, root, encode, 0)
    return InvalidJob(f"{place or 'value'}: {_why(culprit, encode, error)}")


def refuse_non_finite(value: Any, root: str) -> None:
    """InvalidJob if there is a NaN or an infinity anywhere in it: no other system would read it back."""
    try:
        if _surely_finite(value):  # most often it is a None that gave rise to the question
            return
        for place, leaf in _leaves(value, root):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise InvalidJob(f"{place or 'value'}: {leaf} is not a number that can be stored")
    except RecursionError:
        raise InvalidJob(f"{root or 'value'}: it is nested too deeply") from None


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


def _blame(value: Any, place: str, encode: Callable[[Any], bytes], depth: int) -> tuple[str, Any]:
    if depth < _DEEPEST:
        for inner, part in _parts(value, place):
            if not _encodes(part, encode):
                return _blame(part, inner, encode, depth + 1)
    return place, value


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
        return f"a {_kind(culprit)} is not something that can be encoded: {shown(culprit)} ({own})"
    except Exception as own:
        return f"{shown(culprit)}: {own}"
    return str(error)


def _kind(value: Any) -> str:
    cls = type(value)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (str, int, float, bytes, type(None))):
        yield place, value
        return
    for inner, part in _parts(value, place):
        yield from _leaves(part, inner)


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The parts of a value with their places. "call" stands for (args, kwargs), whose parts begin a path."""
    if place == "call":
        yield "args", value[0]
        yield "kwargs", value[1]
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield f"{place}[{shown(key)}]", part
            if isinstance(key, float):
                yield f"{place} key", key
    elif isinstance(value, (list, tuple, set, frozenset)):
        for n, part in enumerate(value):
            yield f"{place}[{n}]", part
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f"{place}.{name}", getattr(value, name, None)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f"{place}.{field.name}", getattr(value, field.name, None)
    elif is_model(value) and not isinstance(value, type):
        for name in type(value).model_fields:
            yield f"{place}.{name}", _field(value, name)


def _field(model: Any, name: str) -> Any:
    try:
        return next(iter(dump_model(model, name).values()), None)
    except Exception:  # it is this one that pydantic cannot dump
        return getattr(model, name, None)
