"""Codecs between Python values and bytes: JSON, MessagePack and a user's own. Never pickle.

A call is stored as the encoding of `[args, kwargs]`, a result as the encoding of the value. A value
that cannot be encoded is refused with the path inside it. Decoding follows annotations;
`core.rules.calls` handles those of a handler's parameters.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from jobq.core.values.checks import shown
from jobq.errors import ConfigError, InvalidJob

# Finds what cannot be encoded inside a value.
#
# So an error can name the place: `args[0].items[3]['when']`. This runs only when something is wrong
# or may be, never on the usual path.

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


Args = Sequence[Any]
Kwargs = dict[str, Any]

_Call = tuple[list[Any], dict[str, Any]]


class NotHere(InvalidJob, ConfigError):
    """This process lacks the codec, or a key of it, that the data was encoded with."""


class Codec:
    """How values become bytes. Subclass it for a codec of your own.

    Set `name`, which is stored with every job. Override `encode` and `decode`. Give an instance to
    every Queue that enqueues or runs those jobs. `decode(data, annotation)` may ignore the
    annotation: jobq converts the values afterwards where they differ.
    """

    name: str = ""

    def encode(self, value: Any) -> bytes:
        """Encode a value. InvalidJob has the path of what cannot be encoded."""
        raise NotImplementedError

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        """Decode a value to the annotation. InvalidJob if it does not fit."""
        raise NotImplementedError

    def encode_call(self, args: Args, kwargs: Mapping[str, Any]) -> bytes:
        """Encode the arguments of a call."""
        return self.encode([list(args), dict(kwargs)])

    def decode_call(self, data: bytes) -> tuple[list[Any], Kwargs]:
        """Decode the arguments of a call, without converting them to the annotations."""
        return _as_call(self.decode(data, Any), self.name)

    def digestible(self, value: Any) -> bytes:
        """Bytes that are equal for equal values. A unique lock is a digest of them."""
        return self.encode(value)

    def for_task(self, name: str) -> Codec:
        """The codec of the arguments of one task: this one, unless data is bound to its task."""
        return self


def _encode_hook(value: Any) -> Any:
    if is_model(value):
        return dump_model(value)
    if isinstance(value, str):  # a subclass, such as the one of `Task.queue`
        return str(value)
    raise NotImplementedError(f"values of type {type(value).__name__} cannot be encoded")


def decode_hook(annotation: type, value: Any) -> Any:
    """Decode types that msgspec does not know: pydantic models, and values that a custom codec has
    already made.
    """
    if isinstance(value, annotation):
        return value
    if is_model(annotation):
        return load_model(annotation, value)
    raise TypeError(f"{shown(value)} cannot be converted to {annotation.__name__}")


class _BuiltIn(Codec):
    """What JSON and MessagePack share. A decoder is made once per annotation and kept."""

    _encode: Callable[[Any], bytes]
    _decode: Callable[[bytes], Any]
    _decode_call: Callable[[bytes], _Call]
    _steady: Callable[[Any], bytes]

    def __init__(self) -> None:
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    def encode(self, value: Any) -> bytes:
        try:
            data = self._encode(value)
        except Exception as error:
            raise explain(value, "", self._encode, error) from None
        if self._suspicious(data):
            refuse_non_finite(value, "")
        return data

    def encode_call(self, args: Args, kwargs: Mapping[str, Any]) -> bytes:
        call = (args, kwargs)
        try:
            data = self._encode(call)
        except Exception as error:
            raise explain(call, "call", self._encode, error) from None
        if self._suspicious(data):
            refuse_non_finite(call, "call")
        return data

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        try:
            if annotation is Any:
                return self._decode(data)
            return self._decoder(annotation)(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidJob(f"{self.name}: {error}") from error

    def decode_call(self, data: bytes) -> tuple[list[Any], Kwargs]:
        try:
            return self._decode_call(data)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidJob(
                f"the payload is not [args, kwargs] in {self.name}: {error}"
            ) from error

    def digestible(self, value: Any) -> bytes:
        try:
            return self._steady(value)
        except Exception as error:
            raise InvalidJob(f"unique: no lock can be made of the arguments: {error}") from error

    def _decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        try:
            return self._decoders[annotation]
        except KeyError:
            made = self._decoders[annotation] = self._make_decoder(annotation)
            return made
        except TypeError:  # the annotation cannot be hashed
            return self._make_decoder(annotation)

    def _make_decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        raise NotImplementedError

    def _suspicious(self, data: bytes) -> bool:
        """Whether the data may contain a NaN or an infinity.

        Only then is the value searched for one.
        """
        raise NotImplementedError


class _Json(_BuiltIn):
    name = "json"
    _encode = msgspec.json.Encoder(enc_hook=_encode_hook).encode
    _steady = msgspec.json.Encoder(enc_hook=_encode_hook, order="deterministic").encode
    _decode = msgspec.json.Decoder().decode
    _decode_call = msgspec.json.Decoder(_Call).decode

    def _make_decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(annotation, dec_hook=decode_hook).decode

    def _suspicious(self, data: bytes) -> bool:
        # msgspec writes NaN and the infinities as null. `in` takes 1.5 times as long as find.
        return data.find(b"null") >= 0


class _MessagePack(_BuiltIn):
    name = "msgpack"
    _encode = msgspec.msgpack.Encoder(enc_hook=_encode_hook).encode
    _steady = msgspec.msgpack.Encoder(enc_hook=_encode_hook, order="deterministic").encode
    _decode = msgspec.msgpack.Decoder().decode
    _decode_call = msgspec.msgpack.Decoder(_Call).decode
    # A float64 whose exponent is all ones. Other bytes may match by chance; the search then finds
    # nothing.
    _non_finite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL).search

    def _make_decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        return msgspec.msgpack.Decoder(annotation, dec_hook=decode_hook).decode

    def _suspicious(self, data: bytes) -> bool:
        return _MessagePack._non_finite(data) is not None


def _as_call(value: Any, name: str) -> tuple[list[Any], Kwargs]:
    match value:
        case [list() | tuple() as args, dict() as kwargs]:
            return list(args), kwargs
    raise InvalidJob(f"the payload is not [args, kwargs] in {name}: {shown(value)}")


def convert(value: Any, annotation: Any) -> Any:
    """A decoded value converted to an annotation, whichever codec decoded it.

    msgspec.ValidationError if it does not fit.
    """
    return msgspec.convert(value, annotation, str_keys=True, dec_hook=decode_hook)


class _Pair(Codec):
    """One codec for the arguments of a job, and another for results and other values."""

    def __init__(self, arguments: Codec, results: Codec) -> None:
        self.name = f"{arguments.name}{_BOTH}{results.name}"
        self.encode = results.encode  # type: ignore[method-assign]  # for speed
        self.decode = results.decode  # type: ignore[method-assign]
        self.encode_call = arguments.encode_call  # type: ignore[method-assign]
        self.decode_call = arguments.decode_call  # type: ignore[method-assign]
        self.digestible = arguments.digestible  # type: ignore[method-assign]
        self._arguments, self._results = arguments, results

    def for_task(self, name: str) -> Codec:
        """The pair with the codec of the task's arguments."""
        bound = self._arguments.for_task(name)
        return self if bound is self._arguments else _Pair(bound, self._results)


_BOTH = "+"
"""Between the names of a pair's codecs, in the name that is stored with a job."""

JSON: Codec = _Json()
MSGPACK: Codec = _MessagePack()
_BUILT_IN = {JSON.name: JSON, MSGPACK.name: MSGPACK}
_known: dict[str, Codec] = dict(_BUILT_IN)


def get_codec(codec: str | Codec) -> Codec:
    """The codec of that name.

    An instance is registered under its name, so that jobs stored with that name can be decoded.
    """
    if isinstance(codec, str):
        try:
            return _known[codec]
        except KeyError:
            arguments, both, results = codec.partition(_BOTH)
            if both and arguments in _known and results in _known:
                return codec_pair(arguments, results)
            raise NotHere(
                f"codec={codec!r} is not known in this process: use json, msgpack, or the name of "
                "a Codec that was given to a Queue"
            ) from None
    if not isinstance(codec, Codec):
        raise ConfigError(f"codec={shown(codec)} is neither the name of a codec nor a Codec")
    if not isinstance(codec.name, str) or not codec.name:
        raise ConfigError(
            f"codec={shown(codec)} has no name: set `name` in its class, which every job stores"
        )
    if _BUILT_IN.get(codec.name, codec) is not codec:
        raise ConfigError(
            f"codec={shown(codec)} has the name {codec.name!r} of a built-in codec: "
            "choose another name"
        )
    _known[codec.name] = codec
    return codec


def codec_pair(arguments: str | Codec, results: str | Codec) -> Codec:
    """A codec that encodes arguments in one way, and results, progress and signals in another.

    Its name is made of both names, so every process that knows both can read the jobs.
    """
    first, second = get_codec(arguments), get_codec(results)
    if first is second:
        return first
    pair = _Pair(first, second)
    return _known.setdefault(pair.name, pair)
