"""Turns Python values into PostgreSQL's binary format, by the type that the server expects.

The server says which type each parameter of a statement has, so SQL needs casts only where the
server cannot infer one. A number that does not fit is an error here; psycopg's dumpers for a given
type store its low bits instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

BINARY, TEXT = 1, 0

Encode = Callable[[Any], bytes]

_INT2, _INT4, _INT8, _FLOAT8 = (Struct(f">{code}").pack for code in "hiqd")


def _text(value: str) -> bytes:
    return value.encode()


def _bytes(value: bytes) -> bytes:
    return value


def _bool(value: object) -> bytes:
    return b"\x01" if value else b"\x00"


def _jsonb(value: str | bytes) -> bytes:
    return b"\x01" + (value.encode() if isinstance(value, str) else value)


def _as_text(value: object) -> bytes:
    return str(value).encode()


_SCALARS: dict[int, Encode] = {
    16: _bool,  # bool
    17: _bytes,  # bytea
    19: _text,  # name
    20: _INT8,  # int8
    21: _INT2,  # int2
    23: _INT4,  # int4
    25: _text,  # text
    114: _text,  # json
    701: _FLOAT8,  # float8
    1043: _text,  # varchar
    3802: _jsonb,  # jsonb
}
_ARRAYS = {  # type of the array → type of its elements
    1000: 16,
    1001: 17,
    1005: 21,
    1007: 23,
    1016: 20,
    1009: 25,
    1022: 701,
    1015: 1043,
    3807: 3802,
}
_LENGTH = Struct(">i").pack
_HEAD = Struct(">iiiii").pack
_NULL = _LENGTH(-1)


def _array(element: int) -> Encode:
    encode = _SCALARS[element]
    empty = Struct(">iii").pack(0, 0, element)

    def repeated(value: Any, n: int) -> bytes:
        """Jobs that are put together have most columns in common."""
        data = None if value is None else encode(value)
        part = _NULL if data is None else _LENGTH(len(data)) + data
        return _HEAD(1, data is None, element, n, 1) + part * n

    def array(values: Sequence[Any]) -> bytes:
        if not values:
            return empty
        if values[0] == values[-1] and values.count(values[0]) == len(values):
            return repeated(values[0], len(values))
        parts = [b""]
        nulls = 0
        for value in values:
            if value is None:
                nulls = 1
                parts.append(_NULL)
            else:
                data = encode(value)
                parts.append(_LENGTH(len(data)))
                parts.append(data)
        parts[0] = _HEAD(1, nulls, element, len(values), 1)
        return b"".join(parts)

    return array


_ENCODERS: dict[int, Encode] = {
    **_SCALARS,
    **{oid: _array(element) for oid, element in _ARRAYS.items()},
}


def encoder(oid: int) -> tuple[Encode, int]:
    """The function that encodes a parameter of this type, and the format of its result.

    Types without a function of their own are sent as text.
    """
    found = _ENCODERS.get(oid)
    return (_as_text, TEXT) if found is None else (found, BINARY)
