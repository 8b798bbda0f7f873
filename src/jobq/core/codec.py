"""Between Python values and bytes: JSON and MessagePack built in, a user's own beside them; never pickle.

A call travels as the encoding of `[args, kwargs]`, a result as the encoding of the value. What cannot be encoded is
refused with the path inside it. Decoding follows annotations (see `core.calls` for those of a handler's parameters).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jobq.core.checks import shown
from jobq.core.paths import dump_model, explain, is_model, load_model, refuse_non_finite
from jobq.errors import ConfigError, InvalidJob

Args = Sequence[Any]
Kwargs = dict[str, Any]

_Call = tuple[list[Any], dict[str, Any]]


class Codec:
    """How values become bytes. For one of your own: subclass, set `name` (stored with every job), override `encode`
    and `decode`, and give an instance to every Queue that produces or works those jobs.

    `decode(data, annotation)` may ignore the annotation: values are converted to it afterwards where they differ.
    """

    name: str = ""

    def encode(self, value: Any) -> bytes:
        """The value as bytes, or InvalidJob with the path of what cannot be encoded."""
        raise NotImplementedError

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        """The value again, as the annotation says. InvalidJob if it does not fit."""
        raise NotImplementedError

    def encode_call(self, args: Args, kwargs: Mapping[str, Any]) -> bytes:
        """A call's arguments as bytes."""
        return self.encode([list(args), dict(kwargs)])

    def decode_call(self, data: bytes) -> tuple[list[Any], Kwargs]:
        """A call's arguments, not yet converted to the annotations."""
        return _as_call(self.decode(data, Any), self.name)

    def digestible(self, value: Any) -> bytes:
        """Bytes that are equal for equal values: what a unique lock is made of."""
        return self.encode(value)


def _encode_hook(value: Any) -> Any:
    if is_model(value):
        return dump_model(value)
    raise NotImplementedError(f"{type(value).__name__} is not a type that can be encoded")


def decode_hook(annotation: type, value: Any) -> Any:
    """For types msgspec does not know: pydantic models, and values a custom codec has made already."""
    if isinstance(value, annotation):
        return value
    if is_model(annotation):
        return load_model(annotation, value)
    raise TypeError(f"there is no way to make a {annotation.__name__} of {shown(value)}")


class _BuiltIn(Codec):
    """What JSON and MessagePack share. Decoders are made once per annotation and kept."""

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
            raise InvalidJob(
                f"unique: the arguments cannot be made into a lock: {error}"
            ) from error

    def _decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        try:
            return self._decoders[annotation]
        except KeyError:
            made = self._decoders[annotation] = self._make_decoder(annotation)
            return made
        except TypeError:  # an annotation that cannot be hashed
            return self._make_decoder(annotation)

    def _make_decoder(self, annotation: Any) -> Callable[[bytes], Any]:
        raise NotImplementedError

    def _suspicious(self, data: bytes) -> bool:
        """Whether a NaN or an infinity may be in there: only then is the value walked."""
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
        return (
            data.find(b"null") >= 0
        )  # how msgspec writes NaN and the infinities; `in` takes half as long again


class _MessagePack(_BuiltIn):
    name = "msgpack"
    _encode = msgspec.msgpack.Encoder(enc_hook=_encode_hook).encode
    _steady = msgspec.msgpack.Encoder(enc_hook=_encode_hook, order="deterministic").encode
    _decode = msgspec.msgpack.Decoder().decode
    _decode_call = msgspec.msgpack.Decoder(_Call).decode
    # A float64 whose exponent is all ones. Other bytes may look like it by chance; then the walk finds nothing.
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
    """A decoded value as an annotation says, whichever codec it came from. msgspec.ValidationError if it does not fit."""
    return msgspec.convert(value, annotation, str_keys=True, dec_hook=decode_hook)


JSON: Codec = _Json()
MSGPACK: Codec = _MessagePack()
_BUILT_IN = {JSON.name: JSON, MSGPACK.name: MSGPACK}
_known: dict[str, Codec] = dict(_BUILT_IN)


def get_codec(codec: str | Codec) -> Codec:
    """The codec of that name. An instance is remembered under its name, so that jobs that carry the name are understood."""
    if isinstance(codec, str):
        try:
            return _known[codec]
        except KeyError:
            raise ConfigError(
                f"codec={codec!r} is not known here: it is json, msgpack, or the name of a Codec given to a Queue of this process"
            ) from None
    if not isinstance(codec, Codec):
        raise ConfigError(f"codec={shown(codec)} is neither a name nor a Codec")
    if not isinstance(codec.name, str) or not codec.name:
        raise ConfigError(
            f"codec={shown(codec)} has no name: set `name` in the class; it is stored with every job"
        )
    if _BUILT_IN.get(codec.name, codec) is not codec:
        raise ConfigError(
            f"codec={shown(codec)} calls itself {codec.name!r}, which is built in: choose another name"
        )
    _known[codec.name] = codec
    return codec
